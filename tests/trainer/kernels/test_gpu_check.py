"""`gpu_check` itself, on the host shim: it must pass when all is well and fail on one bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cluster.config import load_job
from tests.conftest import tiny_document
from tests.trainer.kernels.conftest import GuardedRuntime, break_kernel
from trainer.config import RunConfig
from trainer.kernels import gpu_check
from trainer.kernels.check_cases import PROFILES, Tally
from trainer.kernels.check_runs import CACHES
from trainer.kernels.errors import EnvironmentMissingError
from trainer.kernels.operators import IMPLEMENTATIONS

OnHost = Callable[..., GuardedRuntime]

CONFIGS = Path(__file__).parents[3] / "configs"
SMALL = {"least_outputs": 0, "shapes": ((3, 70, 33),), "rows": 3}


def run(rt: GuardedRuntime) -> bool:
    config = RunConfig.from_document(tiny_document(model={"layers": 1, "context": 4}))
    return gpu_check.check(rt, "hopper", config, steps=1, **SMALL)


def test_equal_devices_pass(on_host: OnHost, capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels on the host pass; every operator, profile and root has its line."""
    rt = on_host()
    assert run(rt)
    printed = capsys.readouterr().out
    assert "DIFFER" not in printed
    assert " 0 differ" in printed
    assert all(f"with {profile} on hopper" in printed for profile in PROFILES)
    assert "on hopper, int16 attention" in printed
    assert all(f"generating with tiny on hopper, {cache} cache" in printed for cache in CACHES)
    assert all(f"  {name}" in printed for name in IMPLEMENTATIONS)
    rt.require_margins()


def test_another_architecture_is_found(on_host: OnHost) -> None:
    """A device whose tensor cores are not those of the declared row fails."""
    assert not run(on_host("ampere"))


def test_a_part_that_fails_is_reported_and_the_rest_goes_on(
    on_host: OnHost,
    use_kernels: Callable[[GuardedRuntime], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A kernel that cannot run fails the check by its name; everything after it is compared."""
    rt = on_host()
    use_kernels(rt)
    break_kernel(rt, monkeypatch, "gemm_wgmma_heal_64x64")
    assert not run(rt)
    printed = capsys.readouterr().out
    assert "gemm_wgmma_heal_64x64 NN 3 x 70 x 33         FAILED  RuntimeError: illegal" in printed
    assert "training with heal by wgmma                  FAILED" in printed
    assert "with bf16 on hopper" in printed.split("training with heal by wgmma")[1]
    assert " 0 differ, 5 failed" in printed


def test_hopper_compares_both_routes(on_host: OnHost, capsys: pytest.CaptureFixture[str]) -> None:
    """On Hopper products and training run by wgmma too, and last; elsewhere nothing does."""
    rt = on_host()
    assert run(rt)
    before, after = capsys.readouterr().out.split("by wgmma\n")
    assert "gemm_wgmma" not in before
    assert all(after.count(f"gemm_wgmma_{profile}") >= 6 for profile in ("heal", "bf16"))
    assert after.count("training") == 2
    assert any(name.startswith("gemm_wgmma_bf16") for name in rt.device.launched)


def test_one_differing_bit_fails() -> None:
    """The tally counts single bits and shapes that differ."""
    tally = Tally()
    x = torch.ones(3, 4)
    tally.compare("same", x, x.clone())
    assert (tally.outputs, tally.different) == (12, 0)
    y = x.clone()
    y.view(torch.int32)[1, 2] ^= 1
    tally.compare("one bit", y, x)
    assert (tally.outputs, tally.different) == (24, 1)
    tally.compare("zero's sign", torch.zeros(1), -torch.zeros(1))
    tally.compare("shape", torch.ones(2), x)
    assert tally.different == 1 + 1 + 12


def test_enough_outputs_are_compared(on_host: OnHost) -> None:
    """Operators run again with more rows until the least number of outputs is reached."""
    rt = on_host()
    config = RunConfig.from_document(tiny_document(model={"layers": 1, "context": 4}))
    shapes = ((1, 1, 1),)
    gpu_check.check(rt, "hopper", config, 0, least_outputs=800_000, shapes=shapes, rows=1)
    assert rt.device.launched.count("adamw") > 1


def test_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad configuration is 2, a machine without a GPU 3, each with one line."""
    assert gpu_check.main(["--config", str(tmp_path / "absent.yaml")]) == 2
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [\n", encoding="utf-8")
    assert gpu_check.main(["--config", str(broken)]) == 2
    assert capsys.readouterr().err.count("\n") == 2

    def refuse() -> None:
        raise EnvironmentMissingError("device cuda: CuPy is missing")

    monkeypatch.setattr(gpu_check, "require", refuse)
    assert gpu_check.main([]) == 3
    assert capsys.readouterr().err == "error: device cuda: CuPy is missing\n"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_is_read_as_the_cluster_reads_it(path: Path) -> None:
    """Scalars read as strings give the configuration that a run of the file would commit."""
    assert gpu_check.read_config(path) == load_job(path).run


def test_neither_ray_nor_zarr_is_needed() -> None:
    """Check and benchmarks import where there is only torch, CuPy and small packages."""
    absent = ("ray", "zarr", "obstore", "cryptography", "jinja2", "rich", "typer", "safetensors")
    blocked = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:]));"
    modules = "trainer.kernels.gpu_check, benchmarks.gpu.__main__"
    command = [sys.executable, "-c", f"{blocked} import {modules}", *absent]
    subprocess.run(command, check=True, cwd=CONFIGS.parent)
