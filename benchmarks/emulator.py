"""The emulator's products beside NumPy's SGEMM, on one thread of one core, in one run.

The measuring process is a child with BLAS held to one thread and none of the variables that
make OpenBLAS choose a core type other than this processor's. Seconds are those of the processor,
so that a busy machine changes little. GFLOP/s count 2 M N K for every product, also for `heal`,
which runs three 16-bit products, and `exact`, which runs six.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import single_thread

_SIZES = ((256, 256, 256), (1024, 1024, 1024), (64, 64, 16384))
_REPEATS = 5
_TILE = (16, 16, 4096)  # what one fraud proof recomputes


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of product: operand dtype, and either an instruction or a profile."""

    name: str
    dtype: str = "f32"
    arch: str = "hopper"
    instruction: str = "mma"
    profile: str | None = None


_ROWS = (
    Row(name="f16, F=25 L=16 (hopper)", dtype="f16"),
    Row(name="f16, F=24 L=8 (ampere)", dtype="f16", arch="ampere"),
    Row(name="bf16, F=25 L=16 (hopper)", dtype="bf16"),
    Row(name="tf32, F=25 L=8 (hopper)", dtype="tf32"),
    Row(name="e4m3, F=13 L=32 (hopper)", dtype="e4m3", instruction="wgmma"),
    Row(name="e4m3, F=25 L=32 (blackwell)", dtype="e4m3", arch="blackwell", instruction="tcgen05"),
    Row(name="profile bf16", profile="bf16"),
    Row(name="profile heal", profile="heal"),
    Row(name="profile exact", profile="exact"),
    Row(name="profile fp32", profile="fp32"),
)


def _best_seconds(
    action: Callable[[], object], clock: Callable[[], float] = time.process_time
) -> float:
    """Return the shortest of several runs: the least disturbed one."""
    times = []
    for _ in range(_REPEATS):
        started = clock()
        action()
        times.append(clock() - started)
    return min(times)


def _product(row: Row, shape: tuple[int, int, int], threads: int) -> Callable[[], object]:
    """Prepare random operands of one row; the call computes the product."""
    import ml_dtypes
    import numpy as np

    import emulator_ext

    m, n, k = shape
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((k, n)).astype(np.float32)
    if row.profile is not None:
        profile = row.profile
        return lambda: emulator_ext.gemm(a, b, profile=profile, arch=row.arch, threads=threads)
    dtypes = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn}
    x, y = (z.astype(dtypes.get(row.dtype, np.float32)) for z in (a, b))
    return lambda: emulator_ext.matmul(
        x, y, arch=row.arch, instruction=row.instruction, threads=threads
    )


def _sgemm(shape: tuple[int, int, int]) -> Callable[[], object]:
    import numpy as np

    m, n, k = shape
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((k, n)).astype(np.float32)
    return lambda: a @ b


def _gigaflops(shape: tuple[int, int, int], seconds: float) -> float:
    m, n, k = shape
    return 2e-9 * m * n * k / seconds


def _measure() -> None:
    import emulator_ext

    path = emulator_ext.paths()[-1]
    print(f"emulator: GFLOP/s on one thread, path {path}, and the share of NumPy's SGEMM")
    titles = ["x".join(map(str, shape)) for shape in _SIZES]
    print(f"  {'':28}" + "".join(f"{title:>18}" for title in titles))
    peers = [_gigaflops(shape, _best_seconds(_sgemm(shape))) for shape in _SIZES]
    print(f"  {'NumPy SGEMM':28}" + "".join(f"{peer:11.1f}  1.000" for peer in peers))
    for row in _ROWS:
        cells = ""
        for shape, peer in zip(_SIZES, peers, strict=True):
            speed = _gigaflops(shape, _best_seconds(_product(row, shape, 1)))
            cells += f"{speed:11.1f}  {speed / peer:5.3f}"
        print(f"  {row.name:28}{cells}")
    _measure_threads()
    _measure_tile()


def _measure_threads() -> None:
    shape = _SIZES[1]
    one, two = (_best_seconds(_product(_ROWS[0], shape, n), time.perf_counter) for n in (1, 2))
    print(f"  two threads, f16 1024: {one / two:.2f} times one")


def _measure_tile() -> None:
    for row in (_ROWS[0], _ROWS[7]):
        milliseconds = 1e3 * _best_seconds(_product(row, _TILE, 1))
        print(f"  one tile {'x'.join(map(str, _TILE))}, {row.name}: {milliseconds:.2f} ms")


def main() -> None:
    """Measure in a child process whose BLAS has one thread, and print a table."""
    single_thread.measure("benchmarks.emulator")


if __name__ == "__main__":
    main()
