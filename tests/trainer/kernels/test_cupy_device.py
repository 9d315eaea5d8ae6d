"""What `CupyDevice` asks of CuPy: NVRTC is real here, the driver is not."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.kernels.nvrtc import compile_cubin
from trainer.kernels.cupy_device import CupyDevice
from trainer.kernels.tiles import TILES

Options = list[tuple[str, ...]]


def nvrtc(asked: Options) -> SimpleNamespace:
    """Stand in for CuPy's binding of NVRTC, noting the options of every compilation."""

    def compile_program(program: list[Any], options: tuple[str, ...]) -> None:
        asked.append(options)
        program.append(compile_cubin(program[0], options, program[1]))

    return SimpleNamespace(
        NVRTCError=RuntimeError,
        createProgram=lambda source, name, *_headers: [source, name],
        compileProgram=compile_program,
        getCUBIN=lambda program: program[2],
        destroyProgram=lambda program: program.clear(),
    )


class Kernel(SimpleNamespace):
    """A kernel that notes its launches instead of running."""

    max_dynamic_shared_size_bytes = 48 * 1024

    def __call__(self, grid: Any, block: Any, arguments: Any, *, shared_mem: int) -> None:
        """Note a launch that a driver would take."""
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        self.launches.append((grid, block, arguments, shared_mem))


def load(*, path: str) -> SimpleNamespace:
    """Load a cubin as CuPy's RawModule does."""
    assert Path(path).read_bytes().startswith(b"\x7fELF")
    return SimpleNamespace(get_function=lambda _name: Kernel(launches=[]))


def stream_of(stream: Any) -> AbstractContextManager[None]:
    """Take a foreign stream by CUDA's protocol."""
    assert stream.__cuda_stream__() == (0, 7)
    return nullcontext()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Options:
    """Note the options of every compilation for a Hopper GPU that is not there."""
    options: Options = []
    cuda = SimpleNamespace(
        nvrtc=nvrtc(options),
        Device=lambda _index: nullcontext(),
        Stream=SimpleNamespace(from_external=stream_of),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, RawModule=load))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _index: (9, 0))
    stream = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)
    return options


def test_each_source_is_compiled_once_and_for_what_it_needs(asked: Options) -> None:
    """On Hopper wgmma is compiled for sm_90a, the rest for sm_90; shared memory is asked for."""
    device = CupyDevice()
    assert device.capability == (9, 0)
    for tile in (*TILES["heal"], *TILES["bf16"], *TILES["heal"]):
        device.launch(tile.kernel, (1, 2, 3), tile.threads, [np.int32(5)], tile.shared)
        launches = device._kernels[tile.kernel].launches
        assert launches[-1] == ((1, 2, 3), (tile.threads, 1, 1), (5,), tile.shared)
    device._folder.cleanup()
    architectures = [options[0].removeprefix("--gpu-architecture=") for options in asked]
    assert architectures == ["sm_90", "sm_90a"]
    assert all("--ftz=false" in options for options in asked)
