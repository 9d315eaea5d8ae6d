"""NVRTC and nvdisasm from PyPI through ctypes and subprocess: compiling needs no GPU."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import nvidia

# Components of NVIDIA's wheels share one namespace package.
_ROOTS = [Path(root) for root in nvidia.__path__]


class CompileError(Exception):
    """NVRTC refused a source; carries its log."""


@cache
def _library() -> ctypes.CDLL:
    (path,) = {p for root in _ROOTS for p in root.glob("*/lib/libnvrtc.so.*")}
    return ctypes.CDLL(str(path))


def compile_cubin(source: str, options: tuple[str, ...], name: str = "kernel.cu") -> bytes:
    """Compile CUDA C++ to a cubin; `options` must name a real architecture (sm_XX)."""
    return compile_with_log(source, options, name)[0]


def compile_with_log(source: str, options: tuple[str, ...], name: str) -> tuple[bytes, str]:
    """Compile CUDA C++ to a cubin; return it and what NVRTC and ptxas said."""
    nvrtc, program = _library(), ctypes.c_void_p()
    code = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), name.encode(), 0, None, None
    )
    assert code == 0
    try:
        encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        if nvrtc.nvrtcCompileProgram(program, len(options), encoded):
            raise CompileError(_log(nvrtc, program))
        return _bytes(nvrtc, "CUBIN", program), _log(nvrtc, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _log(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    return _bytes(nvrtc, "ProgramLog", program).rstrip(b"\0").decode()


def _bytes(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, buffer) == 0
    return buffer.raw


def disassemble(cubin: bytes, folder: Path) -> dict[str, list[str]]:
    """Return each kernel's instructions, opcode and operands, in order."""
    (tool,) = {p for root in _ROOTS for p in root.glob("*/bin/nvdisasm")}
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    listing = subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True).stdout
    sections = re.split(r"^\s*\.section\s+", listing, flags=re.MULTILINE)
    return {
        section.split(",")[0].removeprefix(".text."): re.findall(
            r"^\s+/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;", section, flags=re.MULTILINE
        )
        for section in sections
        if section.startswith(".text.")
    }


def opcodes(instructions: list[str]) -> Counter[str]:
    """Count opcodes with their modifiers, predicates stripped."""
    return Counter(re.sub(r"^@!?\w+\s+", "", line).split()[0] for line in instructions)
