from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.audit import audit_outcome
from cluster.collective import Mailbox, ShardedSum
from cluster.config import Job
from cluster.errors import ActorLostError, ExistsError, PlacementError
from cluster.ray_session import RaySession
from cluster.resume import resume_step
from cluster.train import TrainResult
from tests.cluster.conftest import tiny_job, train_in
from tests.cluster.test_collective import Threads
from trainer.errors import ConfigError
from trainer.ops import collective
from trainer.prepare import prepare_run
from trainer.rank import RankStep, RankTrainer
from transcript.errors import ForkError
from transcript.keys import PrivateKey
from transcript.log import LogReader, StepLeaf
from transcript.run import RunFolder
from verifier.audit import Audit, AuditOptions

pytestmark = pytest.mark.ray


def leaves_of(folder: Path) -> list[StepLeaf]:
    run = RunFolder(folder)
    run_id = json.loads(run.leaves.read_bytes().splitlines()[0])["run_id"]
    with LogReader(run.log, run_id) as log:
        return list(log.leaves())


def roots_of(folder: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(leaf.state_before, leaf.state_after, leaf.arenas) for leaf in leaves_of(folder)]


def verdict_of(folder: Path, out: Path) -> str:
    with Audit.open(folder, AuditOptions(threads=1)) as audit:
        result = audit.conclude(audit.run(), out, PrivateKey.generate())
    return str(audit_outcome(result, 0.0).document["verdict"])


