"""Each GEMM profile, by each of its kernels, beside cuBLAS in bf16 and in FP32 with TF32 off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.timing import Report
from trainer.kernels import Runtime
from trainer.kernels.gemm import gemm
from trainer.kernels.tiles import ROUTES, TILES, Route, tiles_for

# Batch, M, N, K: squares, then those of a training step: a projection, its weight's gradient and
# attention's heads.
SHAPES = (
    (1, 1024, 1024, 1024), (1, 2048, 2048, 2048), (1, 4096, 4096, 4096), (1, 8192, 8192, 8192),
    (1, 4096, 5632, 1024), (1, 1024, 5632, 4096), (128, 512, 512, 64), (128, 512, 64, 512),
)  # fmt: skip
SLOW_LIMIT = 1 << 37  # operations beyond which the fp32 profile, on no tensor core, is left out
PLAIN = "cuBLAS FP32"

Shape = tuple[int, int, int, int]
Speeds = dict[str, float]  # TFLOP/s by kernel


def main(rt: Runtime, report: Report, route: Route, speeds: dict[Shape, Speeds]) -> None:
    """Print TFLOP/s of whole products by a route, splitting included, and add them to `speeds`.

    Every kernel of a profile must also give the first one's bits, at sizes that no CPU replays
    in the time there is.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    report.say(f"products by {route}: TFLOP/s with the splitting, and times cuBLAS FP32")
    for shape in SHAPES:
        _measure(rt, report, shape, route, speeds.setdefault(shape, {}))


def fastest(report: Report, speeds: dict[Shape, Speeds]) -> None:
    """Print for each profile and shape the fastest kernel of each route: which one pays."""
    report.say("fastest kernel of each route, TFLOP/s")
    for profile in TILES:
        for shape, found in speeds.items():
            _fastest(report, profile, shape, found)


def _measure(rt: Runtime, report: Report, shape: Shape, route: Route, speeds: Speeds) -> None:
    batch, m, n, k = shape
    a = torch.randn(batch, m, k, device=rt.torch_device)
    b = torch.randn(batch, k, n, device=rt.torch_device)
    for name, run in _rows(rt, a, b, route):
        title = f"{name} {_named(shape)}"
        time = report.time(title, run, rt.deferred_checks)
        if time is None:
            continue
        speeds[name] = 2e-9 * batch * m * n * k / time
        ratio = f"{speeds[name] / speeds[PLAIN]:6.2f}x" if PLAIN in speeds else ""
        report.say(f"  {title:56} {speeds[name]:8.1f} {ratio}")
    for profile in TILES:
        name = f"bits of {profile} by {route}, {_named(shape)}"
        report.attempt(name, partial(_compare_bits, rt, a, b, profile, route))


def _compare_bits(rt: Runtime, a: Tensor, b: Tensor, profile: str, route: Route) -> None:
    first, *others = tiles_for(profile, rt.device.capability)
    expected = gemm(rt, a, b, profile, tile=first).view(torch.int32)
    for tile in (t for t in others if t.route == route):
        found = gemm(rt, a, b, profile, tile=tile).view(torch.int32)
        different = int((found != expected).sum())
        if different:
            raise ArithmeticError(f"{tile.kernel} differs from {first.kernel} in {different:,}")


def _rows(
    rt: Runtime, a: Tensor, b: Tensor, route: Route
) -> Iterator[tuple[str, Callable[[], object]]]:
    if route == "mma":
        yield PLAIN, partial(torch.matmul, a, b)
        yield "cuBLAS bf16", partial(torch.matmul, a.bfloat16(), b.bfloat16())
        if 2 * a.numel() * b.shape[-1] <= SLOW_LIMIT:
            yield "gemm_fp32", partial(gemm, rt, a, b, "fp32")
    for profile in TILES:
        tiles = tiles_for(profile, rt.device.capability)
        for tile in (t for t in tiles if t.route == route):
            yield tile.kernel, partial(gemm, rt, a, b, profile, tile=tile)


def _named(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def _fastest(report: Report, profile: str, shape: Shape, speeds: Speeds) -> None:
    """Print the fastest kernel of each route, and how they compare."""
    best = []
    for route in ROUTES:
        names = [t.kernel for t in TILES[profile] if t.route == route and t.kernel in speeds]
        best += [max(names, key=speeds.__getitem__)] if names else []
    if not best:
        return
    listed = ", ".join(f"{name} {speeds[name]:.1f}" for name in best)
    gain = f"  wgmma / mma = {speeds[best[1]] / speeds[best[0]]:.2f}" if len(best) > 1 else ""
    report.say(f"  {_named(shape):24} {listed}{gain}")
