"""What all attack tests share: honest runs, dishonest ones, and how an auditor judges them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.verifier import runs
from trainer.graph import Value
from trainer.recorder import Recorder
from transcript.run import RunFolder
from verifier.audit import Audit, AuditOptions
from verifier.step_report import StepReport
from verifier.verdict import Check, Overall, Verdict, overall

CHEATED_STEP = 2


@dataclass(frozen=True, slots=True)
class Judgement:
    """The checks of an audit that replayed every step."""

    structure: list[Check]
    steps: list[StepReport]

    @property
    def overall(self) -> Overall:
        """The verdict that the signed result would carry."""
        checks = [*self.structure, *(check for step in self.steps for check in step.checks)]
        return overall(check.verdict for check in checks)

    def faults(self) -> dict[str, set[Verdict]]:
        """Return the checks that did not match with their verdicts; of a replay as NAME@STEP."""
        found: dict[str, set[Verdict]] = {}
        for check in self.structure:
            if not check.ok:
                found.setdefault(check.name, set()).add(check.verdict)
        for step in self.steps:
            for check in step.checks:
                if not check.ok:
                    found.setdefault(f"{check.name}@{step.step}", set()).add(check.verdict)
        return found

    def step(self, step: int) -> StepReport:
        """Return the report of one step."""
        return next(report for report in self.steps if report.step == step)


def judge(root: Path) -> Judgement:
    """Audit a run by replaying every recorded step in this process."""
    with Audit.open(root, AuditOptions(steps=64, threads=1)) as audit:
        return Judgement(audit.structure(), audit.run())


Tamper = Callable[[int, Value, object], object]


def cheating_run(root: Path, patches: Callable[[pytest.MonkeyPatch], None], **sections) -> Path:
    """Train a run while the trainer's own code is patched; undo the patches before any audit.

    A liar does not re-check itself.
    """
    sections = {"recheck": {"products": 0}, **sections}
    with pytest.MonkeyPatch.context() as patch:
        patches(patch)
        return runs.train(root, runs.config(**sections))


def tamper_with(change: Tamper) -> Callable[[pytest.MonkeyPatch], None]:
    """Patch the recorder so that `change(step, value, tensor)` is committed and used downstream."""

    def patches(patch: pytest.MonkeyPatch) -> None:
        original_sink, original_write = Recorder.sink, Recorder.write_arena
        steps: dict[int, int] = {}

        def sink(self, value, tensor):
            step = steps.get(id(self), 0)
            return original_sink(self, value, change(step, value, tensor))

        def write_arena(self, step):
            steps[id(self)] = step + 1
            original_write(self, step)

        patch.setattr(Recorder, "sink", sink)
        patch.setattr(Recorder, "write_arena", write_arena)

    return patches


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train an honest run of six steps; not to be changed."""
    return runs.train(tmp_path_factory.mktemp("honest") / "run", runs.config())


@pytest.fixture
def copied(honest: Path, tmp_path: Path) -> RunFolder:
    """Copy the honest run, to be tampered with."""
    return runs.copy(honest, tmp_path / "run")
