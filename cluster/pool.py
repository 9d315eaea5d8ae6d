"""Who replays the steps of an audit: this process, processes beside it, or Ray actors.

All three map replay tasks to step reports, in whatever order they are finished. A task is
plain data and a report is plain data; nothing else passes between an audit and its workers.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cluster.errors import ActorLostError, PlacementError

if TYPE_CHECKING:
    from verifier.replay import ReplayTask
    from verifier.step_report import StepReport

Mapper = Callable[[Sequence["ReplayTask"]], Iterator["StepReport"]]

# A step whose replay ends its process this often would end every process.
_ATTEMPTS: Final = 2
_PLACEMENT_TIMEOUT_S: Final = 60.0
_FEWER = "use fewer --workers: each holds a step's arena and state in memory"


def inline() -> Mapper:
    """Replay one step after the other in this process."""
    from verifier.replay import run_task

    return lambda tasks: (run_task(task) for task in tasks)


@contextmanager
def processes(workers: int, threads: int) -> Iterator[Mapper]:
    """Replay in so many fresh processes, without Ray."""
    # Forking a process that has threads (torch has) can deadlock the child.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_limit_threads, initargs=(threads,)
    )

    def replay(tasks: Sequence[ReplayTask]) -> Iterator[StepReport]:
        try:
            futures = [executor.submit(_run_task, task) for task in tasks]
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            msg = "a replay process died"
            raise ActorLostError(msg, next_step=_FEWER) from None

    try:
        yield replay
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def ray_actors(workers: int, threads: int) -> Iterator[Mapper]:
    """Replay in so many verifier actors of the connected Ray, spread over its nodes."""
    crew = _Crew(workers, threads)
    try:
        yield crew.replay
    finally:
        crew.dismiss()


class VerifierActor:
    """Replays steps on one of the auditor's nodes."""

    def warm(self) -> None:
        """Import what a replay needs, while the audit is still checking the structure."""
        import verifier.replay  # noqa: F401

    def replay(self, task: ReplayTask) -> StepReport:
        """Replay one step on all its ranks."""
        return _run_task(task)


class _Crew:
    """Verifier actors, what each is doing, and their replacement."""

    def __init__(self, workers: int, threads: int) -> None:
        self._threads = threads
        self._actors = [self._hire() for _ in range(workers)]
        # what is awaited: reference -> (actor, task); None while an actor is warming up
        self._awaited: dict[Any, tuple[Any, ReplayTask | None]] = {
            actor.warm.remote(): (actor, None) for actor in self._actors
        }

    def replay(self, tasks: Sequence[ReplayTask]) -> Iterator[StepReport]:
        """Hand out tasks as actors become free; a lost actor's task is given out again."""
        import ray

        waiting = list(reversed(tasks))
        attempts = dict.fromkeys((task.step for task in tasks), 0)
        left = len(tasks)
        while left:
            ready, _ = ray.wait(list(self._awaited), timeout=self._patience())
            if not ready:
                msg = f"no verifier actor found a place within {_PLACEMENT_TIMEOUT_S:.0f} s"
                raise PlacementError(msg, next_step="use fewer --workers or --threads, or --no-ray")
            actor, task = self._awaited.pop(ready[0])
            try:
                report = self._result(ready[0])
            except ActorLostError as error:
                actor = self._replace(actor)
                if task is not None:
                    attempts[task.step] += 1
                    if attempts[task.step] == _ATTEMPTS:
                        msg = f"step {task.step}: its replay died twice: {error.message}"
                        raise ActorLostError(msg, next_step=_FEWER) from None
                    waiting.append(task)
            else:
                if task is not None:
                    left -= 1
                    yield report
            if waiting:
                self._give(actor, waiting.pop())

    def dismiss(self) -> None:
        """End the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def _patience(self) -> float | None:
        """Replays may take hours; only actors that do not even start are given up on."""
        busy = any(task is not None for _, task in self._awaited.values())
        return None if busy else _PLACEMENT_TIMEOUT_S

    def _give(self, actor: Any, task: ReplayTask) -> None:
        self._awaited[actor.replay.remote(task)] = (actor, task)

    def _replace(self, actor: Any) -> Any:
        self._actors.remove(actor)
        fresh = self._hire()
        self._actors.append(fresh)
        return fresh

    def _hire(self) -> Any:
        import ray

        from cluster.limits import thread_limits

        return ray.remote(
            num_cpus=self._threads,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": thread_limits(self._threads)},
        )(VerifierActor).remote()

    @staticmethod
    def _result(reference: Any) -> Any:
        from cluster.calls import get

        return get(reference)


def _run_task(task: ReplayTask) -> StepReport:
    from verifier.replay import run_task

    return run_task(task)


def _limit_threads(threads: int) -> None:
    """Before torch is imported: it sizes its pools then."""
    from cluster.limits import thread_limits

    os.environ.update(thread_limits(threads))
