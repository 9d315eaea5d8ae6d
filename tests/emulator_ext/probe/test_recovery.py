"""The probe recovers NUMERICS 1.1: from slow devices written for it, and from the emulator."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import pytest
import torch

from emulator_ext import isa, numerics
from emulator_ext.probe import EmulatedDevice, Instruction, emulated_instructions, known_rows, run
from emulator_ext.probe.model import FmaModel, IntegerModel, Model
from emulator_ext.probe.rounding import Rounding
from tests.emulator_ext.probe.devices import FmaDevice, IntegerDevice, Knobs, StepDevice

CHECKS = 350
HALVES = tuple(tuple(i for i in range(32) if i % 4 // 2 == half) for half in (0, 1))

# (operands, accumulator, K): F, L, e_zero (None: inert), significant bits. NUMERICS 1.1.
TABLE = {
    "volta f16": (("f16", "f32", 8), (23, 4, None, 24)),
    "volta f16+f16": (("f16", "f16", 8), (23, 4, -19, 11)),
    "ampere f16": (("f16", "f32", 16), (24, 8, None, 24)),
    "ampere f16+f16": (("f16", "f16", 16), (24, 8, -20, 11)),
    "ampere bf16": (("bf16", "f32", 16), (24, 8, -132, 24)),
    "ampere tf32": (("tf32", "f32", 8), (24, 4, -132, 24)),
    "ada e4m3": (("e4m3", "f32", 32), (13, 16, None, 14)),
    "ada e5m2+f16": (("e5m2", "f16", 32), (13, 16, None, 11)),
    "hopper f16": (("f16", "f32", 32), (25, 16, None, 24)),
    "hopper f16+f16": (("f16", "f16", 32), (25, 16, -21, 11)),
    "hopper bf16": (("bf16", "f32", 32), (25, 16, -133, 24)),
    "hopper tf32": (("tf32", "f32", 16), (25, 8, -133, 24)),
    "hopper wgmma e5m2": (("e5m2", "f32", 32), (13, 32, None, 14)),
    "blackwell tcgen05 e4m3+f16": (("e4m3", "f16", 32), (25, 32, None, 11)),
}


def _device(name: str, **more: object) -> StepDevice:
    (operands, accumulator, k), (F, L, e_zero, bits) = TABLE[name]
    half = accumulator == "f16"
    hidden = {23: -19, 24: -20}.get(F, -21) if half else {23: -131, 24: -132}.get(F, -133)
    instruction = Instruction(a=operands, b=operands, accumulator=accumulator, k=k)
    end = "nearest" if half else "truncate"
    floor = hidden if e_zero is None else e_zero
    knobs = Knobs(F=F, L=L, e_zero=floor, precision=bits, end=end, **more)  # type: ignore[arg-type]
    return StepDevice(instruction, knobs)


@pytest.mark.parametrize("name", TABLE)
def test_table_rows_are_recovered_from_slow_devices(name: str) -> None:
    """F, L, e_zero, precision and rounding of a row come out of a device built from it."""
    (_, accumulator, k), (F, L, e_zero, bits) = TABLE[name]
    found = run(_device(name), checks=CHECKS)
    assert found.contradictions == ()
    assert isinstance(found.model, Model)
    groups = tuple(tuple(range(start, start + L)) for start in range(0, k, L))
    assert found.model.groups == groups
    assert found.model.c_joins == "first"
    assert found.model.fraction_bits == F
    assert found.model.zero_exponent == e_zero
    assert found.model.significant_bits == bits
    half = accumulator == "f16"
    assert found.model.rounding is (Rounding.NEAREST_EVEN if half else Rounding.TRUNCATE)
    assert found.model.alignment is Rounding.TRUNCATE
    assert found.check is not None
    assert (found.check.mismatches, found.check.inputs) == (0, CHECKS)


@pytest.mark.parametrize("accumulator", ["f32", "f16"])
@pytest.mark.parametrize("operands", ["e4m3", "e5m2"])
def test_fp8_through_f16_is_recovered(operands: str, accumulator: str) -> None:
    """NUMERICS 1.3: two interleaved halves, then c added by one rounding to nearest even."""
    half = accumulator == "f16"
    knobs = Knobs(
        F=25,
        L=16,
        e_zero=-21 if half else -133,
        precision=11 if half else 24,
        end="nearest" if half else "truncate",
        groups=HALVES,
        c_last=True,
        normalise_subnormals=operands == "e4m3",
    )
    instruction = Instruction(a=operands, b=operands, accumulator=accumulator, k=32)
    found = run(StepDevice(instruction, knobs), checks=CHECKS)
    assert found.contradictions == ()
    assert isinstance(found.model, Model)
    assert found.model.groups == HALVES
    assert found.model.c_joins == "end"
    assert found.model.end_rounding is Rounding.NEAREST_EVEN
    assert found.model.fraction_bits == 25


def test_an_inert_floor_is_called_inert() -> None:
    """Where no input shows e_zero, the finding says so and below which value that holds."""
    finding = run(_device("hopper f16"), checks=7).finding("exponent floor e_zero")
    assert finding.status == "inert"
    assert finding.value == "inert: any floor up to -23 predicts the same"


def test_fp64_is_a_chain_of_fused_multiply_adds() -> None:
    """The FP64 device is found to be IEEE fma in ascending order."""
    found = run(FmaDevice(4), checks=CHECKS)
    assert found.contradictions == ()
    assert found.model == FmaModel(order=(0, 1, 2, 3), nan_bits=(1 << 63) - 1)


@pytest.mark.parametrize(("a", "b"), [("s8", "s8"), ("u8", "u8"), ("s8", "u8")])
def test_integers_are_exact(a: str, b: str) -> None:
    """The INT8 device is found exact, wrapping at int32."""
    found = run(IntegerDevice(a, b, 32), checks=CHECKS)
    assert found.contradictions == ()
    assert found.model == IntegerModel(signed_a=a == "s8", signed_b=b == "s8", saturates=False)


def _emulated() -> dict[str, tuple[str, Instruction]]:
    """One emulated instruction for each different row of the emulator's table."""
    chosen: dict[object, tuple[str, Instruction]] = {}
    for arch in isa.ARCHITECTURES:
        for instruction in emulated_instructions(arch):
            row = numerics(arch, instruction.a, instruction.accumulator, instruction.kind)
            key = (row.dtype, row.acc, row.engine, row.F, row.L, row.e_zero, row.rounding)
            chosen.setdefault(key, (arch, instruction))
    return {
        f"{arch} {instruction.label}": (arch, instruction) for arch, instruction in chosen.values()
    }


