"""`dot` and `matmul`: any tensor-core instruction on whole operands, bit for bit."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from emulator_ext.arithmetic import Numerics
from emulator_ext.engines import Execution, Regions, run_dot, run_matmul, select_row
from emulator_ext.errors import OperandError, UnsupportedError
from emulator_ext.paths import select_path, thread_count
from emulator_ext.schedule import Schedule

Array = npt.NDArray[Any]


def dot(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    arch: str,
    acc: str | None = None,
    instruction: str = "mma",
) -> Array:
    """Run n independent chains: out[i] = c[i] + a[i] . b[i], each one output element of an MMA.

    a, b [n, K] of operand dtypes that one instruction takes (float32 stands for tf32), c [n] of
    the accumulator's dtype (None: +0) -> [n]. acc None is "f32", or "f64" and "s32" for f64 and
    8-bit integers. Raises UnsupportedError for an instruction that does not exist, naming those
    that do, and OperandError for shapes or dtypes that do not fit. NUMERICS 1.
    """
    a, b = np.asarray(a), np.asarray(b)
    row = select_row(a, b, arch, acc, instruction)
    if a.ndim != 2 or a.shape != b.shape:
        raise OperandError(f"dot takes a and b of one shape [n, K], got {a.shape} and {b.shape}")
    return run_dot(row, a, b, c)


@overload
def matmul(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    arch: str,
    acc: str | None = None,
    instruction: str = "mma",
    threads: int | None = None,
    schedule: Schedule | None = None,
    path: str | None = None,
    report: Literal[False] = False,
) -> Array: ...


@overload
def matmul(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    arch: str,
    acc: str | None = None,
    instruction: str = "mma",
    threads: int | None = None,
    schedule: Schedule | None = None,
    path: str | None = None,
    report: Literal[True],
) -> tuple[Array, Regions]: ...


def matmul(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    arch: str,
    acc: str | None = None,
    instruction: str = "mma",
    threads: int | None = None,
    schedule: Schedule | None = None,
    path: str | None = None,
    report: bool = False,
) -> Array | tuple[Array, Regions]:
    """C + A B as chains of tensor-core steps along ascending K, cut as `schedule` says.

    a [M, K], b [K, N], c [M, N] (None: +0) -> [M, N]; any strides; dtypes, acc and errors as in
    `dot`. report=True also returns the `Regions` that its outputs entered (slower for f16
    accumulators; with slices an upper bound). threads None means all processors available to
    the process, path None the widest one; neither changes a bit. A schedule needs an f32
    accumulator. NUMERICS 1.
    """
    a, b = np.asarray(a), np.asarray(b)
    row = select_row(a, b, arch, acc, instruction)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise OperandError(f"matmul takes [M, K] and [K, N], got {a.shape} and {b.shape}")
    how = Execution(count_regions=report, path=select_path(path), threads=thread_count(threads))
    schedule = Schedule() if schedule is None else schedule
    out, regions = _run_scheduled(row, a, b, c, schedule, how)
    return (out, regions) if report else out


def _run_scheduled(
    row: Numerics, a: Array, b: Array, c: Array | None, schedule: Schedule, how: Execution
) -> tuple[Array, Regions]:
    if schedule.is_plain:
        return run_matmul(row, a, b, c, 0, how)
    if row.acc != "f32":
        raise UnsupportedError(f"a schedule needs an f32 accumulator, not {row.acc}")
    if schedule.promotion is not None and row.engine != "chain":
        raise UnsupportedError(f"{row.instruction} of {row.dtype} on {row.arch} has no promotion")
    block = schedule.promotion or 0
    partials, regions = [], []
    for start, end in schedule.bounds(a.shape[1]):
        first = c if start == 0 else None
        out, entered = run_matmul(row, a[:, start:end], b[start:end], first, block, how)
        partials.append(out)
        regions.append(entered)
    # Slices do not tell which outputs they counted: the sum bounds the number from above.
    merged = Regions(
        outputs=partials[0].size,
        special=min(partials[0].size, sum(r.special for r in regions)),
        at_zero_floor=min(partials[0].size, sum(r.at_zero_floor for r in regions)),
    )
    return schedule.merge(partials), merged
