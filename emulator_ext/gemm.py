"""`gemm`: the profiles of NUMERICS section 2, f32 in and f32 out."""

from __future__ import annotations

from typing import Any

import _bitwitness_exact as exact
import _bitwitness_mma as core
import numpy as np
import numpy.typing as npt

from emulator_ext.arithmetic import numerics
from emulator_ext.errors import NonFiniteError, OperandError, UnsupportedError
from emulator_ext.isa import architectures
from emulator_ext.paths import select_path, thread_count

Array = npt.NDArray[Any]

_PROFILES = {
    "fp32": core.Profile.fp32,
    "bf16": core.Profile.bf16,
    "heal": core.Profile.heal,
}
_NAMES = (*_PROFILES, "exact")
_WHERE = ("the left operand", "the right operand", "the product")


def _arithmetic_of(profile: str, arch: str) -> core.Arithmetic:
    if profile not in _NAMES:
        raise UnsupportedError(f"profile {profile!r} is not built; there are {', '.join(_NAMES)}")
    if arch not in architectures():
        raise UnsupportedError(
            f"unknown architecture {arch!r}; known are {', '.join(architectures())}"
        )
    if profile in {"fp32", "exact"}:  # the same on any: any row will do, none is read
        return numerics(arch, "f16").core()
    return numerics(arch, "bf16" if profile == "bf16" else "f16").core()


def _operand(x: Array, name: str) -> Array:
    x = np.asarray(x)
    if x.dtype.newbyteorder("=") != np.float32 or x.ndim < 2:
        raise OperandError(f"{name} must be float32 [..., rows, cols], got {x.dtype} {x.shape}")
    aligned = x.flags.aligned and all(s % x.itemsize == 0 for s in x.strides)
    if not aligned or not x.dtype.isnative:
        return np.ascontiguousarray(x, dtype=np.float32)
    return x


def gemm(
    a: Array,
    b: Array,
    *,
    profile: str,
    arch: str,
    threads: int | None = None,
    path: str | None = None,
) -> Array:
    """Multiply by a profile: "heal", "bf16", "fp32" or "exact".

    a f32 [..., M, K], b f32 [..., K, N] with equal leading dimensions, any strides -> f32
    [..., M, N], C-contiguous. K = 0 gives zeros.

    Raises NonFiniteError if an input or the product holds NaN or infinity, OperandError for
    other shapes or dtypes, UnsupportedError if the architecture lacks the instruction. Threads
    and path change no bit. NUMERICS 2.
    """
    arithmetic = _arithmetic_of(profile, arch)
    a, b = _operand(a, "a"), _operand(b, "b")
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise OperandError(f"gemm takes [..., M, K] and [..., K, N], got {a.shape} and {b.shape}")
    out = np.empty((*a.shape[:-1], b.shape[-1]), np.float32)
    chosen, count = select_path(path), thread_count(threads)
    if profile == "exact":
        found = exact.gemm(a, b, out, chosen.value, count)
    else:
        found = core.gemm(_PROFILES[profile], a, b, out, arithmetic, chosen, count)
    if found is not None:
        _raise_nonfinite(profile, (a, b, out)[found[0]], found)
    return out


def _raise_nonfinite(profile: str, x: Array, found: tuple[int, int, int, int]) -> None:
    where, batch, row, col = found
    position: tuple[int, ...] = (row, col)
    if x.ndim > 2:
        position = (*map(int, np.unravel_index(batch, x.shape[:-2])), row, col)
    raise NonFiniteError(f"gemm {profile}: {_WHERE[where]} is {x[position]} at {list(position)}")
