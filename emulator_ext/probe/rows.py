"""From a characterisation to a row of NUMERICS 1.1, and to the architectures that have it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from emulator_ext import isa
from emulator_ext.architecture_file import (
    GROUPS,
    MAX_FRACTION_BITS,
    ProbedArchitecture,
    ProbedInstruction,
    write_architecture,
)
from emulator_ext.arithmetic import Numerics, numerics
from emulator_ext.errors import UnsupportedError
from emulator_ext.probe.errors import ProbeError
from emulator_ext.probe.formats import F64, FORMATS
from emulator_ext.probe.model import FmaModel, IntegerModel, Model
from emulator_ext.probe.rounding import Rounding
from emulator_ext.probe.session import Characterisation

_RESULTS: Final = {
    ("f32", 24, Rounding.TRUNCATE): "rz_f32",
    ("f32", 14, Rounding.TRUNCATE): "rz_e8m13",
    ("f16", 11, Rounding.NEAREST_EVEN): "rne_f16",
}


def row_of(found: Characterisation) -> ProbedInstruction:
    """Return the emulator's parameters for what was found.

    Raises:
        ProbeError: the device does not follow NUMERICS section 1, naming the experiments that
            say so, or the emulator has no engine for it.

    """
    instruction = found.instruction
    if instruction.a != instruction.b:
        msg = f"{instruction.label}: mixed operands follow the rows of both; probe each alone"
        raise ProbeError(msg)
    return _row(found)


def _row(found: Characterisation) -> ProbedInstruction:
    """Return the parameters; operands are those of a."""
    if not found.follows or found.check is None:
        reasons = ", ".join(found.contradictions) or "no order of addition found"
        msg = f"{found.device}: {found.instruction.label} is no machine of NUMERICS 1: {reasons}"
        raise ProbeError(msg)
    instruction = found.instruction
    engine, F, L, e_zero, rounding = _parameters(found)
    return ProbedInstruction(
        instruction=instruction.kind,
        operands=instruction.a,
        accumulator=instruction.accumulator,
        k=instruction.k,
        engine=engine,
        F=F,
        L=L,
        e_zero=e_zero,
        rounding=rounding,
        checks=found.check.inputs,
        seed=found.check.seed,
    )


def _parameters(found: Characterisation) -> tuple[str, int | None, int | None, int | None, str]:
    model = found.model
    if isinstance(model, IntegerModel):
        return "integer", None, None, None, "exact"
    if isinstance(model, FmaModel):
        if model.nan_bits != F64.nan_bits:
            msg = f"{found.device}: the emulator's FP64 NaN is not 0x{model.nan_bits:x}"
            raise ProbeError(msg)
        return "fma", None, None, None, "ieee_fma"
    if model is None:
        msg = f"{found.device}: no model"
        raise ProbeError(msg)
    accumulator = FORMATS[found.instruction.accumulator].name
    rounding = _RESULTS[accumulator, model.significant_bits, model.rounding]
    F, L = model.fraction_bits, len(model.groups[0])
    if F > MAX_FRACTION_BITS or L not in GROUPS:
        msg = f"{found.instruction.label}: the emulator has no F = {F}, L = {L}"
        raise ProbeError(msg)
    engine = "chain" if model.c_joins == "first" else "fp8_through_f16"
    return engine, F, L, model.zero_exponent, rounding


def known_rows(found: Characterisation) -> tuple[str, ...]:
    """Return the architectures and instructions of NUMERICS 1.1 with the same arithmetic.

    Empty if there are none: a new machine, or one outside the contract. A floor that no input
    shows fits any; a group that fills the instruction fits any that is as long or longer.
    """
    try:
        row = _row(found)
    except ProbeError:
        return ()
    return tuple(
        f"{arch} {kind}"
        for arch in isa.ARCHITECTURES
        for kind in isa.INSTRUCTIONS
        if (known := _numerics(arch, kind, row)) is not None and _same(row, known, found)
    )


def _numerics(arch: str, kind: str, row: ProbedInstruction) -> Numerics | None:
    try:
        return numerics(arch, row.operands, row.accumulator, kind)
    except UnsupportedError:
        return None


def _same(row: ProbedInstruction, known: Numerics, found: Characterisation) -> bool:
    if (row.engine, row.rounding) != (known.engine, known.rounding):
        return False
    if not isinstance(found.model, Model):
        return True
    whole = len(found.model.groups) == 1
    length = known.L is not None and row.L is not None
    fits = length and (row.L == known.L or (whole and known.L > row.L))  # type: ignore[operator]
    floor = row.e_zero is None or row.e_zero == known.e_zero
    return fits and floor and row.F == known.F


def save(
    path: Path, name: str, found: Iterable[Characterisation], *, date: dt.date
) -> ProbedArchitecture:
    """Write the architecture file of one device's characterisations.

    Args:
        path: of the new file.
        name: of the new architecture, a lower-case word that is no built-in one.
        found: all from the same device, each following NUMERICS section 1.
        date: of the measurement.

    Raises:
        ProbeError: see `row_of`; or there is nothing to write.
        ArchitectureFileError: the name breaks the format's rules, or the file exists.

    """
    results = list(found)
    devices = {result.device for result in results}
    if len(devices) != 1:
        msg = f"an architecture file is of one device, not {len(devices)}"
        raise ProbeError(msg)
    if name in isa.ARCHITECTURES:
        msg = f"{name!r} is a built-in architecture; choose another name"
        raise ProbeError(msg)
    architecture = ProbedArchitecture(
        name=name,
        device=devices.pop(),
        date=date.isoformat(),
        instructions=tuple(row_of(result) for result in results),
    )
    write_architecture(path, architecture)
    return architecture
