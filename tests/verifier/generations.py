"""Generations, honest and otherwise, made by the trainer itself, and their audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import trainer.engine
from tests.verifier import runs
from trainer.executor import execute
from trainer.generate import generate
from verifier.audit import Audit, AuditOptions
from verifier.step_report import StepReport
from verifier.verdict import Check, Overall, Verdict, overall

PROMPT, TOKENS = b"import", 8
STEPS = len(PROMPT) + TOKENS - 1
CHEATED = 8

StateChange = Callable[[dict[str, Any], int], None]
SinkChange = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Report:
    """The checks of an audit."""

    checks: list[Check]
    steps: list[StepReport]

    @property
    def verdict(self) -> Overall:
        """The verdict that the signed result would carry."""
        replayed = [check for step in self.steps for check in step.checks]
        return overall(check.verdict for check in [*self.checks, *replayed])


def verify(
    folder: Path, run: Path | None = None, steps: int = 64, trusted: tuple[Any, ...] = ()
) -> Report:
    """Audit a generation in this process; by default every step is replayed."""
    options = AuditOptions(steps=steps, threads=1, run=run, trusted=trusted)
    with Audit.open(folder, options) as audit:
        return Report(audit.structure(), audit.run())


def faults(report: Report) -> tuple[dict[str, Verdict], dict[int, dict[str, Verdict]]]:
    """Return what is not a MATCH: verdicts by check, and the same by step."""
    whole = {c.name: c.verdict for c in report.checks if not c.ok}
    steps = {
        s.step: {c.name: c.verdict for c in s.checks if not c.ok}
        for s in report.steps
        if s.verdict is not Verdict.MATCH
    }
    return whole, steps


def make(trained: Path, out: Path | None, **options: Any) -> Path:
    """Generate the text of these tests."""
    options = {"key": runs.KEY, "threads": 1, "out": out, **options}
    return generate(trained, PROMPT, TOKENS, **options).folder


def cheat(
    trained: Path,
    out: Path | None,
    *,
    state: StateChange | None = None,
    sink: SinkChange | None = None,
    **options: Any,
) -> Path:
    """Generate with an engine that lies in one step, and commits to what it makes up.

    Args:
        trained: the run.
        out: the generation's folder.
        state: changes the state after that step in place.
        sink: given graph, value and tensor, returns what is committed and used downstream.
        options: of `generate`.

    """

    def dishonest(graph, *, batch, sink, **rest):
        (step,) = batch["position"].tolist()

        def lying(value, tensor):
            if step == CHEATED and change_value is not None:
                tensor = change_value(graph, value, tensor)
            return sink(value, tensor)

        result = execute(graph, batch=batch, sink=lying, **rest)
        if step == CHEATED and state is not None:
            state(result.state, step)
        return result

    change_value = sink
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.engine, "execute", dishonest)
        return make(trained, out, **options)
