"""The GPU as a black box, through CuPy: one mma.sync instruction at a time.

The kernels (`cuda_source`) are compiled at run time for the GPU that is there. They are checked
to compile; no machine with a GPU has run them yet. wgmma and tcgen05, which take operands
from shared memory by descriptor, are not among them.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np

from emulator_ext.probe.cuda_source import KERNEL, Shape, shapes, source
from emulator_ext.probe.device import Instruction
from emulator_ext.probe.errors import DeviceMissingError
from emulator_ext.probe.formats import Bits

_THREADS: Final = 128
_WARP: Final = 32


class CudaDevice:
    """One mma.sync instruction of one GPU."""

    def __init__(self, cupy: Any, name: str, capability: int, shape: Shape) -> None:
        self._cupy = cupy
        self._shape = shape
        self._kernel: Any = None
        self.capability = capability
        self.name = name
        self.instruction: Instruction = shape.instruction

    def mma(self, a: Bits, b: Bits, c: Bits) -> Bits:
        """Return d = c + sum of a * b, register bits; a, b [n, K], c [n] -> [n].

        Raises:
            DeviceMissingError: the instruction does not compile, or the GPU fails.

        """
        cupy, inputs = self._cupy, len(c)
        words = np.uint64 if self._shape.layout == "double" else np.uint32
        try:
            if self._kernel is None:
                module = cupy.RawModule(code=source(self._shape))
                self._kernel = module.get_function(KERNEL)
            left = cupy.asarray(np.ascontiguousarray(a).view(words))
            right = cupy.asarray(np.ascontiguousarray(b).view(words))
            start, result = cupy.asarray(c), cupy.empty(inputs, c.dtype)
            blocks = -(-inputs * _WARP // _THREADS)
            arguments = (left, right, start, result, np.int32(inputs))
            self._kernel((blocks,), (_THREADS,), arguments)
            answer: Bits = cupy.asnumpy(result)
        except Exception as error:  # CuPy's compiler and driver errors share no base class
            first = (str(error).splitlines() or [type(error).__name__])[0]
            msg = f"{self.name}: {self.instruction.label}: {first}"
            raise DeviceMissingError(msg) from error
        return answer


def open_cuda_devices(index: int = 0) -> list[CudaDevice]:
    """Return every mma.sync instruction of a GPU as a device of its own.

    Args:
        index: number of the GPU.

    Raises:
        DeviceMissingError: no CuPy, no GPU, or none with tensor cores.

    """
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        msg = "probing a GPU needs CuPy: install the extra 'gpu' (CUDA 12) or 'gpu13' (CUDA 13)"
        raise DeviceMissingError(msg) from error
    try:
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        cupy.cuda.Device(index).use()
    except Exception as error:  # no driver, no device: CuPy's own classes
        first = (str(error).splitlines() or [type(error).__name__])[0]
        msg = f"no GPU {index}: {first}"
        raise DeviceMissingError(msg) from error
    name = properties["name"]
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
    capability = 10 * int(properties["major"]) + int(properties["minor"])
    found = [CudaDevice(cupy, text, capability, shape) for shape in shapes(capability)]
    if not found:
        msg = f"{text}: compute capability {capability / 10} has no tensor core instructions here"
        raise DeviceMissingError(msg)
    return found
