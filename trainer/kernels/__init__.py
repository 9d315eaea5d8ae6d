"""CUDA kernels of the pinned operators, and what launches them.

Sources are in `cuda/`, one launcher module beside each. Launchers take and return torch tensors and
run on whatever implements `Device`: `trainer.kernels.cupy_device` on a GPU, a host shim in the
tests. Bits follow NUMERICS 2 and 3 and docs/formats/operators.md; docs/kernels.md describes the
design. Nothing here needs CuPy or a GPU to be imported; `require` says in one line what is missing.
"""

from trainer.kernels.device import Device, Runtime
from trainer.kernels.errors import EnvironmentMissingError, KernelError
from trainer.kernels.register import available, require, runtime

__all__ = [
    "Device",
    "EnvironmentMissingError",
    "KernelError",
    "Runtime",
    "available",
    "require",
    "runtime",
]