class KillAt:
    """A meter that ends actors' processes when so many steps are committed."""

    def __init__(
        self,
        *steps: int,
        actors: tuple[str, ...] = ("TrainerActor",),
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self.steps = list(steps)
        self.actors = actors
        self.then = then
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep it."""
        self.notes.append(text)

    def start(self, label: str, total: int) -> None:
        """Nothing to do."""

    def advance(self, done: int, detail: str) -> None:
        """End one process of each kind, if it is time."""
        del detail
        if done in self.steps:
            self.steps.remove(done)
            for actor in self.actors:
                process_of(actor).send_signal(signal.SIGKILL)
            self.then()


def process_of(actor: str) -> psutil.Process:
    """Find the process of an actor: Ray puts the class into its title."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if actor in " ".join(process.cmdline()):
                return process
    raise AssertionError(f"no {actor}")


def expected_roots(job: Job, folder: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    """Compute a run's roots without Ray: ranks are threads that exchange in memory."""
    run = RunFolder(folder)
    prepare_run(job.run, run, PrivateKey.generate())
    world = job.run.train.world
    mailboxes = [Mailbox(world) for _ in range(world)]

    def train_rank(rank: int) -> list[RankStep]:
        trainer = RankTrainer(job.run, run, rank=rank, threads=1)
        total = ShardedSum(rank, world, Threads(mailboxes, rank), mailboxes[rank])
        with collective.use(total):
            return [trainer.run_step() for _ in range(job.run.train.steps)]

    with ThreadPoolExecutor(world) as pool:
        ranks = list(pool.map(train_rank, range(world)))
    return [
        (steps[0].state_before, steps[0].state_after, tuple(step.arena for step in steps))
        for steps in zip(*ranks, strict=True)
    ]


def test_run_is_what_plain_python_computes(trained: TrainResult, tmp_path: Path) -> None:
    """Trained by actors, a run has the roots that a rank computes alone in one process."""
    assert roots_of(trained.folder) == expected_roots(tiny_job(), tmp_path / "plain")
    assert trained.restarts == 0
    assert len(trained.losses) == tiny_job().run.train.steps
    assert trained.losses[-1] < trained.losses[0]


@pytest.mark.parametrize(("world", "losses"), [(1, (2, 5)), (2, (5,))])
def test_lost_rank_is_replaced(
    local_ray: RaySession, tmp_path: Path, world: int, losses: tuple[int, ...]
) -> None:
    """Whatever rank dies, the run ends with the roots of an undisturbed one and passes an audit."""
    meter = KillAt(*losses)
    job = tiny_job(
        restarts=len(losses),
        train={"world": world, "steps": 8},
        record={"policy": "every", "every": 3},
    )
    result = train_in(tmp_path / "run", job, meter)
    assert result.restarts == len(losses)
    assert len([note for note in meter.notes if "going back to step" in note]) == len(losses)
    assert roots_of(result.folder) == expected_roots(job, tmp_path / "plain")
    assert len(result.losses) == 8
    assert verdict_of(result.folder, tmp_path / "audit") == "PASS"


class StopAt(KillAt):
    """A driver that dies in the middle."""

    def advance(self, done: int, detail: str) -> None:
        """Raise when it is time."""
        del detail
        if done in self.steps:
            raise InterruptedError(f"after step {done}")


@pytest.mark.parametrize("newest_is_lost", [False, True])
def test_interrupted_run_is_resumed(
    local_ray: RaySession, tmp_path: Path, *, newest_is_lost: bool
) -> None:
    """A run whose driver died goes on from a state that is there, to the same roots."""
    job = tiny_job(train={"steps": 8}, record={"policy": "every", "every": 2})
    run = tmp_path / "run"
    with pytest.raises(InterruptedError):
        train_in(run, job, StopAt(7))
    if newest_is_lost:
        chunks = RunFolder(run).store / "state" / "c"
        shutil.rmtree(max(chunks.iterdir(), key=lambda path: int(path.name)))
    result = train_in(run, job, StopAt(), resume=True)
    assert roots_of(run) == expected_roots(job, tmp_path / "plain")
    assert len(result.losses) == 8
    assert verdict_of(run, tmp_path / "audit") == "PASS"
    with pytest.raises(ExistsError, match="finished"):
        train_in(run, job, StopAt(), resume=True)


def test_only_the_registered_run_is_resumed(local_ray: RaySession, tmp_path: Path) -> None:
    """Another configuration cannot go on with a run."""
    run = tmp_path / "run"
    with pytest.raises(InterruptedError):
        train_in(run, tiny_job(train={"steps": 6}), StopAt(2))
    with pytest.raises(ConfigError, match="another configuration"):
        train_in(run, tiny_job(train={"steps": 7}), StopAt(), resume=True)


def test_too_many_losses_end_the_run(local_ray: RaySession, tmp_path: Path) -> None:
    """A run whose actors die more often than `cluster.restarts` says gives up; the log stays."""
    with pytest.raises(ActorLostError, match="gave up after 1 lost actors"):
        train_in(tmp_path / "run", tiny_job(train={"steps": 6}), KillAt(2))
    assert len(leaves_of(tmp_path / "run")) >= 2


def forge_loss(folder: Path) -> None:
    """Change the last bit of the loss that the log has of step 0."""
    path = RunFolder(folder).leaves
    lines = path.read_bytes().splitlines(keepends=True)
    bits = json.loads(lines[0])["metrics"]["loss"]
    forged = f"{int(bits, 16) ^ 1:08x}"
    lines[0] = lines[0].replace(bits.encode(), forged.encode())
    path.write_bytes(b"".join(lines))


def test_a_scrub_declares_what_it_cannot_reproduce(local_ray: RaySession, tmp_path: Path) -> None:
    """A resumed run stops at a wrong step; with a scrub it declares it, ends, and never passes."""
    run = tmp_path / "run"
    job = tiny_job(train={"steps": 6}, record={"policy": "all", "checkpoint_every": 6})
    with pytest.raises(InterruptedError):
        train_in(run, job, StopAt(4))
    forge_loss(run)
    with pytest.raises(ForkError, match="step 0 was logged with other values"):
        train_in(run, job, resume=True)
    meter = StopAt()
    result = train_in(run, job, meter, resume=True, scrub=True)
    assert (result.declared, len(result.losses)) == (1, 6)
    assert any("step 0 was logged with other values" in note for note in meter.notes)
    assert roots_of(run) == expected_roots(job, tmp_path / "plain")
    assert verdict_of(run, tmp_path / "audit") == "INCOMPLETE"


def test_devices_are_probed_before_the_run_is_registered(trained: TrainResult) -> None:
    """Each rank's actor answers once before step 0 and once after the last step."""
    folder = RunFolder(trained.folder)
    assert folder.probe("start", 0).read_bytes() != folder.probe("end", 0).read_bytes()
    with Audit.open(trained.folder, AuditOptions(threads=1)) as audit:
        found = {check.name: check.ok for check in audit.structure()}
    assert found["device.probe.start"]
    assert found["device.probe.end"]


def test_reexecution_must_reproduce_the_log(local_ray: RaySession, tmp_path: Path) -> None:
    """If the log holds other values for a step than its re-execution gives, the run stops."""
    folder = tmp_path / "run"
    job = tiny_job(
        restarts=1,
        train={"steps": 6},
        record={"policy": "every", "every": 6, "checkpoint_every": 6},
    )
    with pytest.raises(ForkError, match="step 0 was logged with other values"):
        train_in(
            folder,
            job,
            KillAt(2, actors=("TrainerActor", "CommitActor"), then=lambda: forge_loss(folder)),
        )


def test_cluster_without_room_is_named(local_ray: RaySession, tmp_path: Path) -> None:
    """A run that asks for more than the cluster has says what it asked for and what is there."""
    job = tiny_job()
    cluster = job.cluster.model_copy(update={"gpus_per_rank": 2.0, "placement_timeout": 1})
    greedy = type(job)(run=job.run, cluster=cluster)
    with pytest.raises(PlacementError, match=r"1 ranks of 1 CPU, 2 GPU .* the cluster has 4 CPU"):
        train_in(tmp_path / "run", greedy)


def test_failed_preparation_leaves_nothing(local_ray: RaySession, tmp_path: Path) -> None:
    """If a run cannot be prepared its folder is not left in the way of the next attempt."""
    from trainer.errors import DataError

    with pytest.raises(DataError):
        train_in(tmp_path / "run", tiny_job(data={"source": str(tmp_path / "no-such-text")}))
    assert not (tmp_path / "run").exists()


@given(st.sets(st.integers(0, 50), min_size=1), st.integers(0, 51))
def test_resume_is_before_the_logs_end(kept: set[int], committed: int) -> None:
    """One goes back to the newest kept state before the last logged step, else to the start."""
    step = resume_step(sorted(kept), committed)
    assert step == 0 or (step in kept and step < committed)
    assert not any(step < other < committed for other in kept)
