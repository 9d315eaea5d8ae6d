"""The training job: `python -m cluster.train CONFIG`, and what `bitwitness train` calls.

The driver starts or joins Ray while the run is being prepared, places the actors, keeps a few
steps queued, and follows what the commit actor has appended to the log. If a rank is lost,
everyone goes back to the last kept state before the log's end; the re-executed steps must
reproduce their leaves, which appending them again checks.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from cluster.border import Outcome
from cluster.errors import ActorLostError

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
        restarts: how often lost actors were replaced.

    """

    folder: Path
    commitment: Path
    losses: tuple[float, ...]
    seconds: float
    step_seconds: float
    record_seconds: float
    restarts: int


def train_command(
    config: Path,
    *,
    out: Path | None = None,
    address: str | None = None,
    key: Path | None = None,
    resume: bool = False,
) -> Outcome:
    """Train the run of a configuration file, or go on with it, and say what came of it."""
    from cluster.config import load_job
    from cluster.places import existing_run, key_paths, run_folder, signing_key
    from cluster.progress import stderr_meter

    job = load_job(config)
    check_device(job, address)
    if resume:
        folder = existing_run(out or Path("runs") / job.run.name)
    else:
        folder = run_folder(job.run.name, out, job.cluster.storage)
    private, public = key_paths(folder)
    key_file = signing_key(key, private, public)
    with stderr_meter() as meter:
        result = train(job, folder, key_file, address=address, meter=meter, resume=resume)
    return train_outcome(result, key_file, public if key is None else None)


def train(
    job: Job,
    folder: Path,
    key: Path,
    *,
    address: str | None = None,
    meter: Meter,
    resume: bool = False,
) -> TrainResult:
    """Prepare, train and commit one run.

    Args:
        job: the run, and where to run it.
        folder: absolute, on storage that every node sees; not there yet, unless it is resumed.
        key: PEM file of the Ed25519 private key, on this node.
        address: a Ray cluster; else the job's, RAY_ADDRESS, or a private one.
        meter: gets the progress.
        resume: go on with the interrupted run in `folder`.

    Raises:
        cluster.errors.ClusterError: Ray fails, actors die too often, or the run is finished.
        trainer.errors.TrainerError: the run cannot be trained.
        transcript.errors.TranscriptError: what is written cannot be, or differs from the log.

    """
    from cluster.ray_session import ray_session

    does = "resuming" if resume else "preparing"
    meter.note(f"{does} {job.run.name} in {folder}, starting Ray")
    with ThreadPoolExecutor(1) as pool:
        prepared = pool.submit(_take_up if resume else _prepare, job, folder, key)
        with ray_session(address or job.cluster.address, cpus=job.cpus_wanted()):
            progress = prepared.result()
            from cluster.team import Team

            with Team(job, folder, key) as team:
                return _Driver(job, folder, team, meter, progress).run()


def train_outcome(result: TrainResult, key: Path, public: Path | None) -> Outcome:
    """Say what a run came to; `public` is the public key's file where it is known."""
    first, last = result.losses[0], result.losses[-1]
    document = {
        "run": str(result.folder),
        "commitment": str(result.commitment),
        "steps": len(result.losses),
        "first_loss": first,
        "last_loss": last,
        "seconds": round(result.seconds, 3),
        "step_ms": round(1000 * result.step_seconds, 3),
        "record_ms": round(1000 * result.record_seconds, 3),
        "restarts": result.restarts,
        "key": str(key),
        "public_key": str(public) if public else None,
    }
    trust = f" --trust {public}" if public else ""
    lines = [
        f"Trained    {len(result.losses)} steps in {result.seconds:.1f} s",
        f"Loss       {first:.3f} -> {last:.3f}",
        f"Run        {result.folder}",
        f"Commitment {result.commitment}",
        f"Key        {key} (private: keep it)",
        f"Next       bitwitness audit {result.folder}{trust}",
    ]
    return Outcome(document=document, text="\n".join(lines))


def check_device(job: Job, address: str | None) -> None:
    """Refuse `device: cuda` on a machine without a GPU, before anything is written.

    On a cluster the GPUs are elsewhere: the ranks find out when they open the run.

    Raises:
        trainer.kernels.errors.EnvironmentMissingError: no CuPy or no GPU.

    """
    from cluster.ray_session import in_job

    elsewhere = address or job.cluster.address or os.environ.get("RAY_ADDRESS") or in_job()
    if job.run.numerics.device == "cuda" and not elsewhere:
        from trainer.kernels import require

        require()


class _Driver:
    """Runs the steps of one run and survives lost actors."""

    def __init__(
        self, job: Job, folder: Path, team: Team, meter: Meter, progress: Progress
    ) -> None:
        self._job = job
        self._folder = folder
        self._team = team
        self._meter = meter
        self._resume_at = progress.resume_at
        self._losses = list(progress.losses)
        self._compute: list[float] = []
        self._record: list[float] = []
        self._restarts = 0

    def run(self) -> TrainResult:
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
        return TrainResult(
            folder=self._folder,
            commitment=Path(commitment),
            losses=tuple(self._losses),
            seconds=time.perf_counter() - began,
            step_seconds=median(self._compute),
            record_seconds=median(self._record),
            restarts=self._restarts,
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


def _take_up(job: Job, folder: Path, key: Path) -> Progress:
    from cluster.resume import interrupted
    from transcript.keys import PrivateKey

    return interrupted(job, folder, PrivateKey.load(key))


def _prepare(job: Job, folder: Path, key: Path) -> Progress:
    from cluster.resume import Progress
    from trainer.prepare import prepare_run
    from transcript.keys import PrivateKey
    from transcript.run import RunFolder

    run = RunFolder(folder)
    try:
        prepare_run(job.run, run, PrivateKey.load(key))
    except BaseException:
        if not run.registration.exists():
            # Nothing was promised yet, so nothing is lost, and the next attempt finds room.
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Progress()


if __name__ == "__main__":
    from cluster.cli import main

    main("train")
