"""The probes of a run's devices, computed again: `device.probe.start` and `device.probe.end`.

What each rank's device answered before step 0 and after the last step has to be what the emulator
gives for the registered architecture. If it is not, the other architectures of the table are tried,
so that the page can say whose bits these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

import numpy as np

from emulator_ext import UnsupportedError, isa
from trainer.config import NumericsConfig
from trainer.device_probe import EDGE, Moment, answers, emulated, probed_profiles
from transcript.errors import MissingError, StorageError, TranscriptError
from transcript.statements import Commitment
from verifier.context import RunContext
from verifier.evidence import level
from verifier.verdict import Check, Verdict, match

# An answer is 16 KiB a product; no version asks for more than this.
_LIMIT = 1 << 20


def check_probes(context: RunContext, commitment: Commitment) -> list[Check]:
    """Return one check a moment.

    Raises:
        StorageError: the disk fails.

    """
    registration = context.registration
    return [
        _check(context, "start", registration.probes, registration.initial_state_root),
        _check(context, "end", commitment.probes, commitment.final_state_root),
    ]


def _check(context: RunContext, moment: Moment, probes: Sequence[str], root: str) -> Check:
    name, numerics = f"device.probe.{moment}", context.plan.numerics
    known = level(numerics)
    if len(probes) != context.plan.world:
        missing = MissingError(f"{len(probes)} of {context.plan.world} devices were probed")
        return Check(name=name, verdict=Verdict.NON_RESPONSE, detail=str(missing))
    if known == "unknown":
        detail = f"{numerics.arch} has no tensor cores for profile {numerics.profile}"
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, detail=detail)
    expected = _emulated(context, numerics, moment, root)
    digest = sha256(expected).hexdigest()
    wrong = next((rank for rank, found in enumerate(probes) if found != digest), None)
    if wrong is None:
        products = " and ".join(probed_profiles(numerics))
        world = len(probes)
        whose = "the device multiplies" if world == 1 else f"all {world} ranks' devices multiply"
        detail = f"{whose} as {numerics.arch} ({products})"
        return match(name, detail, value=digest)
    what = f"the device of rank {wrong} does not multiply as {numerics.arch}"
    return Check(
        name=name,
        # as for a step's products: what only a model describes accuses nobody
        verdict=Verdict.MISMATCH if known in {"recorded", "exact"} else Verdict.INCONCLUSIVE,
        detail=f"{what}{_whose(context, moment, root, probes[wrong])}",
        evidence={
            "rank": str(wrong),
            "expected": digest,
            "found": probes[wrong],
            "numerics": known,
            **dict(_first(context, moment, wrong, expected, probes[wrong])),
        },
    )


def _emulated(context: RunContext, numerics: NumericsConfig, moment: Moment, root: str) -> bytes:
    multiply = emulated(numerics.arch, 1)
    return answers(numerics, multiply, run_id=context.run_id, moment=moment, root=root)


def _whose(context: RunContext, moment: Moment, root: str, found: str) -> str:
    """Say which architectures of the table give these answers."""
    fitting = []
    for arch in isa.ARCHITECTURES:
        numerics = context.plan.numerics.model_copy(update={"arch": arch})
        try:
            answer = _emulated(context, numerics, moment, root)
        except UnsupportedError:
            continue
        if sha256(answer).hexdigest() == found:
            fitting.append(arch)
    return f"; it multiplies as {' or '.join(fitting)}" if fitting else ""


def _first(
    context: RunContext, moment: Moment, rank: int, expected: bytes, digest: str
) -> Iterator[tuple[str, str]]:
    """Yield where the answers differ first, if they are there and are what was committed."""
    try:
        data = context.folder.read(context.folder.probe(moment, rank), _LIMIT)
    except StorageError:
        raise
    except TranscriptError:
        return
    if sha256(data).hexdigest() != digest or len(data) != len(expected):
        return
    found, right = np.frombuffer(data, "<u4"), np.frombuffer(expected, "<u4")
    first = int(np.argmax(found != right))
    product, row, column = np.unravel_index(first, (len(found) // EDGE**2, EDGE, EDGE))
    yield "product", probed_profiles(context.plan.numerics)[int(product)]
    yield "index", str([int(row), int(column)])
    yield "answered", f"{int(found[first]):08x}"
    yield "recomputed", f"{int(right[first]):08x}"
