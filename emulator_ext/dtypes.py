"""Operand formats: numpy and ml_dtypes dtypes on one side, the core's `Format` on the other.

numpy has no bfloat16 or float8, and nanobind cannot take ml_dtypes arrays, so operands cross
into C++ as unsigned integers of the same width beside a `Format`. tf32 has no dtype of its own:
it is float32, of which the tensor core ignores the low 13 bits.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from _bitwitness_mma import Format

from emulator_ext.errors import OperandError, UnsupportedError

FORMATS: dict[str, Format] = {
    "f16": Format.f16,
    "bf16": Format.bf16,
    "tf32": Format.tf32,
    "e4m3": Format.e4m3,
    "e5m2": Format.e5m2,
    "f64": Format.f64,
    "s8": Format.s8,
    "u8": Format.u8,
}
_NUMPY_NAMES: dict[np.dtype[Any], str] = {
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(np.float32): "tf32",
    np.dtype(ml_dtypes.float8_e4m3fn): "e4m3",
    np.dtype(ml_dtypes.float8_e5m2): "e5m2",
    np.dtype(np.float64): "f64",
    np.dtype(np.int8): "s8",
    np.dtype(np.uint8): "u8",
}
ACCUMULATORS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "f64": np.dtype(np.float64),
    "s32": np.dtype(np.int32),
}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def dtype_name(dtype: object) -> str:
    """Name an operand dtype given by such a name or as a numpy or ml_dtypes dtype.

    Raises UnsupportedError for any other.
    """
    if isinstance(dtype, str) and dtype in FORMATS:
        return dtype
    try:
        name = _NUMPY_NAMES.get(np.dtype(dtype).newbyteorder("="))  # type: ignore[call-overload]
    except TypeError:
        name = None
    if name is None:
        raise UnsupportedError(
            f"no tensor core takes operands of dtype {dtype!r}; known are "
            f"{', '.join(FORMATS)} (tf32 operands are float32 arrays)"
        )
    return name


def as_bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View elements as unsigned integers of their width, strides kept where they can be."""
    array = np.asarray(array)
    aligned = array.flags.aligned and all(s % array.itemsize == 0 for s in array.strides)
    if not aligned or not array.dtype.isnative:
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return array.view(_UNSIGNED[array.itemsize])


def accumulator_bits(
    c: npt.NDArray[Any] | None, shape: tuple[int, ...], acc: str
) -> npt.NDArray[Any] | None:
    """Check dtype and shape of `c` and return its bits, C-contiguous."""
    if c is None:
        return None
    c = np.asarray(c)
    if c.dtype != ACCUMULATORS[acc] or c.shape != shape:
        raise OperandError(
            f"c must be {ACCUMULATORS[acc]} of shape {shape}, got {c.dtype} of shape {c.shape}"
        )
    return np.ascontiguousarray(c).view(_UNSIGNED[c.itemsize])
