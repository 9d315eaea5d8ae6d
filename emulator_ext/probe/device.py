"""The black box: one matrix instruction seen as independent dot products.

A device takes register bits and returns register bits. It may be a GPU, the emulator, or a
model under test; the probe knows nothing else of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from emulator_ext.probe.errors import ProbeError
from emulator_ext.probe.formats import Bits, register_dtype

MAX_K = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """Operand and accumulator formats of one instruction, and its K.

    Attributes:
        a, b: operand formats: f16, bf16, tf32, e4m3, e5m2, f64, s8 or u8.
        accumulator: f32, f16, f64 or s32; c comes in it and the result goes out in it.
        k: products of one instruction.
        kind: mma, wgmma or tcgen05.

    """

    a: str
    b: str
    accumulator: str
    k: int
    kind: str = "mma"

    def __post_init__(self) -> None:
        """Refuse what no experiment could be built for."""
        for name in (self.a, self.b, self.accumulator):
            register_dtype(name)
        if not 1 <= self.k <= MAX_K:
            msg = f"K must lie in 1..{MAX_K}, not {self.k}"
            raise ProbeError(msg)

    @property
    def label(self) -> str:
        """One word for reports, for example `mma f16*f16+f32 k16`."""
        return f"{self.kind} {self.a}*{self.b}+{self.accumulator} k{self.k}"


@runtime_checkable
class Device(Protocol):
    """A black box that executes one instruction."""

    @property
    def name(self) -> str:
        """What the report calls it, for example the GPU's name."""

    @property
    def instruction(self) -> Instruction:
        """Formats and K."""

    def mma(self, a: Bits, b: Bits, c: Bits) -> Bits:
        """Return d = c + sum of a * b; a, b [n, K], c [n] -> [n], all register bits."""


def ask(device: Device, a: Bits, b: Bits, c: Bits) -> Bits:
    """Run the device and check that its answer has the promised shape and dtype.

    Raises:
        ProbeError: it has not.

    """
    answer = np.asarray(device.mma(a, b, c))
    expected = register_dtype(device.instruction.accumulator)
    if answer.shape != c.shape or answer.dtype != expected:
        msg = (
            f"{device.name}: answered {answer.dtype}{list(answer.shape)} "
            f"instead of {expected}{list(c.shape)}"
        )
        raise ProbeError(msg)
    return answer
