"""A characterisation as text for people and as JSON for programs.

The JSON document is `bitwitness/probe/v1`: strings, integers, booleans, null, lists, objects.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any, Final

from emulator_ext.probe.check import Check
from emulator_ext.probe.experiment import Experiment
from emulator_ext.probe.rows import known_rows
from emulator_ext.probe.session import Characterisation

FORMAT: Final = "bitwitness/probe/v1"
_WIDTH: Final = 100
_CLOSEST: Final = 4  # refuted hypotheses that the text names


def to_document(found: Characterisation) -> dict[str, Any]:
    """Return the characterisation as a JSON-ready object."""
    check = found.check
    return {
        "format": FORMAT,
        "device": found.device,
        "instruction": asdict(found.instruction),
        "follows": found.follows,
        "contradictions": list(found.contradictions),
        "known": list(known_rows(found)),
        "findings": [asdict(finding) for finding in found.findings],
        "experiments": [_experiment_document(e) for e in found.experiments],
        "check": None if check is None else _check_document(check),
    }


def _experiment_document(experiment: Experiment) -> dict[str, Any]:
    document = asdict(experiment)
    document["hypotheses"] = [
        {"label": label, "refuted_by": count} for label, count in experiment.hypotheses
    ]
    document["rows"] = [
        {"fed": row.fed, "predictions": dict(row.predictions), "observed": row.observed}
        for row in experiment.rows
    ]
    return document


def _check_document(check: Check) -> dict[str, Any]:
    return {
        "seed": check.seed,
        "inputs": check.inputs,
        "mismatches": check.mismatches,
        "strata": [asdict(stratum) for stratum in check.strata],
        "examples": [
            {**asdict(example), "a": list(example.a), "b": list(example.b)}
            for example in check.examples
        ],
    }


def render_text(found: Characterisation, *, explain: bool = True) -> str:
    """Return the report: verdict, findings, and with `explain` every experiment.

    Lines are ASCII and at most 100 wide, hexadecimal rows of long inputs excepted.
    """
    parts = [_verdict(found), _findings(found)]
    if explain:
        parts += [_experiment(n + 1, e) for n, e in enumerate(found.experiments)]
    if found.check is not None:
        parts.append(_check(found.check))
    return "\n\n".join(parts) + "\n"


def _verdict(found: Characterisation) -> str:
    lines = [f"{found.device}: {found.instruction.label}"]
    if not found.follows:
        names = ", ".join(found.contradictions)
        lines.append(f"follows no model of NUMERICS 1; contradicted by: {names}")
        return "\n".join(lines)
    known = known_rows(found)
    if known:
        lines.append(f"follows NUMERICS 1, with the arithmetic of: {', '.join(known)}")
    else:
        lines.append("follows NUMERICS 1, with parameters that no known architecture has")
    return "\n".join(lines)


def _findings(found: Characterisation) -> str:
    width = max(len(finding.name) for finding in found.findings)
    lines = [
        f"  {f.name:<{width}}  {f.value}  [{f.status}: {f.experiment}]" for f in found.findings
    ]
    return "\n".join(["what was found", *lines])


def _experiment(number: int, experiment: Experiment) -> str:
    mark = "  (contradicts NUMERICS)" if experiment.contradicts else ""
    lines = [f"{number}. {experiment.name}: {experiment.question}{mark}"]
    lines += _wrapped(f"fed: {experiment.method} ({experiment.inputs} inputs)")
    for row in experiment.rows:
        lines += _wrapped(row.fed, indent=5)
        lines += _wrapped(
            "; ".join([f"{label} predicts {text}" for label, text in row.predictions]), indent=7
        )
        lines += _wrapped(f"came back: {row.observed}", indent=7)
    refuted = sorted((count, label) for label, count in experiment.hypotheses if count)
    if refuted:
        closest = ", ".join(f"{label} (by {count})" for count, label in refuted[:_CLOSEST])
        lines += _wrapped(
            f"refuted: {len(refuted)} of {len(experiment.hypotheses)} hypotheses; the closest: "
            f"{closest}"
        )
    lines += _wrapped(f"follows: {experiment.conclusion}")
    return "\n".join(lines)


def _wrapped(text: str, indent: int = 3) -> list[str]:
    pad = " " * indent
    return textwrap.wrap(
        text, _WIDTH, initial_indent=pad, subsequent_indent=f"{pad}  ", break_on_hyphens=False
    )


def _check(check: Check) -> str:
    lines = [
        f"random check: {check.mismatches} mismatches in {check.inputs} inputs (seed {check.seed})"
    ]
    lines += [f"  {s.name}: {s.mismatches} of {s.inputs}" for s in check.strata]
    for example in check.examples:
        a = " ".join(f"{x:x}" for x in example.a)
        b = " ".join(f"{x:x}" for x in example.b)
        lines += [
            f"  mismatch in {example.stratum!r}:",
            f"    a {a}",
            f"    b {b}",
            f"    c {example.c:x}: predicted {example.predicted}, came back {example.observed}",
        ]
    return "\n".join(lines)
