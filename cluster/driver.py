"""The driver of a run: keeps a few steps queued, follows the log, and survives what goes wrong.

If a rank is lost, or found a wrong product that others have used, everyone goes back to the last
kept state before the log's end; the re-executed steps must reproduce their leaves, which appending
them again checks. A scrub goes back to the beginning instead, and declares the logged steps faulty
that are not reproduced.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from cluster.errors import ActorLostError
from trainer.errors import SilentFaultError
from transcript.errors import ForkError

if TYPE_CHECKING:
    from cluster.config import Job
    from cluster.progress import Meter
    from cluster.resume import Progress
    from cluster.team import QueuedStep, Team

# Queued beyond the step that is awaited, so that no rank waits for the driver.
_QUEUED_STEPS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """A finished run.

    Attributes:
        folder: the run.
        commitment: path of the signed commitment.
        losses: mean loss of every step.
        seconds: from placing the actors to the commitment.
        step_seconds: median of the slowest rank's computation in a step.
        record_seconds: the same for packing, hashing and writing.
        recheck_seconds: the same for the re-check.
        restarts: how often lost actors were replaced.
        faults: steps that a re-check found wrong and that were executed again.
        declared: statements about logged steps that were found wrong.

    """

    folder: Path
    commitment: Path
    losses: tuple[float, ...]
    seconds: float
    step_seconds: float
    record_seconds: float
    recheck_seconds: float
    restarts: int
    faults: int
    declared: int


class Driver:
    """Runs the steps of one run and survives lost actors, wrong steps and, in a scrub, forks."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        team: Team,
        meter: Meter,
        progress: Progress,
        *,
        scrub: bool = False,
    ) -> None:
        self._job = job
        self._folder = folder
        self._team = team
        self._meter = meter
        self._resume_at = progress.resume_at
        self._losses = list(progress.losses)
        self._compute: list[float] = []
        self._record: list[float] = []
        self._recheck: list[float] = []
        self._restarts = self._faults = self._declared = 0
        self._suspects: set[int] = set()
        self._scrub = scrub

    def run(self) -> TrainResult:
        """Run to the commitment."""
        self._meter.start("train", self._job.run.train.steps)
        began = time.perf_counter()
        commitment, resume_at = None, self._resume_at
        while commitment is None:
            try:
                self._team.assemble(resume_at)
                self._steps_from(resume_at)
                commitment = self._team.finish()
            except ActorLostError as error:
                resume_at = self._after_loss(error)
            except SilentFaultError as error:
                resume_at = self._after_silent_fault(error)
            except ForkError as error:
                resume_at = self._after_fork(error)
        return TrainResult(
            folder=self._folder,
            commitment=Path(commitment),
            losses=tuple(self._losses),
            seconds=time.perf_counter() - began,
            step_seconds=median(self._compute),
            record_seconds=median(self._record),
            recheck_seconds=median(self._recheck),
            restarts=self._restarts,
            faults=self._faults,
            declared=self._declared,
        )

    def _steps_from(self, step: int) -> None:
        steps = self._job.run.train.steps
        queue: deque[QueuedStep] = deque()
        for awaited in range(step, steps):
            while len(queue) <= _QUEUED_STEPS and awaited + len(queue) < steps:
                queue.append(self._team.queue_step())
            summary = queue.popleft().wait()
            self._compute.append(summary.compute_seconds)
            self._record.append(summary.record_seconds)
            self._recheck.append(summary.recheck_seconds)
            for fault in summary.faults:
                self._faults += 1
                self._meter.note(f"wrong product, corrected: {fault}")
            if awaited < len(self._losses):
                continue  # executed again, and found equal
            self._losses.append(summary.loss)
            milliseconds = 1000 * (summary.compute_seconds + summary.record_seconds)
            self._meter.advance(awaited + 1, f"loss {summary.loss:.3f}  {milliseconds:.0f} ms/step")

    def _after_loss(self, error: ActorLostError) -> int:
        """Count a lost actor and return the step to go back to, or give up."""
        from cluster.resume import stored_resume_step
        from transcript.run import RunFolder

        self._restarts += 1
        if self._restarts > self._job.cluster.restarts:
            msg = f"gave up after {self._restarts} lost actors: {error.message}"
            raise ActorLostError(msg, next_step="see Ray's logs; the log so far is intact")
        step = stored_resume_step(self._job.run, RunFolder(self._folder), len(self._losses))
        self._meter.note(
            f"an actor was lost after step {len(self._losses)}: going back to step {step}"
        )
        return step

    def _after_silent_fault(self, error: SilentFaultError) -> int:
        """Return the step to go back to, together, or give up on a step that stays wrong.

        A rank alone has executed its step twice already. Among others it cannot: they have used
        what it made.
        """
        from cluster.resume import stored_resume_step
        from transcript.run import RunFolder

        if self._job.run.train.world == 1 or error.step in self._suspects:
            raise error
        self._suspects.add(error.step)
        self._faults += 1
        step = stored_resume_step(self._job.run, RunFolder(self._folder), len(self._losses))
        self._meter.note(f"wrong product: {error}: going back to step {step}")
        return step

    def _after_fork(self, error: ForkError) -> int:
        """In a scrub, declare the logged step faulty; return where the log goes on after it."""
        from cluster.resume import state_after_fault
        from transcript.run import RunFolder

        if not self._scrub:
            error.add_note("`--resume --scrub` declares such a step faulty and goes on")
            raise error
        step, statements = self._team.declare()
        self._declared += statements
        after = state_after_fault(self._job.run, RunFolder(self._folder), step)
        self._meter.note(
            f"step {step} was logged with other values: declared faulty, going on at step {after}"
        )
        return after
