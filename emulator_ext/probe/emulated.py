"""The project's own emulator as a black box: the probe must recover its table."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

import emulator_ext
from emulator_ext import isa
from emulator_ext.errors import UnsupportedError
from emulator_ext.probe.device import Instruction
from emulator_ext.probe.formats import Bits, register_dtype

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "s32": np.dtype(np.int32),
}


class EmulatedDevice:
    """One instruction of one emulated architecture."""

    def __init__(self, arch: str, instruction: Instruction) -> None:
        self._arch = arch
        self.instruction = instruction

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"emulated {self._arch}"

    def mma(self, a: Bits, b: Bits, c: Bits) -> Bits:
        """Return d = c + sum of a * b, register bits; a, b [n, K], c [n] -> [n].

        Raises:
            UnsupportedError: the architecture has no such instruction.

        """
        instruction = self.instruction
        result = emulator_ext.dot(
            a.view(_DTYPES[instruction.a]),
            b.view(_DTYPES[instruction.b]),
            c.view(_DTYPES[instruction.accumulator]),
            arch=self._arch,
            acc=instruction.accumulator,
            instruction=instruction.kind,
        )
        return np.asarray(result).view(register_dtype(instruction.accumulator))


_K: Final = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "f64": 4, "s8": 32, "u8": 32}
_SHORT_K: Final = {("volta", "f16"): 4, ("turing", "f16"): 8}


def emulated_instructions(arch: str) -> tuple[Instruction, ...]:
    """Return every instruction of an emulated architecture, with the K of the hardware.

    Raises:
        UnsupportedError: no such architecture.

    """
    if arch not in isa.architectures():
        msg = f"unknown architecture {arch!r}; known are {', '.join(isa.architectures())}"
        raise UnsupportedError(msg)
    rows = (entry.split() for entry in isa.existing(arch))
    return tuple(
        Instruction(
            a=dtype, b=dtype, accumulator=acc, k=_SHORT_K.get((arch, dtype), _K[dtype]), kind=kind
        )
        for kind, dtype, acc in rows
    )
