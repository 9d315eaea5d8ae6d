"""What `device: cuda` needs, and what is said when it is not there."""

from __future__ import annotations

import sys

import pytest
import torch

import trainer.kernels
from emulator_ext import UnsupportedError
from trainer.kernels.cupy_device import CupyDevice
from trainer.kernels.errors import EnvironmentMissingError
from trainer.kernels.register import ARCHITECTURES, require_arch
from trainer.kernels.sources import MINIMUM_CAPABILITY, kernels_of, source_files, source_of


def test_without_cupy_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """`E_NO_GPU` names the extras to install, in one line."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    trainer.kernels.runtime.cache_clear()
    with pytest.raises(EnvironmentMissingError, match=r"CuPy is missing.*bitwitness\[gpu\]") as e:
        trainer.kernels.require()
    assert e.value.code == "E_NO_GPU"
    assert "\n" not in str(e.value)
    assert not trainer.kernels.available()


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy alone is not enough."""
    monkeypatch.setitem(sys.modules, "cupy", object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentMissingError, match="torch sees no usable GPU"):
        CupyDevice()


def test_a_gpu_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turing lacks the instructions that the kernels are made of."""
    monkeypatch.setitem(sys.modules, "cupy", object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _index: (7, 5))
    with pytest.raises(EnvironmentMissingError, match=r"compute capability 7\.5 is below 8\.0"):
        CupyDevice()


def test_every_supported_gpu_has_a_row_of_the_table() -> None:
    """Compute capabilities map to architectures that the emulator knows, none below the least."""
    assert min(ARCHITECTURES) == MINIMUM_CAPABILITY
    assert set(ARCHITECTURES.values()) == {"ampere", "ada", "hopper", "blackwell", "rtx_blackwell"}


def test_each_kernel_is_defined_once() -> None:
    """A kernel's name leads to one source."""
    names = [(name, path) for path in source_files() for name in kernels_of(path)]
    assert len({name for name, _ in names}) == len(names) > 20
    assert all(source_of(name) == path for name, path in names)
    with pytest.raises(KeyError):
        source_of("absent")


@pytest.mark.parametrize("profile", ["heal", "bf16"])
def test_another_gpu_s_bits_are_refused(profile: str) -> None:
    """A run for one architecture does not silently take another's tensor cores."""
    require_arch(profile=profile, wanted="hopper", found="hopper")
    with pytest.raises(UnsupportedError, match="'ada' was asked for, this GPU is 'hopper'"):
        require_arch(profile=profile, wanted="ada", found="hopper")


@pytest.mark.parametrize("profile", ["fp32", "exact"])
def test_bits_that_are_the_same_anywhere_run_anywhere(profile: str) -> None:
    """Where no tensor core's rounding shows, any GPU will do."""
    require_arch(profile=profile, wanted="ada", found="hopper")
