"""Loads an architecture file as one more architecture, without rebuilding anything.

After that its name works wherever `arch` is asked for. The registration is the process's own:
a worker process loads the file for itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from emulator_ext import isa
from emulator_ext.architecture_file import (
    ArchitectureFileError,
    ProbedArchitecture,
    ProbedInstruction,
    read_architecture,
)
from emulator_ext.arithmetic import Engine, Numerics, add_row

_loaded: dict[str, ProbedArchitecture] = {}


def load_architecture(path: str | os.PathLike[str]) -> str:
    """Load an architecture file and return the architecture's name.

    Loading the same contents again changes nothing. Rows have the evidence level "probed".

    Raises:
        ArchitectureFileError: the file is unreadable or breaks a rule of the format, its name
            is a built-in architecture's, or that of another file loaded before.

    """
    found = read_architecture(Path(path))
    if _loaded.get(found.name) == found:
        return found.name
    if found.name in isa.architectures():
        kind = "loaded from another file" if found.name in _loaded else "a built-in architecture"
        msg = f"{path}: {found.name!r} is {kind}"
        raise ArchitectureFileError(msg)
    existing: dict[str, dict[str, tuple[str, ...]]] = {}
    for row in found.instructions:
        dtypes = existing.setdefault(row.instruction, {})
        dtypes[row.operands] = (*dtypes.get(row.operands, ()), row.accumulator)
        add_row(_numerics(found.name, row))
    isa.add_architecture(found.name, existing)
    _loaded[found.name] = found
    return found.name


def loaded_architecture(name: str) -> ProbedArchitecture | None:
    """Return what is known of a loaded architecture: its device, date and checks; or none."""
    return _loaded.get(name)


def _numerics(arch: str, row: ProbedInstruction) -> Numerics:
    steps = row.F is not None
    return Numerics(
        arch=arch,
        dtype=row.operands,
        acc=row.accumulator,
        instruction=row.instruction,
        engine=cast("Engine", row.engine),
        F=row.F,
        L=1 if row.engine == "fma" else row.L,
        e_zero=row.floor if steps else None,
        rounding=row.rounding,
        evidence="probed",
    )
