"""The kernel sources: where they are, which kernels they define, how they are compiled.

The options are NUMERICS 3's: no contraction, no flushing, IEEE division and square root.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import emulator_ext

CUDA_FOLDER: Final = Path(__file__).parent / "cuda"
# The pinned scalar functions are one header for both sides.
PINNED_INCLUDE: Final = Path(emulator_ext.__file__).parent / "include"

OPTIONS: Final = (
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    f"-I{CUDA_FOLDER}",
    f"-I{PINNED_INCLUDE}",
)

# m16n8k16 on f16 and bf16, and cp.async, exist from compute capability 8.0 on.
MINIMUM_CAPABILITY: Final = (8, 0)

# Sources for one capability alone: instructions with an "a" in their architecture's name are
# neither in an older GPU nor in a newer one.
ARCHITECTURE_SPECIFIC: Final = {"gemm_wgmma": (9, 0)}

# KERNEL(threads, name)(...) of device.cuh, or an instance of a source's own X_KERNEL(name, ...).
_DEFINITION = re.compile(r"^KERNEL\(\w+, (\w+)\)|^[A-Z0-9_]+_KERNEL\((\w+),", re.MULTILINE)


def source_files() -> list[Path]:
    """Return the sources, each compiled as a module of its own."""
    return sorted(CUDA_FOLDER.glob("*.cu"))


@cache
def kernels_of(path: Path) -> tuple[str, ...]:
    """Return the names of the kernels that a source defines, in order."""
    matches = _DEFINITION.finditer(path.read_text(encoding="ascii"))
    return tuple(match[1] or match[2] for match in matches)


@cache
def source_of(kernel: str) -> Path:
    """Return the source that defines a kernel; KeyError if there is none."""
    for path in source_files():
        if kernel in kernels_of(path):
            return path
    raise KeyError(kernel)


def architecture_of(source: Path, capability: tuple[int, int]) -> str:
    """Return NVRTC's name of what a source is compiled for on a GPU.

    Raises:
        ValueError: the source is for another capability alone.

    """
    only = ARCHITECTURE_SPECIFIC.get(source.stem)
    if only not in {None, capability}:
        raise ValueError(f"{source.name} is for compute capability {only} alone")
    return "sm_{}{}{}".format(*capability, "" if only is None else "a")
