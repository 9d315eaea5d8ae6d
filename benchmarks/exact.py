"""The exact profile beside NumPy's SGEMM divided by six, on one thread of one core, in one run.

Six products of digits stand behind one product, so SGEMM / 6 is what a BLAS that multiplied the
digits as float32 would reach. The two are measured in turn, so that a busy machine slows both;
seconds are those of the thread, and the ratio is the median of the pairs'. Operands as training
has them, transposed, and the rare ones whose scales leave f32 are measured too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks import single_thread

_SIZES = ((256, 256, 256), (1024, 1024, 1024), (64, 64, 16384))
_PRODUCTS = 6
_SECONDS = 2.0  # for each pair


def _pairs(peer: Callable[[], object], ours: Callable[[], object]) -> list[tuple[float, float]]:
    def seconds(action: Callable[[], object]) -> float:
        started = time.thread_time()
        action()
        return time.thread_time() - started

    seconds(peer), seconds(ours)
    pairs = []
    until = time.perf_counter() + _SECONDS
    while time.perf_counter() < until or len(pairs) < 3:
        pairs.append((seconds(peer), seconds(ours)))
    return pairs


def _row(name: str, a: Any, b: Any) -> None:
    import emulator_ext

    pairs = _pairs(
        lambda: a @ b,
        lambda: emulator_ext.gemm(a, b, profile="exact", arch="hopper", threads=1),
    )
    operations = 2e-9 * a.shape[0] * a.shape[1] * b.shape[1]
    sgemm, exact = (operations / median(column) for column in zip(*pairs, strict=True))
    ratio = _PRODUCTS * median(peer / ours for peer, ours in pairs)
    print(f"  {name:28}{sgemm:9.1f}{exact:9.1f}{ratio:9.2f}")


def _measure() -> None:
    import numpy as np

    import emulator_ext

    print(f"exact: GFLOP/s on one thread, path {emulator_ext.paths()[-1]} (to reach: 0.80)")
    print(f"  {'':28}{'SGEMM':>9}{'exact':>9}{'x six':>9}")
    rng = np.random.default_rng(0)
    for m, n, k in _SIZES:
        a = rng.standard_normal((m, k), np.float32)
        b = rng.standard_normal((k, n), np.float32)
        _row(f"{m}x{n}x{k}", a, b)
    a, b = (rng.standard_normal((512, 512), np.float32) for _ in range(2))
    _row("512x512x512, A transposed", a.T, b)
    _row("512x512x512, B transposed", a, b.T)
    _row("512x512x512, far scales", a * np.float32(2.0**-60), b * np.float32(2.0**-40))


def main() -> None:
    """Measure in a child process whose BLAS has one thread, and print a table."""
    single_thread.measure("benchmarks.exact")


if __name__ == "__main__":
    main()
