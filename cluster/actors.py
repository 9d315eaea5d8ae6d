"""The Ray actors of a training run, as plain classes: `cluster.team` makes actors of them.

Constructors only store arguments; work that can fail is in methods, whose exceptions reach
the caller as they are, while a failing constructor only looks like a dead actor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cluster.collective import Mailbox, RayTransport, Shard, ShardedSum, Slot
from cluster.errors import RayError
from cluster.gauges import StepGauges
from trainer.commit import Committer
from trainer.config import RunConfig
from trainer.device_probe import answers, open_device
from trainer.logged import logged_leaves
from trainer.ops import collective
from trainer.rank import RankStep, RankTrainer
from transcript.errors import ContractError
from transcript.keys import PrivateKey
from transcript.run import RunFolder

_TAKE_OVER_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """What the driver learns of a committed step; the slowest rank's times, in seconds.

    `faults` are sentences: what a rank's re-check found and a second execution put right.
    """

    step: int
    loss: float
    compute_seconds: float
    record_seconds: float
    recheck_seconds: float
    faults: tuple[str, ...]


class TrainerActor:
    """One rank of a run."""

    def __init__(self, config: RunConfig, folder: str, rank: int, threads: int) -> None:
        self._config = config
        self._folder = folder
        self._rank = rank
        self._threads = threads
        self._mailbox = Mailbox(config.train.world)
        self._communicator: ShardedSum
        self._trainer: RankTrainer

    def probe(self, run_id: str, root: str) -> bytes:
        """Ask this rank's device before step 0; see `trainer.device_probe`."""
        numerics = self._config.numerics
        multiply = open_device(numerics, self._threads)
        return answers(numerics, multiply, run_id=run_id, moment="start", root=root)

    def open(self, peers: Sequence[Any], resume_at: int) -> None:
        """Open the run before step `resume_at`, whose state must have been kept.

        Args:
            peers: the handles of all ranks' actors, in rank order.
            resume_at: the step to execute first.

        """
        transport = RayTransport(peers, self._rank)
        self._communicator = ShardedSum(self._rank, len(peers), transport, self._mailbox)
        self._trainer = RankTrainer(
            self._config, RunFolder(Path(self._folder)), rank=self._rank, threads=self._threads
        )
        self._trainer.expect(logged_leaves(RunFolder(Path(self._folder)))[resume_at:])
        if resume_at:
            self._trainer.restore(resume_at)

    def run_step(self) -> RankStep:
        """Execute, record and return the next step."""
        with collective.use(self._communicator):
            return self._trainer.run_step()

    def deliver(self, slot: Slot, source: int, shard: Shard) -> None:
        """Take a peer's shard; runs beside `run_step`, which waits for it."""
        self._mailbox.deliver(slot, source, shard)


class CommitActor:
    """The one writer of a run's log. The key is read from a file where this actor runs."""

    def __init__(self, config: RunConfig, folder: str, key: str) -> None:
        self._config = config
        self._folder = folder
        self._key = key
        self._committer: Committer | None = None
        self._faults = 0
        self._gauges: StepGauges

    def open(self) -> None:
        """Open the log, or take it up where it ends; harmless when repeated."""
        if self._committer is None:
            self._committer = self._take_over()
            self._gauges = StepGauges(self._config.name)

    def append(self, *steps: RankStep) -> StepSummary:
        """Commit one step of all ranks, given in rank order."""
        self._log().append(list(steps))
        summary = StepSummary(
            step=steps[0].step,
            loss=sum(step.metric("loss") for step in steps) / len(steps),
            compute_seconds=max(step.compute_seconds for step in steps),
            record_seconds=max(step.record_seconds for step in steps),
            recheck_seconds=max(step.recheck_seconds for step in steps),
            faults=tuple(step.fault for step in steps if step.fault),
        )
        self._faults += len(summary.faults)
        self._gauges.show(summary.step, summary.loss, summary.compute_seconds, self._faults)
        return summary

    def declare(self) -> tuple[int, int]:
        """Declare the step faulty that was appended with other values than logged.

        Returns:
            The step, and how many statements were signed.

        """
        statements, logged = self._log().declare()
        return logged.step, statements

    def finish(self) -> str:
        """Write weights, last tree head and commitment; return the commitment's path."""
        return str(self._log().finish())

    def _log(self) -> Committer:
        if self._committer is None:
            msg = "the commit actor was not opened"
            raise RayError(msg)
        return self._committer

    def _take_over(self) -> Committer:
        """Open the log as soon as the actor before this one is gone: Ray kills without waiting."""
        key = PrivateKey.load(Path(self._key))
        deadline = time.monotonic() + _TAKE_OVER_S
        while True:
            try:
                return Committer(self._config, RunFolder(Path(self._folder)), key)
            except ContractError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
