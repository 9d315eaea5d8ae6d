"""`benchmarks.gpu` on the host shim: every part runs, and nothing that fails stops the rest."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from benchmarks.gpu import __main__ as benchmarks
from benchmarks.gpu import hashing, products, step, timing
from benchmarks.gpu.timing import Report
from tests.trainer.kernels.conftest import GuardedRuntime, break_kernel
from trainer.kernels.errors import EnvironmentMissingError
from trainer.kernels.tiles import TILES

OnHost = Callable[..., GuardedRuntime]

SMALL_MODEL = {
    "layers": "1", "width": "8", "heads": "2", "hidden": "16", "context": "4", "vocab": "256",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small operands, and one run instead of events of a GPU."""

    def once(action: Callable[[], object]) -> float:
        action()
        return 1.0

    monkeypatch.setattr(timing, "milliseconds", once)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(products, "SHAPES", ((2, 3, 4, 40),))
    monkeypatch.setattr(hashing, "SHAPE", (3, 4, 5))
    monkeypatch.setattr(step, "MODEL", SMALL_MODEL)
    monkeypatch.setattr(step, "BATCH", 1)
    # The peer is torch's own, on a GPU alone.
    monkeypatch.setattr(step, "_plain", lambda *_arguments: lambda: None)


def measure(rt: GuardedRuntime, *parts: str, seconds: float = 60) -> int:
    report = Report(deadline=time.monotonic() + seconds)
    return benchmarks.measure(rt, "hopper", report, parts or benchmarks.PARTS)


def test_every_part_prints_its_lines(on_host: OnHost, capsys: pytest.CaptureFixture[str]) -> None:
    """Every kernel, profile and peer has a line, Hopper's own route comes last, and all is well."""
    rt = on_host()
    assert measure(rt) == 0
    printed = capsys.readouterr().out
    mma, wgmma = printed.split("products by wgmma")
    for tile in (tile for tiles in TILES.values() for tile in tiles):
        assert f"  {tile.kernel} 2 x 3 x 4 x 40" in (wgmma if tile.route == "wgmma" else mma)
    assert all(f"  {profile}, committed" in mma for profile in ("heal", "bf16", "exact", "fp32"))
    assert wgmma.count(", committed") == 2
    assert "root, with its return" in mma
    assert wgmma.count("wgmma / mma = ") == 2
    rt.require_margins()


def test_a_kernel_that_fails_is_reported_and_the_rest_goes_on(
    on_host: OnHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name and error are printed where it failed and at the end; the exit code is 1."""
    rt = on_host()
    break_kernel(rt, monkeypatch, "gemm_exact_64x64")
    assert measure(rt, "products") == 1
    printed = capsys.readouterr().out
    assert "gemm_exact_64x64 2 x 3 x 4 x 40: FAILED  RuntimeError: illegal" in printed
    assert "  gemm_wgmma_bf16_64x128 2 x 3 x 4 x 40" in printed
    assert printed.splitlines()[-1].startswith("FAILED: gemm_exact_64x64 2 x 3 x 4 x 40")


def test_kernels_that_disagree_fail(
    on_host: OnHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bit of one kernel that is not the first kernel's is a failure, with the number."""
    plain = products.gemm

    def odd(*args: object, **named: object) -> torch.Tensor:
        d = plain(*args, **named)
        if "wgmma_heal_64x64" in str(named.get("tile")):
            d.view(torch.int32)[0, 0, 0] ^= 1
        return d

    monkeypatch.setattr(products, "gemm", odd)
    assert measure(on_host(), "products") == 1
    printed = capsys.readouterr().out
    assert "gemm_wgmma_heal_64x64 differs from gemm_heal_96x128 in 1" in printed
    assert printed.count("FAILED") == 2


def test_nothing_begins_when_time_is_up(
    on_host: OnHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is left out is named."""
    assert measure(on_host(), seconds=-1) == 0
    printed = capsys.readouterr().out
    assert "left out, time was up: products, step, hashing, products, step" in printed


def test_a_lost_device_ends_the_run(
    on_host: OnHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When even waiting fails after a failure, nothing more is tried, and the rest is printed."""

    def fail(*_arguments: object) -> None:
        raise RuntimeError("illegal address")

    rt = on_host()
    monkeypatch.setattr(rt.device, "launch", fail)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    assert measure(rt) == 1
    printed = capsys.readouterr().out
    assert "the device is lost" in printed
    assert printed.count("FAILED") == 2
    assert "cuBLAS FP32 2 x 3 x 4 x 40" in printed


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a GPU one line and 3; an unknown part is refused."""

    def refuse() -> None:
        raise EnvironmentMissingError("device cuda: CuPy is missing")

    monkeypatch.setattr(benchmarks, "require", refuse)
    assert benchmarks.main([]) == 3
    assert capsys.readouterr().err == "error: device cuda: CuPy is missing\n"
    with pytest.raises(SystemExit):
        benchmarks.main(["prodcuts"])
    assert "no such part: prodcuts" in capsys.readouterr().err


def test_a_slow_action_is_repeated_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a second has passed, what has been measured is enough."""
    monkeypatch.undo()
    runs = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "_once", lambda action: action() or 2.5)
    assert timing.milliseconds(lambda: runs.append(1)) == 2.5
    assert len(runs) == 13
    clock = iter(range(100))
    monkeypatch.setattr(timing.time, "monotonic", lambda: 0.6 * next(clock))
    runs.clear()
    assert timing.milliseconds(lambda: runs.append(1)) == 2.5
    assert len(runs) == 3
