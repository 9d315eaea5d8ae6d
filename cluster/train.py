"""The training job: `python -m cluster.train CONFIG`, and what `bitwitness train` calls.

It starts or joins Ray while the run is being prepared, places the actors and lets
`cluster.driver` run the steps.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.border import Outcome
from cluster.driver import Driver, TrainResult
from cluster.errors import UsageError

if TYPE_CHECKING:
    from cluster.config import Job
    from cluster.progress import Meter
    from cluster.resume import Progress
    from cluster.team import Team

    # What is left to do before step 0, once there are actors.
    Begin = Callable[[Team], Progress]


def train_command(
    config: Path,
    *,
    out: Path | None = None,
    address: str | None = None,
    key: Path | None = None,
    resume: bool = False,
    scrub: bool = False,
) -> Outcome:
    """Train the run of a configuration file, or go on with it, and say what came of it."""
    from cluster.config import load_job
    from cluster.places import existing_run, key_paths, run_folder, signing_key
    from cluster.progress import stderr_meter

    if scrub and not resume:
        raise UsageError("--scrub is of a run that is taken up again", next_step="add --resume")
    job = load_job(config)
    check_device(job, address)
    if resume:
        folder = existing_run(out or Path("runs") / job.run.name)
    else:
        folder = run_folder(job.run.name, out, job.cluster.storage)
    private, public = key_paths(folder)
    key_file = signing_key(key, private, public)
    with stderr_meter() as meter:
        result = train(
            job, folder, key_file, address=address, meter=meter, resume=resume, scrub=scrub
        )
    return train_outcome(result, key_file, public if key is None else None)


def train(
    job: Job,
    folder: Path,
    key: Path,
    *,
    address: str | None = None,
    meter: Meter,
    resume: bool = False,
    scrub: bool = False,
) -> TrainResult:
    """Prepare, train and commit one run.

    Args:
        job: the run, and where to run it.
        folder: absolute, on storage that every node sees; not there yet, unless it is resumed.
        key: PEM file of the Ed25519 private key, on this node.
        address: a Ray cluster; else the job's, RAY_ADDRESS, or a private one.
        meter: gets the progress.
        resume: go on with the interrupted run in `folder`.
        scrub: before that, execute all logged steps again and declare those faulty that differ.

    Raises:
        cluster.errors.ClusterError: Ray fails, actors die too often, or the run is finished.
        trainer.errors.TrainerError: the run cannot be trained, or a device computes wrongly.
        transcript.errors.TranscriptError: what is written cannot be, or differs from the log.

    """
    from cluster.ray_session import ray_session

    does = "resuming" if resume else "preparing"
    meter.note(f"{does} {job.run.name} in {folder}, starting Ray")
    take_up = partial(_take_up, job, folder, key, scrub=scrub)
    stage = partial(_stage, job, folder, key)
    with ThreadPoolExecutor(1) as pool, nullcontext() if resume else _unpromised(folder):
        prepared = pool.submit(take_up if resume else stage)
        with ray_session(address or job.cluster.address, cpus=job.cpus_wanted()):
            begin = prepared.result()
            from cluster.team import Team

            with Team(job, folder, key) as team:
                progress = begin(team)
                return Driver(job, folder, team, meter, progress, scrub=scrub).run()


@contextmanager
def _unpromised(folder: Path) -> Iterator[None]:
    """Remove the folder if the run could not be registered.

    Nothing was promised then, so nothing is lost, and the next attempt finds room.
    """
    from transcript.run import RunFolder

    try:
        yield
    except BaseException:
        if not RunFolder(folder).registration.exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


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
        "recheck_ms": round(1000 * result.recheck_seconds, 3),
        "restarts": result.restarts,
        "faults": result.faults,
        "declared_faults": result.declared,
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


def _take_up(job: Job, folder: Path, key: Path, *, scrub: bool) -> Begin:
    """Find out how far an interrupted run got; its devices were probed before it began."""
    from cluster.resume import interrupted
    from transcript.keys import PrivateKey

    progress = interrupted(job, folder, PrivateKey.load(key), scrub=scrub)
    return lambda _team: progress


def _stage(job: Job, folder: Path, key: Path) -> Begin:
    """Write a run's files; probing every rank's device and registering is left to do."""
    from cluster.resume import Progress
    from trainer.prepare import register_run, stage_run
    from transcript.keys import PrivateKey
    from transcript.run import RunFolder

    private = PrivateKey.load(key)
    staged = stage_run(job.run, RunFolder(folder))

    def register(team: Team) -> Progress:
        probes = team.probe(staged.run_id, staged.initial_state_root)
        register_run(staged, private, probes)
        return Progress()

    return register


if __name__ == "__main__":
    from cluster.cli import main

    main("train")
