"""`dot` and `matmul`: any tensor-core instruction on whole operands, bit for bit."""

from __future__ import annotations

from typing import Any

import _bitwitness_mma as core
import numpy as np
import numpy.typing as npt

from emulator_ext import isa
from emulator_ext.arithmetic import Numerics, numerics
from emulator_ext.dtypes import ACCUMULATORS, FORMATS, accumulator_bits, as_bits, dtype_name
from emulator_ext.errors import OperandError, UnsupportedError
from emulator_ext.paths import select_path, thread_count

Array = npt.NDArray[Any]


def _row_of(a: Array, b: Array, arch: str, acc: str | None, instruction: str) -> Numerics:
    a_name, b_name = dtype_name(a.dtype), dtype_name(b.dtype)
    acc = isa.natural_accumulator(a_name) if acc is None else acc
    isa.require(arch, instruction, a_name, b_name, acc)
    row = numerics(arch, a_name, acc, instruction)
    if row.engine != "chain":
        raise UnsupportedError(
            f"{a_name} through {instruction} on {arch} is not built: its engine is {row.engine}"
        )
    return row


def dot(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    arch: str,
    acc: str | None = None,
    instruction: str = "mma",
) -> Array:
    """n independent chains: out[i] = c[i] + a[i] . b[i], as one output element of an MMA.

    a, b [n, K] of one operand dtype, c [n] of the accumulator's dtype (None: +0) -> [n].
    Raises UnsupportedError for an instruction that does not exist, OperandError for shapes or
    dtypes that do not fit. NUMERICS 1.
    """
    a, b = np.asarray(a), np.asarray(b)
    row = _row_of(a, b, arch, acc, instruction)
    if a.ndim != 2 or a.shape != b.shape:
        raise OperandError(f"dot takes a and b of one shape [n, K], got {a.shape} and {b.shape}")
    out = np.empty(a.shape[0], ACCUMULATORS[row.acc])
    core.dot(
        as_bits(a),
        FORMATS[dtype_name(a.dtype)],
        as_bits(b),
        FORMATS[dtype_name(b.dtype)],
        accumulator_bits(c, out.shape, row.acc),
        as_bits(out),
        row.core(),
        0,
    )
    return out


def matmul(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    arch: str,
    acc: str | None = None,
    instruction: str = "mma",
    threads: int | None = None,
    path: str | None = None,
) -> Array:
    """C + A B as chains of tensor-core steps along ascending K.

    a [M, K], b [K, N] of operand dtypes, c [M, N] of the accumulator's dtype (None: +0) ->
    [M, N]; any strides. Errors as `dot`. Threads and path change no bit. NUMERICS 1.
    """
    a, b = np.asarray(a), np.asarray(b)
    row = _row_of(a, b, arch, acc, instruction)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise OperandError(f"matmul takes [M, K] and [K, N], got {a.shape} and {b.shape}")
    out = np.empty((a.shape[0], b.shape[1]), ACCUMULATORS[row.acc])
    core.matmul(
        as_bits(a),
        FORMATS[dtype_name(a.dtype)],
        as_bits(b),
        FORMATS[dtype_name(b.dtype)],
        accumulator_bits(c, out.shape, row.acc),
        as_bits(out),
        row.core(),
        0,
        False,
        select_path(path),
        thread_count(threads),
    )
    return out
