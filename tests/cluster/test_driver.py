"""The driver of a run without Ray: what it does about wrong products and forks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cluster.resume
from cluster.actors import StepSummary
from cluster.config import ClusterConfig, Job
from cluster.driver import Driver
from cluster.progress import SilentMeter
from cluster.resume import Progress, resume_step
from tests.conftest import tiny_document
from trainer.config import RunConfig
from trainer.errors import SilentFaultError
from transcript.errors import ForkError

STEPS = 6


class Notes(SilentMeter):
    """Keeps the sentences."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep it."""
        self.notes.append(text)


class FakeTeam:
    """Answers steps at once; `wrong(step, execution)` may return an error or a fault's words."""

    def __init__(self, wrong: Callable[[int, int], Exception | str | None]) -> None:
        self.wrong = wrong
        self.assembled: list[int] = []
        self.declared: list[int] = []
        self.executions: dict[int, int] = {}
        self._next = 0

    def assemble(self, resume_at: int) -> None:
        """Note it, and go on there."""
        self.assembled.append(resume_at)
        self._next = resume_at

    def queue_step(self) -> Any:
        """Return a step whose answer is known already."""
        step, self._next = self._next, self._next + 1
        return _Queued(self, step)

    def declare(self) -> tuple[int, int]:
        """Declare the step that failed last."""
        self.declared.append(self.failed)
        return self.failed, 1

    def finish(self) -> str:
        """Return a path."""
        return "commitment"


class _Queued:
    def __init__(self, team: FakeTeam, step: int) -> None:
        self.team, self.step = team, step

    def wait(self) -> StepSummary:
        """Execute it."""
        team, step = self.team, self.step
        team.executions[step] = team.executions.get(step, 0) + 1
        wrong = team.wrong(step, team.executions[step])
        if isinstance(wrong, Exception):
            team.failed = step
            raise wrong
        return StepSummary(
            step=step, loss=1.0, compute_seconds=1.0, record_seconds=1.0, recheck_seconds=0.1,
            faults=(wrong,) if wrong else (),
        )  # fmt: skip


def drive(
    team: FakeTeam, *, world: int = 2, scrub: bool = False, logged: int = 0
) -> tuple[Any, list[str]]:
    run = RunConfig.from_document(tiny_document(train={"world": world, "steps": STEPS}))
    notes = Notes()
    progress = Progress(losses=(1.0,) * logged)
    job = Job(run=run, cluster=ClusterConfig())
    driver = Driver(job, Path("run"), team, notes, progress, scrub=scrub)  # type: ignore[arg-type]
    return driver.run(), notes.notes


@pytest.fixture(autouse=True)
def states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second state is kept; the store is not looked at."""

    def stored(_config: object, _folder: object, committed: int) -> int:
        return resume_step(range(0, STEPS, 2), committed)

    monkeypatch.setattr(cluster.resume, "stored_resume_step", stored)
    monkeypatch.setattr(cluster.resume, "state_after_fault", lambda *args: args[2] + 2)


def silent(step: int) -> SilentFaultError:
    return SilentFaultError(f"step {step}, rank 1: wrong", step=step, evidence={})


def test_a_corrected_step_is_told_and_counted() -> None:
    """A rank that put its own step right costs nothing but a line and a count."""
    team = FakeTeam(lambda step, _: "element [1]" if step == 2 else None)
    result, notes = drive(team, world=1)
    assert (result.faults, result.restarts, team.assembled) == (1, 0, [0])
    assert notes == ["wrong product, corrected: element [1]"]


def test_ranks_go_back_together_once() -> None:
    """A wrong product that others used sends all ranks back; right the second time, all is well."""
    team = FakeTeam(lambda step, times: silent(step) if (step, times) == (3, 1) else None)
    result, notes = drive(team)
    assert team.assembled == [0, 2]
    assert (result.faults, result.restarts, len(result.losses)) == (1, 0, STEPS)
    assert notes == ["wrong product: step 3, rank 1: wrong: going back to step 2"]


@pytest.mark.parametrize(("world", "assembled"), [(2, [0, 2]), (1, [0])])
def test_a_step_that_stays_wrong_ends_the_run(world: int, assembled: list[int]) -> None:
    """The error comes out as it is: after a second try together, or at once from a lone rank."""
    team = FakeTeam(lambda step, _: silent(step) if step == 3 else None)
    with pytest.raises(SilentFaultError, match="step 3"):
        drive(team, world=world)
    assert team.assembled == assembled


def test_a_fork_ends_the_run_and_names_the_way_out() -> None:
    """Without a scrub nothing is declared."""
    team = FakeTeam(lambda step, _: ForkError("other values") if step == 1 else None)
    with pytest.raises(ForkError, match="other values") as caught:
        drive(team, logged=4)
    assert "--scrub" in caught.value.__notes__[0]
    assert team.declared == []


def test_a_scrub_declares_and_goes_on_where_the_log_does() -> None:
    """The faulty step is declared and the next logged state taken up; the others are redone."""
    team = FakeTeam(lambda step, _: ForkError("other values") if step == 1 else None)
    result, notes = drive(team, logged=4, scrub=True)
    assert (team.declared, team.assembled) == ([1], [0, 3])
    assert (result.declared, len(result.losses)) == (1, STEPS)
    assert "declared faulty, going on at step 3" in notes[0]