@pytest.mark.parametrize("label", _emulated())
def test_every_row_of_the_emulator_is_recovered(label: str) -> None:
    """Asked as a black box, each different row of the emulator is recognised as itself."""
    arch, instruction = _emulated()[label]
    found = run(EmulatedDevice(arch, instruction), checks=CHECKS)
    assert found.contradictions == ()
    assert f"{arch} {instruction.kind}" in known_rows(found)
    row = numerics(arch, instruction.a, instruction.accumulator, instruction.kind)
    if isinstance(found.model, Model):
        assert found.model.fraction_bits == row.F
        assert len(found.model.groups[0]) == row.L
        assert found.model.zero_exponent in {row.e_zero, None}


def test_mixed_fp8_operands_are_recovered() -> None:
    """E4m3 times e5m2 has the same arithmetic as either alone."""
    instruction = Instruction(a="e4m3", b="e5m2", accumulator="f32", k=32)
    found = run(EmulatedDevice("ada", instruction), checks=CHECKS)
    assert found.contradictions == ()
    assert isinstance(found.model, Model)
    assert (found.model.fraction_bits, len(found.model.groups)) == (13, 2)
    assert known_rows(found) == ("ada mma",)


class _MmaSim:
    """A published model, written by others, as a black box."""

    def __init__(self, arch: str, qualifier: str, operands: str, accumulator: str, k: int) -> None:
        self.instruction = Instruction(a=operands, b=operands, accumulator=accumulator, k=k)
        self.name, self.arch, self.qualifier = f"MMA-Sim {arch}", arch, qualifier

    def mma(self, a: Any, b: Any, c: Any) -> Any:
        """Return d = c + sum of a * b as bits."""
        # MMA-Sim's FP64 helper would run a C++ compiler at import.
        stub = types.ModuleType("mmasim.arithmetic.fma")
        stub.MMA_FMA = None  # type: ignore[attr-defined]
        sys.modules.setdefault(stub.__name__, stub)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from mmasim import nv_ptx

            run_dot = nv_ptx.MMA(self.arch, self.qualifier).dpa
            operands = _TORCH[self.instruction.a], _TORCH[self.instruction.b]
            accumulator = _TORCH[self.instruction.accumulator]
            out = run_dot(_tensor(a, operands[0]), _tensor(b, operands[1]), _tensor(c, accumulator))
        return out.contiguous().view(_SIGNED[c.itemsize]).numpy().view(c.dtype)


_TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
}
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def _tensor(bits: Any, dtype: torch.dtype) -> torch.Tensor:
    signed = bits.view(f"int{8 * bits.itemsize}").copy()
    return torch.from_numpy(signed).view(dtype)


@pytest.mark.parametrize(
    ("device", "known"),
    [
        (_MmaSim("Hopper", "m16n8k16.f16.f16.f16.f16", "f16", "f16", 16), "hopper mma"),
        (_MmaSim("Ampere", "m16n8k16.f32.bf16.bf16.f32", "bf16", "f32", 16), "ampere mma"),
        (_MmaSim("Ada Lovelace", "m16n8k32.f32.e4m3.e4m3.f32", "e4m3", "f32", 32), "ada mma"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_independent_model_is_recognised(device: _MmaSim, known: str) -> None:
    """MMA-Sim, asked as a black box, is found to be the architecture that it models."""
    found = run(device, checks=CHECKS)
    assert found.contradictions == ()
    assert known in known_rows(found)
