"""The device probe through the kernels, on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.trainer.kernels.test_step import OnHost
from trainer.config import NumericsConfig
from trainer.device_probe import answers, emulated
from trainer.kernels.gemm import gemm


@pytest.mark.parametrize("arch", ["ampere", "hopper"])
@pytest.mark.parametrize("profile", ["heal", "exact"])
def test_kernels_answer_as_the_emulator_does(on_host: OnHost, arch: str, profile: str) -> None:
    """What the GPU's own products are launched as gives the answers that an auditor expects."""
    rt = on_host(arch)

    def multiply(a: np.ndarray, b: np.ndarray, asked: str) -> np.ndarray:
        return gemm(rt, torch.from_numpy(a), torch.from_numpy(b), asked).numpy()

    numerics = NumericsConfig(arch=arch, profile=profile)
    named = {"run_id": "demo-1", "moment": "end", "root": "ab" * 32}
    assert answers(numerics, multiply, **named) == answers(numerics, emulated(arch), **named)
