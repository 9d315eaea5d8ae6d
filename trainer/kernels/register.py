"""The CUDA side of `torch.ops.bitwitness`: one implementation per operator, over the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import trainer.ops  # noqa: F401  # defines the operators
from emulator_ext import UnsupportedError
from trainer.kernels.cupy_device import CupyDevice
from trainer.kernels.device import Runtime
from trainer.kernels.errors import EnvironmentMissingError
from trainer.kernels.operators import IMPLEMENTATIONS
from trainer.ops.registry import NAMESPACE

# What `arch` of a configuration must be on a GPU of a given compute capability: the row of
# NUMERICS 1.1 that its tensor cores follow.
ARCHITECTURES = {
    (8, 0): "ampere",
    (8, 6): "ampere",
    (8, 7): "ampere",
    (8, 9): "ada",
    (9, 0): "hopper",
    (10, 0): "blackwell",
    (10, 3): "blackwell",
    (12, 0): "rtx_blackwell",
    (12, 1): "rtx_blackwell",
}

# Profiles whose bits depend on the tensor core's own rounding; the others are the same anywhere.
ARCHITECTURE_BOUND = frozenset({"heal", "bf16"})


@cache
def runtime(index: int = 0) -> Runtime:
    """Return the runtime of a GPU, one per process.

    Raises:
        EnvironmentMissingError: CuPy or the GPU is missing.

    """
    return Runtime(CupyDevice(index))


def available() -> bool:
    """Whether `require` would succeed."""
    try:
        runtime()
    except EnvironmentMissingError:
        return False
    return True


def require() -> Runtime:
    """Make `torch.ops.bitwitness.*` work on CUDA tensors, and return the GPU's runtime.

    Raises:
        EnvironmentMissingError: one line saying what is missing; the command line exits with 3.

    """
    rt = runtime(_index())
    _install()
    return rt


def architecture(index: int = 0) -> str:
    """Return the architecture of NUMERICS 1.1 that a GPU's tensor cores follow.

    Raises:
        EnvironmentMissingError: the compute capability is not one that the table knows.

    """
    capability = torch.cuda.get_device_capability(index)
    if capability not in ARCHITECTURES:
        msg = f"device cuda: no row of the numerics table for compute capability {capability}"
        raise EnvironmentMissingError(msg)
    return ARCHITECTURES[capability]


def _index() -> int:
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


@cache
def _install() -> torch.library.Library:
    """Register every operator's CUDA implementation; the library lives as long as the process."""
    library = torch.library.Library(NAMESPACE, "IMPL", "CUDA")  # type: ignore[no-untyped-call]
    for name, function in IMPLEMENTATIONS.items():
        library.impl(name, _on_current_device(name, function))  # type: ignore[no-untyped-call]
    return library


def _on_current_device(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        index = _index()
        if name == "gemm":
            require_arch(profile=args[2], wanted=args[3], found=architecture(index))
        return function(runtime(index), *args)

    return run


def require_arch(*, profile: str, wanted: str, found: str) -> None:
    """Refuse a product whose bits another GPU's tensor cores define.

    Raises:
        UnsupportedError: `profile` depends on the architecture, and `found` is not `wanted`.

    """
    if profile in ARCHITECTURE_BOUND and wanted != found:
        msg = f"gemm {profile}: arch {wanted!r} was asked for, this GPU is {found!r}"
        raise UnsupportedError(msg)
