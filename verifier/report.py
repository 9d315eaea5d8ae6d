"""report.html: one self-contained page, made from report.json and nothing else.

No script, no font, no image and no link to anything outside: style and picture are inline. The
first screen is for a reader who is no engineer; below are the tables. All text from the run
passes through the template engine's escaping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import jinja2

from transcript.files import read_bounded, write_atomic
from verifier import bounds
from verifier.chart import HEIGHT, SHAPES, WIDTH, loss_chart
from verifier.files import MAX_REPORT_BYTES, REPORT_HTML, REPORT_JSON, RESULT_FILE
from verifier.report_data import ReportData, TextFacts, from_json
from verifier.step_report import GRAVITY, StepReport
from verifier.text_view import TextView, text_view
from verifier.verdict import Check, Overall, Verdict
from verifier.verify import verify_file

__all__ = ["REPORT_HTML", "REPORT_JSON", "RESULT_FILE", "render", "write_report"]

# A page that a mail takes; what is left out of it is in report.json.
MAX_STEP_ROWS = 120
MAX_CHECK_ROWS = 48
MAX_FAULT_ROWS = 12
MAX_DIFFERENCE_ROWS = 8
MAX_TEXTS = 1

HEADLINES = {
    Overall.PASS: "Verified",
    Overall.FAIL: "Not verified: the record does not hold up",
    Overall.INCOMPLETE: "Not decided",
}

SENTENCES = {
    Overall.PASS: (
        "Everything that was checked came out exactly as the trainer committed it, to the last bit."
    ),
    Overall.FAIL: (
        "At least one thing in the record of {subject} is not what it is claimed to be."
    ),
    Overall.INCOMPLETE: (
        "Nothing was found to be false, but something that the audit needs was missing or could "
        "not be decided, so {this} does not count as verified."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """How the page speaks of what was audited."""

    noun: str
    subject: str
    about: str
    steps: str
    every_step: str


TRAINING = Phrases(
    noun="run",
    subject="this training run",
    about="training run",
    steps="training steps",
    every_step="the data they used and their learning rates",
)
GENERATION = Phrases(
    noun="generation",
    subject="this generated text",
    about="generated text",
    steps="decoding steps",
    every_step="the position that each one fed",
)

EVIDENCE = {
    "recorded": (
        "The arithmetic of this GPU architecture is known from outputs recorded on real hardware."
    ),
    "modelled": (
        "The arithmetic of this GPU architecture is known from a published model only, so a "
        "difference in a matrix product would be reported as inconclusive and not as fraud."
    ),
    "exact": "Every operation of this profile is fixed by the IEEE 754 standard.",
}


def write_report(out: Path) -> Path:
    """Render OUT/report.json as OUT/report.html and return its path.

    Raises:
        ResultError: report.json is not what the signed result beside it names, or malformed.
        UntrustedError: there is no verifier's key beside the result.
        transcript.errors.TranscriptError: a file is missing, or the result is not signed.

    """
    verify_file(out / RESULT_FILE)
    source, target = out / REPORT_JSON, out / REPORT_HTML
    data = from_json(read_bounded(source, MAX_REPORT_BYTES), file=str(source))
    write_atomic(target, render(data).encode("ascii", "xmlcharrefreplace"))
    return target


def render(data: ReportData) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["grouped"] = lambda number: f"{number:,}"
    return environment.get_template("report.html.j2").render(**view(data))


def view(data: ReportData) -> dict[str, Any]:
    """Return what the template shows, already chosen, counted and put into words."""
    outcomes = {report.step: report.verdict for report in data.steps}
    differences = [
        difference.words(report.step) for report in data.steps for difference in report.differences
    ]
    faults = _faults(data)
    phrases = TRAINING if data.text is None else GENERATION
    sentence = SENTENCES[data.overall]
    return {
        "data": data,
        "phrases": phrases,
        "headline": HEADLINES[data.overall],
        "sentence": sentence.format(subject=phrases.subject, this=f"this {phrases.noun}"),
        "replayed": sum(report.operators > 0 for report in data.steps),
        "bound": _bound(data),
        "chart": loss_chart(data.losses, outcomes) if data.text is None else None,
        "texts": _texts(data.text, outcomes) if data.text else [],
        "marked_bad": set(outcomes.values()) - {Verdict.MATCH},
        "chart_size": (WIDTH, HEIGHT),
        "shapes": SHAPES,
        "legend": [verdict for verdict in Verdict if verdict in outcomes.values()],
        "checks": _gravest_first(data.checks)[:MAX_CHECK_ROWS],
        "checks_left": max(len(data.checks) - MAX_CHECK_ROWS, 0),
        "faults": faults[:MAX_FAULT_ROWS],
        "faults_left": max(len(faults) - MAX_FAULT_ROWS, 0),
        "steps": _chosen_steps(data.steps),
        "steps_left": max(len(data.steps) - MAX_STEP_ROWS, 0),
        "differences": differences[:MAX_DIFFERENCE_ROWS],
        "differences_left": max(len(differences) - MAX_DIFFERENCE_ROWS, 0),
        "evidence": EVIDENCE.get(data.evidence, "The arithmetic of this architecture is unknown."),
        "coverage": _coverage(data),
    }


def _texts(facts: TextFacts, outcomes: Mapping[int, Verdict]) -> list[TextView]:
    """Cut the exported bytes into texts, each byte with the verdict of the step that decided it."""
    data = bytes.fromhex(facts.text)
    size = len(data) // facts.batch
    # step t decides byte t + 1; nothing decides the first
    verdicts = [None, *(outcomes.get(step) for step in range(size))]
    starts = range(0, size * facts.batch, size) if size else range(0)
    return [
        text_view(data[start : start + size], facts.prompt, verdicts)
        for start in starts[:MAX_TEXTS]
    ]


def _bound(data: ReportData) -> str:
    if data.draw.f_max is None:
        return "Because not every sampled step matched, the sample bounds nothing about the others."
    return bounds.sentence(Decimal(data.draw.f_max), Decimal(data.draw.delta))


def _coverage(data: ReportData) -> str:
    done, total = sum(r.macs for r in data.steps), data.run.macs_per_step * data.run.steps
    share = bounds.percent(Decimal(done) / Decimal(total)) if total else "0 %"
    return f"{done:,} of {total:,} multiply-accumulates of all matrix products ({share})"


def _faults(data: ReportData) -> list[tuple[Verdict, str, str]]:
    """Return verdict, check and sentence of everything that did not match, gravest first."""
    whole = [(c.verdict, c.name, c.detail) for c in data.checks if not c.ok]
    of_steps = [
        (check.verdict, check.name, f"step {report.step}: {check.detail}")
        for report in data.steps
        for check in report.checks
        if not check.ok
    ]
    return sorted(whole + of_steps, key=lambda fault: GRAVITY.index(fault[0]))


def _gravest_first(checks: tuple[Check, ...]) -> list[Check]:
    return sorted(checks, key=lambda check: check.ok)


def _chosen_steps(steps: tuple[StepReport, ...]) -> list[StepReport]:
    """Choose the rows: what did not match first, then as many others as fit, in step order."""
    kept = sorted(steps, key=lambda r: (r.verdict is Verdict.MATCH, r.step))[:MAX_STEP_ROWS]
    return sorted(kept, key=lambda r: r.step)
