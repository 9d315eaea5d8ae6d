"""Builds the kernel sources with g++ and runs them on fibres: `Device` without a GPU.

Every `.cu` file is compiled unchanged, as C++, against `host_device.hpp`; the tensor core is the
emulator's scalar step, compiled from its own source.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

import emulator_ext
from trainer.kernels.device import Grid, Scalar
from trainer.kernels.sources import CUDA_FOLDER, PINNED_INCLUDE, kernels_of, source_files

SHIM = Path(__file__).parent
STEP = PINNED_INCLUDE.parent / "src" / "mma_step.cpp"
OPTIONS = ("-std=c++20", "-O2", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
           "-Wno-unknown-pragmas")  # fmt: skip
# The compute capability that goes with an architecture of the emulator.
CAPABILITIES = {"volta": (7, 0), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0),
                "blackwell": (10, 0)}  # fmt: skip


class HostDevice:
    """Runs kernels on the CPU, threads of a block in an order drawn from `seed`.

    `omit` names a synchronising operation, as `sites` does, that kernels then do without.
    """

    torch_device = torch.device("cpu")

    def __init__(
        self, library: ctypes.CDLL, arch: str = "hopper", seed: int = 0, omit: str = ""
    ) -> None:
        self._library = library
        self._seed = seed
        self._omit = omit.encode()
        self.capability = CAPABILITIES[arch]
        step = emulator_ext.numerics(arch, "f16")
        self._tensor_core = (ctypes.c_int * 3)(step.L, step.F, step.e_zero)
        self.launched: list[str] = []

    def launch(
        self, kernel: str, grid: Grid, block: int, arguments: Sequence[Scalar], shared: int
    ) -> None:
        """Run one kernel to its end; RuntimeError says why it could not."""
        cells = [np.array([argument]) for argument in arguments]
        pointers = (ctypes.c_void_p * len(cells))(*[cell.ctypes.data for cell in cells])
        fault = ctypes.create_string_buffer(400)
        failed = self._library.shim_launch(
            kernel.encode(), (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(block, 1, 1),
            ctypes.c_size_t(shared), pointers, ctypes.c_uint64(self._seed), self._tensor_core,
            self._omit, fault, ctypes.c_size_t(len(fault)),
        )  # fmt: skip
        self.launched.append(kernel)
        if failed:
            raise RuntimeError(f"{kernel}: {fault.value.decode()}")

    def sites(self) -> list[str]:
        """Return the synchronising operations that kernels have reached since the last call."""
        buffer = ctypes.create_string_buffer(1 << 16)
        self._library.shim_sites(buffer, ctypes.c_size_t(len(buffer)))
        return buffer.value.decode().splitlines()


def build(folder: Path, out: Path, sources: Sequence[Path] = ()) -> None:
    """Compile kernel sources, all of the package's if none is given, to a shared library."""
    units = {source.stem: _unit(source) for source in sources or source_files()}
    for name in ("fibres", "shim", "wgmma"):
        units[name] = f'#include "{SHIM / name}.cpp"\n'
    units["mma_step"] = f'#include "{STEP}"\n'
    with tempfile.TemporaryDirectory(dir=folder) as work, ThreadPoolExecutor() as pool:
        objects = list(pool.map(lambda unit: _compile(Path(work), *unit), units.items()))
        linked = Path(work) / "linked.so"
        subprocess.run(["g++", "-shared", "-o", linked, *objects], check=True)
        linked.replace(out)  # atomic: another process may be building the same


def _unit(source: Path) -> str:
    """Return a translation unit that includes a kernel source and registers its kernels."""
    lines = [f'#include "{source}"', '#include "registry.hpp"', "namespace {"]
    lines += [
        f'[[maybe_unused]] const bool {name}_added = shim::add("{name}", {name});'
        for name in kernels_of(source)
    ]
    return "\n".join([*lines, "}", ""])


def _compile(folder: Path, name: str, text: str) -> Path:
    unit, out = folder / f"{name}.cpp", folder / f"{name}.o"
    unit.write_text(text, encoding="ascii")
    includes = [f"-I{path}" for path in (SHIM, CUDA_FOLDER, PINNED_INCLUDE)]
    done = subprocess.run(
        ["g++", *OPTIONS, *includes, "-c", unit, "-o", out],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} does not compile on the host:\n{done.stderr[:4000]}")
    return out
