"""`Device` on a real GPU: NVRTC and the driver through CuPy, memory and streams from torch.

Tensors are passed by address, so nothing is copied; kernels go to torch's current stream, in order
with torch's own. CuPy's `RawModule(code=...)` is not used: it appends `-ftz=true` to whatever
options it is given, which would flush the subnormals that NUMERICS 3 keeps. Sources are compiled
here, with exactly `sources.OPTIONS`, and CuPy loads the result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.kernels.device import Grid, Scalar
from trainer.kernels.errors import EnvironmentMissingError, KernelError
from trainer.kernels.sources import MINIMUM_CAPABILITY, OPTIONS, architecture_of, source_of

# Beyond this a kernel must ask for dynamic shared memory explicitly (CUDA programming guide).
DEFAULT_SHARED = 48 * 1024


class CupyDevice:
    """One GPU, compiling each source when a kernel of it is first launched.

    Raises:
        EnvironmentMissingError: no CuPy, no GPU that it can use, or one that is too old.

    """

    def __init__(self, index: int = 0) -> None:
        self._cupy = import_cupy()
        if not torch.cuda.is_available():
            raise EnvironmentMissingError("device cuda: torch sees no usable GPU")
        capability = torch.cuda.get_device_capability(index)
        if capability < MINIMUM_CAPABILITY:
            found, least = (".".join(map(str, c)) for c in (capability, MINIMUM_CAPABILITY))
            msg = f"device cuda: compute capability {found} is below {least}"
            raise EnvironmentMissingError(msg)
        self._capability = capability
        self._device = torch.device("cuda", index)
        self._kernels: dict[str, Any] = {}
        self._modules: dict[Path, Any] = {}
        self._shared: dict[str, int] = {}
        self._streams: dict[int, Any] = {}
        # CuPy may read a cubin again whenever it loads a kernel of it.
        self._folder = tempfile.TemporaryDirectory(prefix="bitwitness-kernels-")

    @property
    def torch_device(self) -> torch.device:
        """The GPU."""
        return self._device

    @property
    def capability(self) -> tuple[int, int]:
        """The GPU's compute capability."""
        return self._capability

    def launch(
        self, kernel: str, grid: Grid, block: int, arguments: Sequence[Scalar], shared: int
    ) -> None:
        """Enqueue one kernel on torch's current stream."""
        function = self._kernels.get(kernel)
        if function is None:
            function = self._kernels[kernel] = self._load(kernel)
        if shared > self._shared.get(kernel, DEFAULT_SHARED):
            function.max_dynamic_shared_size_bytes = self._shared[kernel] = shared
        with self._cupy.cuda.Device(self._device.index), self._stream():
            function(grid, (block, 1, 1), tuple(arguments), shared_mem=shared)

    def _stream(self) -> Any:
        """Return torch's current stream as CuPy's."""
        handle = torch.cuda.current_stream(self._device).cuda_stream
        if handle not in self._streams:
            self._streams[handle] = _wrap_stream(self._cupy, handle)
        return self._streams[handle]

    def _load(self, kernel: str) -> Any:
        source = source_of(kernel)
        with self._cupy.cuda.Device(self._device.index):
            if source not in self._modules:
                architecture = architecture_of(source, self._capability)
                path = Path(self._folder.name) / f"{source.stem}.cubin"
                path.write_bytes(compile_with_cupy(self._cupy, source, architecture))
                self._modules[source] = self._cupy.RawModule(path=str(path))
            return self._modules[source].get_function(kernel)


class _ForeignStream:
    """A stream handle behind the CUDA stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:  # the protocol's name
        return 0, self._handle


def _wrap_stream(cupy: Any, handle: int) -> Any:
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_ForeignStream(handle))
    return cupy.cuda.ExternalStream(handle)  # CuPy 13


def import_cupy() -> Any:
    """Return CuPy; EnvironmentMissingError if it is not installed or does not load."""
    try:
        import cupy
    except Exception as error:  # a broken CUDA install fails in many ways
        msg = f"device cuda: CuPy is missing (pip install 'bitwitness[gpu]' or '[gpu13]'): {error}"
        raise EnvironmentMissingError(msg.splitlines()[0]) from error
    return cupy


def compile_with_cupy(cupy: Any, source: Path, architecture: str) -> bytes:
    """Compile one kernel source to a cubin for an architecture such as "sm_90".

    Raises:
        KernelError: NVRTC refuses the source; the message carries its log.

    """
    nvrtc = cupy.cuda.nvrtc
    program = nvrtc.createProgram(source.read_text(encoding="ascii"), source.name, (), ())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}", *OPTIONS))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise KernelError(f"{source.name}: {nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)
