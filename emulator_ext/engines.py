"""The calls into the C++ core, one per engine of `emulator_ext.arithmetic`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import _bitwitness_mma as core
import numpy as np
import numpy.typing as npt

from emulator_ext import isa
from emulator_ext.arithmetic import Numerics, numerics
from emulator_ext.dtypes import ACCUMULATORS, FORMATS, accumulator_bits, as_bits, dtype_name

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """How many of `outputs` entered a region that no recorded hardware output covers.

    special: NaN or infinity among operands, accumulators or results. at_zero_floor: a nonzero
    term was aligned at e_zero. NUMERICS 1.4: a mismatch there is inconclusive.
    """

    outputs: int
    special: int
    at_zero_floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What changes no bit of a product: whether regions are counted, the path, the threads."""

    count_regions: bool
    path: core.Path
    threads: int


def select_row(a: Array, b: Array, arch: str, acc: str | None, instruction: str) -> Numerics:
    """Find the table row for these operands. Raises UnsupportedError if there is none."""
    a_name, b_name = dtype_name(a.dtype), dtype_name(b.dtype)
    acc = isa.natural_accumulator(a_name) if acc is None else acc
    isa.require(arch, instruction, a_name, b_name, acc)
    return numerics(arch, a_name, acc, instruction)


def _operands(a: Array, b: Array) -> tuple[Array, core.Format, Array, core.Format]:
    return (
        as_bits(a),
        FORMATS[dtype_name(a.dtype)],
        as_bits(b),
        FORMATS[dtype_name(b.dtype)],
    )


def _native(x: Array) -> Array:
    """As f64 or int32 that nanobind takes: native byte order, whole-element strides."""
    return as_bits(x).view(x.dtype.newbyteorder("="))


def run_matmul(
    row: Numerics, a: Array, b: Array, c: Array | None, block: int, how: Execution
) -> tuple[Array, Regions]:
    """C + A B on one engine; a [M, K], b [K, N], c [M, N] or None; block as Schedule.promotion.

    Raises OperandError for a c of another dtype or shape.
    """
    out = np.empty((a.shape[0], b.shape[1]), ACCUMULATORS[row.acc])
    c_bits = accumulator_bits(c, out.shape, row.acc)
    special = at_zero_floor = 0
    if row.engine == "fma":
        c64 = None if c_bits is None else c_bits.view(np.float64)
        special = core.matmul_f64(_native(a), _native(b), c64, out, how.path, how.threads)
    elif row.engine == "integer":
        c32 = None if c_bits is None else c_bits.view(np.int32)
        core.matmul_integer(*_operands(a, b), c32, out, how.path, how.threads)
    else:
        chains = row.engine == "chain"
        function = core.matmul if chains else core.matmul_fp8_through_f16
        special, at_zero_floor = function(
            *_operands(a, b),
            c_bits,
            as_bits(out),
            row.core(),
            block,
            how.count_regions,
            how.path,
            how.threads,
        )
    return out, Regions(outputs=out.size, special=special, at_zero_floor=at_zero_floor)


def run_dot(row: Numerics, a: Array, b: Array, c: Array | None) -> Array:
    """N independent chains; a, b [n, K], c [n] or None -> [n]. Raises as run_matmul."""
    out = np.empty(a.shape[0], ACCUMULATORS[row.acc])
    c_bits = accumulator_bits(c, out.shape, row.acc)
    if row.engine == "fma":
        c64 = None if c_bits is None else c_bits.view(np.float64)
        core.dot_f64(_native(a), _native(b), c64, out)
    elif row.engine == "integer":
        sums = np.einsum("nk,nk->n", a, b, dtype=np.int64)
        total = sums if c is None else sums + np.asarray(c)
        out[:] = total.astype(np.uint64).astype(np.uint32).view(np.int32)
    else:
        function = core.dot if row.engine == "chain" else core.dot_fp8_through_f16
        function(*_operands(a, b), c_bits, as_bits(out), row.core(), 0)
    return out
