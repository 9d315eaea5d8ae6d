"""The actors of one training run: their placement, and how they are replaced together.

One placement group holds a bundle per rank and one for the commit actor, which is pinned to
the driver's node: the signing key is a file there and never travels. When a rank dies all
ranks are replaced, because the others may be waiting inside an exchange with it; all go back
to the same kept state. The commit actor stays as long as it lives.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Self

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.actors import CommitActor, StepSummary, TrainerActor
from cluster.calls import get
from cluster.collective import EXCHANGE_GROUP
from cluster.config import COMMIT_CPUS, Job
from cluster.errors import ActorLostError, PlacementError
from cluster.limits import thread_limits

# A sliver of the resource that every Ray node has one of.
_NODE_SHARE: Final = 0.001
# A fresh worker process imports torch before it answers.
_OPEN_TIMEOUT_S: Final = 300.0
# Ray's annotations leave out options that it documents (concurrency groups).
_RAY: Any = ray


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """References of every rank's step and, last, of its commitment."""

    references: tuple[Any, ...]

    def wait(self) -> StepSummary:
        """Return the commitment's summary; raise what any rank raises, as soon as it does.

        The commitment alone would not do: it waits for all ranks, and the others may be
        waiting inside an exchange for the one that failed.
        """
        summary: StepSummary = get(list(self.references))[-1]
        return summary


class Team:
    """The trainer actors and the commit actor of a run. Use as a context manager.

    Args:
        job: the run and its resources.
        folder: the run's folder, visible from every node.
        key: the private key's file on this node.

    Raises:
        PlacementError: the cluster has no room within `cluster.placement_timeout`.

    """

    def __init__(self, job: Job, folder: Path, key: Path) -> None:
        self._job = job
        self._folder = folder
        self._key = key
        self._group = self._place()
        self._ranks: list[Any] = []
        self._fresh = False
        self._commit: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._dismiss_ranks()
        if self._commit is not None:
            ray.kill(self._commit)
        with contextlib.suppress(ray.exceptions.RayError):
            remove_placement_group(self._group)

    def probe(self, run_id: str, root: str) -> list[bytes]:
        """Return what each rank's device answers before the run is registered, in rank order."""
        self._make_ranks()
        self._fresh = True
        answers = [rank.probe.remote(run_id, root) for rank in self._ranks]
        return [bytes(answer) for answer in get(answers, _OPEN_TIMEOUT_S)]

    def assemble(self, resume_at: int) -> None:
        """Make the ranks anew, unless they just were, and open the run before `resume_at`."""
        if not self._fresh:
            self._make_ranks()
        self._fresh = False
        # The ranks read what is logged, so whatever is still on its way there comes first.
        self._open_log()
        opened = [rank.open.remote(self._ranks, resume_at) for rank in self._ranks]
        self._await_open(opened)

    def queue_step(self) -> QueuedStep:
        """Queue the next step on every rank, and its commitment."""
        ranks = [rank.run_step.remote() for rank in self._ranks]
        return QueuedStep((*ranks, self._commit.append.remote(*ranks)))

    def declare(self) -> tuple[int, int]:
        """Declare the step faulty at which the log was found to differ; see `CommitActor`."""
        step, statements = get(self._commit.declare.remote())
        return int(step), int(statements)

    def finish(self) -> str:
        """Write weights and commitment; return the commitment's path."""
        return str(get(self._commit.finish.remote()))

    def _make_ranks(self) -> None:
        self._dismiss_ranks()
        self._ranks = [self._trainer(rank) for rank in range(self._job.run.train.world)]

    def _trainer(self, rank: int) -> Any:
        cluster = self._job.cluster
        threads = cluster.threads_per_rank or _default_threads(self._job.run.train.world)
        actor = self._actor(
            TrainerActor, rank, cluster.cpus_per_rank, cluster.gpus_per_rank, threads
        )
        return actor.remote(self._job.run, str(self._folder), rank, threads)

    def _actor(self, kind: type, bundle: int, cpus: float, gpus: float, threads: int) -> Any:
        groups = {EXCHANGE_GROUP: 1} if kind is TrainerActor else None
        return _RAY.remote(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            concurrency_groups=groups,
            runtime_env={"env_vars": thread_limits(threads)},
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=bundle
            ),
        )(kind)

    def _bundle(self) -> dict[str, float]:
        """Return what one rank reserves."""
        cluster = self._job.cluster
        gpus = {"GPU": cluster.gpus_per_rank} if cluster.gpus_per_rank else {}
        return {"CPU": cluster.cpus_per_rank, **gpus}

    def _place(self) -> Any:
        cluster = self._job.cluster
        here = f"node:{_RAY.util.get_node_ip_address()}"
        bundles = [self._bundle() for _ in range(self._job.run.train.world)]
        bundles.append({"CPU": COMMIT_CPUS, here: _NODE_SHARE})
        group = placement_group(bundles)
        if not group.wait(cluster.placement_timeout):
            remove_placement_group(group)
            self._refuse()
        return group

    def _refuse(self) -> NoReturn:
        wanted = f"{self._job.run.train.world} ranks of {_shown(self._bundle())}"
        patience = self._job.cluster.placement_timeout
        there = _shown(_RAY.cluster_resources())
        msg = f"no room for {wanted} within {patience} s; the cluster has {there}"
        raise PlacementError(msg, next_step="ask for less in the `cluster:` section, or add nodes")

    def _await_open(self, opened: Sequence[Any]) -> None:
        """Wait for actors to open the run.

        Raises PlacementError if they are not placed in time because their node is gone.

        Ray notices a dead node later than the calls to its actors fail: until then the group looks
        placed, so it is asked only after the ranks had their time.
        """
        patience = self._job.cluster.placement_timeout
        ray.wait(list(opened), num_returns=len(opened), timeout=patience)
        if not self._group.wait(patience):
            self._refuse()
        get(list(opened), _OPEN_TIMEOUT_S)

    def _open_log(self) -> None:
        """Make sure that there is a commit actor and that it has the log open."""
        if self._commit is not None:
            with contextlib.suppress(ActorLostError):
                get(self._commit.open.remote(), _OPEN_TIMEOUT_S)
                return
        actor = self._actor(CommitActor, self._job.run.train.world, COMMIT_CPUS, 0.0, 1)
        self._commit = actor.remote(self._job.run, str(self._folder), str(self._key))
        self._await_open([self._commit.open.remote()])

    def _dismiss_ranks(self) -> None:
        for actor in self._ranks:
            ray.kill(actor)
        self._ranks = []


def _default_threads(world: int) -> int:
    return max((os.cpu_count() or 1) // world, 1)


def _shown(resources: Mapping[str, float]) -> str:
    kinds = [f"{amount:g} {kind}" for kind, amount in resources.items() if kind in {"CPU", "GPU"}]
    return ", ".join(kinds) or "nothing"
