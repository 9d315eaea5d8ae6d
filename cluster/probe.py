"""What `bitwitness probe` does: interrogate a device and say how it adds.

The device is this machine's GPU, or an architecture of the emulator, whose answers serve to
show what a probe looks like and that it finds what the table says.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.border import FAILED, OK, Outcome

if TYPE_CHECKING:
    from emulator_ext.probe import Characterisation, Device


def probe_command(
    arch: str | None, out: Path | None, name: str, checks: int, *, explain: bool
) -> Outcome:
    """Probe every instruction of a device; exit code 1 if one follows no known model.

    Args:
        arch: an emulated architecture, or the GPU if None.
        out: architecture file to write, or None.
        name: of the architecture in that file.
        checks: random inputs per instruction after the designed ones.
        explain: tell every experiment.

    """
    from cluster.progress import stderr_meter
    from emulator_ext import probe

    devices = _devices(arch)
    found: list[Characterisation] = []
    with stderr_meter() as meter:
        meter.start("probe", len(devices))
        for device in devices:
            found.append(probe.run(device, checks=checks))
            meter.advance(len(found), device.instruction.label)
    if out is not None:
        # A product of two formats follows from the rows of each; the file has no row for it.
        plain = [one for one in found if one.instruction.a == one.instruction.b]
        probe.save(out, name, plain, date=dt.datetime.now(dt.UTC).date())
    return _outcome(found, out, explain=explain)


def _devices(arch: str | None) -> list[Device]:
    from emulator_ext import probe

    if arch is None:
        return list(probe.open_cuda_devices())
    return [probe.EmulatedDevice(arch, i) for i in probe.emulated_instructions(arch)]


def _outcome(found: list[Characterisation], out: Path | None, *, explain: bool) -> Outcome:
    from emulator_ext import probe

    document: dict[str, Any] = {
        "instructions": [probe.to_document(one) for one in found],
        "file": str(out) if out else None,
    }
    lines = [probe.render_text(one, explain=explain) for one in found]
    strange = [one.instruction.label for one in found if not one.follows]
    lines.append(f"Probed     {len(found)} instructions of {found[0].device}")
    lines.append(f"Unknown    {', '.join(strange) or 'none: all follow a known model'}")
    if out is not None:
        lines.append(f"File       {out}")
    return Outcome(document=document, text="\n".join(lines), exit_code=FAILED if strange else OK)
