"""Architecture files: what `bitwitness probe` found, in a form that the emulator can load.

The format is `bitwitness/architecture/v1`, described in docs/formats/architecture-file.md: a
small YAML subset without floats, aliases, tags or repeated keys. A file may come from a
stranger, so every size, key and number is bounded before it is used. This module knows only
the parameters; which kernels run them is `emulator_ext.arithmetic`'s.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from emulator_ext import strict_yaml
from emulator_ext.errors import EmulatorError

FORMAT: Final = "bitwitness/architecture/v1"
MAX_FILE_BYTES: Final = 1 << 16
MAX_INSTRUCTIONS: Final = 64
MAX_CHECKS: Final = 1 << 53
# What the C++ core's kernels are built and tested for.
MAX_FRACTION_BITS: Final = 25
GROUPS: Final = (4, 8, 16, 32)

_ACCUMULATORS: Final = {
    "f16": ("f32", "f16"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "e4m3": ("f32", "f16"),
    "e5m2": ("f32", "f16"),
    "f64": ("f64",),
    "s8": ("s32",),
    "u8": ("s32",),
}
_EMIN: Final = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "f32": -126}
_ENGINES: Final = {
    "chain": ("rz_f32", "rz_e8m13", "rne_f16"),
    "fp8_through_f16": ("rz_f32", "rne_f16"),
    "fma": ("ieee_fma",),
    "integer": ("exact",),
}
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_DEVICE: Final = re.compile(r"[\x20-\x7e]{1,128}")


class ArchitectureFileError(EmulatorError):
    """An architecture file cannot be read, or says something that no emulator could run."""

    code = "E_ARCHITECTURE_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedInstruction:
    """One instruction's arithmetic; the names are those of `emulator_ext.numerics`.

    Attributes:
        instruction: mma, wgmma or tcgen05.
        operands: f16, bf16, tf32, e4m3, e5m2, f64, s8 or u8.
        accumulator: f32, f16, f64 or s32.
        k: products of one instruction on the device.
        engine: chain, fp8_through_f16, fma or integer.
        F, L: alignment width and products of a step; none for fma and integer.
        e_zero: floor of the largest exponent; none where it is inert (or has no meaning).
        rounding: as in `emulator_ext.numerics`.
        checks, seed: the random comparison with the device that found no mismatch.

    """

    instruction: str
    operands: str
    accumulator: str
    k: int
    engine: str
    F: int | None
    L: int | None
    e_zero: int | None
    rounding: str
    checks: int
    seed: int

    @property
    def floor(self) -> int:
        """e_zero, or where it is inert a value below everything the formats can express."""
        if self.e_zero is not None:
            return self.e_zero
        accumulator = _EMIN.get(self.accumulator, 0)
        return min(2 * _EMIN.get(self.operands, 0), accumulator) - MAX_FRACTION_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedArchitecture:
    """One device as an architecture: a name, where it was found, and its instructions."""

    name: str
    device: str
    date: str
    instructions: tuple[ProbedInstruction, ...]


def write_architecture(path: Path, architecture: ProbedArchitecture) -> None:
    """Write an architecture file that `read_architecture` accepts.

    Raises:
        ArchitectureFileError: the value breaks a rule of the format, or the file exists.

    """
    document = {
        "format": FORMAT,
        "name": architecture.name,
        "device": architecture.device,
        "date": architecture.date,
        "instructions": [asdict(row) for row in architecture.instructions],
    }
    _architecture(document, str(path))
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=False)
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        msg = f"{path}: cannot write: {error.strerror or error}"
        raise ArchitectureFileError(msg) from None


def read_architecture(path: Path) -> ProbedArchitecture:
    """Read an architecture file.

    Raises:
        ArchitectureFileError: one line naming the file, the place and the fault.

    """
    try:
        document = strict_yaml.load(path, limit=MAX_FILE_BYTES, encoding="ascii")
    except strict_yaml.StrictYamlError as error:
        raise ArchitectureFileError(str(error)) from None
    return _architecture(document, str(path))


def _architecture(document: Any, where: str) -> ProbedArchitecture:
    keys = ("format", "name", "device", "date", "instructions")
    _require(_has_keys(document, keys), where, f"must have exactly the keys {', '.join(keys)}")
    version = document["format"]
    _require(version == FORMAT, where, f"format is not {FORMAT}")
    name, device, date = document["name"], document["device"], document["date"]
    _require(_matches(_NAME, name), where, f"name must match {_NAME.pattern}")
    _require(_matches(_DEVICE, device), where, "device must be 1 to 128 printable characters")
    _require(_is_date(date), where, "date must be a string YYYY-MM-DD")
    rows = document["instructions"]
    count = len(rows) if isinstance(rows, list) else 0
    _require(1 <= count <= MAX_INSTRUCTIONS, where, f"needs 1 to {MAX_INSTRUCTIONS} instructions")
    parsed = tuple(_row(row, f"{where}: instruction {n + 1}") for n, row in enumerate(rows))
    names = {(row.instruction, row.operands, row.accumulator) for row in parsed}
    _require(len(names) == len(parsed), where, "an instruction is listed twice")
    return ProbedArchitecture(name=name, device=device, date=date, instructions=parsed)


_BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "k": (1, 64),
    "F": (1, MAX_FRACTION_BITS),
    "L": (GROUPS[0], GROUPS[-1]),
    "e_zero": (-512, 128),
    "checks": (1, MAX_CHECKS),
    "seed": (0, MAX_CHECKS),
}


def _row(row: Any, where: str) -> ProbedInstruction:
    keys = tuple(ProbedInstruction.__dataclass_fields__)
    _require(_has_keys(row, keys), where, f"must have exactly the keys {', '.join(keys)}")
    _require(row["instruction"] in ("mma", "wgmma", "tcgen05"), where, "no such instruction")
    accumulators = _lookup(_ACCUMULATORS, row["operands"])
    _require(bool(accumulators), where, "no such operands")
    _require(row["accumulator"] in accumulators, where, "no such accumulator for these operands")
    roundings = _lookup(_ENGINES, row["engine"])
    _require(bool(roundings), where, "no such engine")
    _require(row["rounding"] in roundings, where, "no such rounding for this engine")
    for key, (low, high) in _BOUNDS.items():
        value = row[key]
        optional = value is None and key in {"F", "L", "e_zero"}
        fits = optional or (type(value) is int and low <= value <= high)
        _require(fits, where, f"{key} must be an integer from {low} to {high}")
    _engine_fits(row, where)
    return ProbedInstruction(**row)


def _engine_fits(row: dict[str, Any], where: str) -> None:
    """Check that engine, formats, rounding and parameters belong together."""
    narrow = row["operands"] not in ("f64", "s8", "u8")
    expected = {"f64": "fma", "s8": "integer", "u8": "integer"}.get(row["operands"])
    engine_fits = row["engine"] == expected or (narrow and row["engine"] in _NARROW_ENGINES)
    _require(engine_fits, where, "the engine does not take these operands")
    if row["engine"] == "fp8_through_f16":
        _require(row["operands"] in ("e4m3", "e5m2"), where, "the engine takes FP8 operands")
        # The emulator runs 1.3's two half steps; other lengths are another machine.
        _require(row["L"] == _HALF_STEP and row["e_zero"] is None, where, "needs L 16, e_zero null")
    half = row["rounding"] == "rne_f16"
    _require(half == (row["accumulator"] == "f16"), where, "rounding and accumulator differ")
    given = [row[key] is not None for key in ("F", "L")]
    _require(all(given) if narrow else not any(given), where, "F and L do not fit the engine")
    powers = ", ".join(map(str, GROUPS))
    _require(row["L"] is None or row["L"] in GROUPS, where, f"L must be one of {powers}")
    _require(narrow or row["e_zero"] is None, where, "e_zero does not fit the engine")


_NARROW_ENGINES: Final = ("chain", "fp8_through_f16")
_HALF_STEP: Final = 16


def _lookup(table: dict[str, tuple[str, ...]], key: Any) -> tuple[str, ...]:
    return table.get(key, ()) if isinstance(key, str) else ()


def _has_keys(value: Any, keys: tuple[str, ...]) -> bool:
    return isinstance(value, dict) and set(value) == set(keys)


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_date(value: Any) -> bool:
    if not isinstance(value, str) or re.fullmatch(r"\d{4}-\d{2}-\d{2}", value) is None:
        return False
    parse: Callable[[str], object] = dt.date.fromisoformat
    try:
        parse(value)
    except ValueError:
        return False
    return True


def _require(holds: bool, where: str, fault: str) -> None:  # noqa: FBT001  # an assertion
    if not holds:
        msg = f"{where}: {fault}"
        raise ArchitectureFileError(msg)
