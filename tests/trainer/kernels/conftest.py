"""The kernels on the host: built once per change of their sources, kept in `build/`."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainer.executor
from tests.trainer.kernels.shim.host import SHIM, STEP, HostDevice, build
from trainer.kernels.device import Runtime
from trainer.kernels.operators import IMPLEMENTATIONS
from trainer.kernels.sources import CUDA_FOLDER, PINNED_INCLUDE, source_files

_MARGIN = 64  # bytes on both sides of every allocation
_PATTERN = 0xA5


class GuardedRuntime(Runtime):
    """Surrounds every allocation with a pattern, and fills it with NaN until it is written."""

    def __init__(self, device: HostDevice) -> None:
        super().__init__(device)
        self._margins: list[np.ndarray] = []

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Allocate between two margins."""
        size = torch.Size(shape).numel() * dtype.itemsize
        memory = np.full(size + 2 * _MARGIN, _PATTERN, np.uint8)
        self._margins += [memory[:_MARGIN], memory[_MARGIN + size :]]
        # From numpy, so that the tensor starts its own storage, as torch.empty's does.
        inside = torch.from_numpy(memory[_MARGIN : _MARGIN + size])
        return inside.fill_(0xFF).view(dtype).view(shape)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Allocate zeros between two margins."""
        return self.empty(*shape, dtype=dtype).zero_()

    def require_margins(self) -> None:
        """Fail if a kernel wrote outside an allocation."""
        assert all((margin == _PATTERN).all() for margin in self._margins)


def break_kernel(rt: GuardedRuntime, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let one kernel fail as a driver would report it."""
    launch = rt.device.launch

    def broken(kernel: str, *rest: Any) -> None:
        if kernel == name:
            raise RuntimeError("illegal instruction\nand more")
        launch(kernel, *rest)

    monkeypatch.setattr(rt.device, "launch", broken)


def _sources() -> list[Path]:
    folders = (CUDA_FOLDER, SHIM, PINNED_INCLUDE / "bitwitness")
    return [*sorted(p for f in folders for p in f.iterdir() if p.is_file()), STEP]


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """All kernels as a host library, and those that only tests launch."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in _sources())).hexdigest()
    folder = Path(__file__).parents[3] / "build" / "kernels-on-host" / digest[:16]
    done = folder / "kernels.so"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        build(folder, done, [*source_files(), *sorted(SHIM.glob("*.cu"))])
    return ctypes.CDLL(str(done))


@pytest.fixture
def on_host(library: ctypes.CDLL) -> Callable[..., GuardedRuntime]:
    """Make a runtime of an architecture and of one order of threads."""

    def make(arch: str = "hopper", seed: int = 0) -> GuardedRuntime:
        return GuardedRuntime(HostDevice(library, arch, seed))

    return make


@pytest.fixture
def use_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[GuardedRuntime], None]:
    """Let the executor run pinned operators through the kernels instead of torch's dispatcher."""
    plain = trainer.executor._callable

    def install(rt: GuardedRuntime) -> None:
        def choose(op: str) -> Callable[..., Any]:
            namespace, _, name = op.partition("::")
            if namespace != "bitwitness":
                return plain(op)
            return functools.partial(IMPLEMENTATIONS[name], rt)

        monkeypatch.setattr(trainer.executor, "_callable", choose)

    return install
