"""Who replays the steps of an audit: this process, processes beside it, or Ray actors.

Each is a mapper like the builtin `map`, except that results come in whatever order they are
finished. Functions and tasks are picklable and results are plain data; nothing else passes
between an audit and its workers.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

from cluster.errors import ActorLostError, PlacementError
from cluster.limits import thread_limits

T = TypeVar("T")
R = TypeVar("R")

# A task that ends its worker this often would end every worker.
_ATTEMPTS: Final = 2
_PLACEMENT_TIMEOUT_S: Final = 60.0
_FEWER: Final = "use fewer --workers: each holds a step's arena and state in memory"


class Mapper(Protocol):
    """Applies a function to tasks, somewhere."""

    def __call__(self, function: Callable[[T], R], tasks: Iterable[T], /) -> Iterator[R]:
        """Yield the results as they are finished."""


def inline(function: Callable[[T], R], tasks: Iterable[T], /) -> Iterator[R]:
    """Run one task after the other in this process."""
    return map(function, tasks)


@contextmanager
def processes(workers: int, threads: int) -> Iterator[Mapper]:
    """Run tasks in so many fresh processes, without Ray."""
    # Forking a process that has threads (torch has) can deadlock the child.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_limit_threads, initargs=(threads,)
    )

    def mapper(function: Callable[[T], R], tasks: Iterable[T], /) -> Iterator[R]:
        try:
            futures = [executor.submit(function, task) for task in tasks]
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            msg = "a replay process died"
            raise ActorLostError(msg, next_step=_FEWER) from None

    try:
        yield mapper
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def ray_actors(workers: int, threads: int) -> Iterator[Mapper]:
    """Run tasks in so many verifier actors of the connected Ray, spread over its nodes."""
    crew = _Crew(workers, threads)
    try:
        yield crew
    finally:
        crew.dismiss()


class VerifierActor:
    """Replays steps on one of the auditor's nodes."""

    def warm(self) -> None:
        """Import what a replay needs, while the audit is still checking the structure."""
        import verifier.replay  # noqa: F401  # the import is the point

    def apply(self, function: Callable[[T], R], task: T) -> R:
        """Run one task."""
        return function(task)


class _Crew:
    """Verifier actors, what each is doing, and their replacement."""

    def __init__(self, workers: int, threads: int) -> None:
        self._threads = threads
        self._actors: list[Any] = []
        self._idle: list[Any] = []
        # reference -> (actor, index of its task), None for work whose result nobody wants
        self._awaited: dict[Any, tuple[Any, int | None]] = {}
        for _ in range(workers):
            actor = self._hire()
            self._awaited[actor.warm.remote()] = (actor, None)

    def __call__(self, function: Callable[[T], R], tasks: Iterable[T], /) -> Iterator[R]:
        """Hand out tasks as actors become free; a lost actor's task is given out again."""
        todo = list(tasks)
        waiting = list(reversed(range(len(todo))))
        losses = [0] * len(todo)
        left = len(todo)
        self._awaited = {ref: (actor, None) for ref, (actor, _) in self._awaited.items()}
        while left:
            while self._idle and waiting:
                self._give(self._idle.pop(), function, todo, waiting.pop())
            actor, index, outcome = self._next_outcome()
            if isinstance(outcome, ActorLostError):
                self._replace(actor)
                if index is not None:
                    losses[index] += 1
                    if losses[index] == _ATTEMPTS:
                        raise outcome
                    waiting.append(index)
                continue
            self._idle.append(actor)
            if index is not None:
                left -= 1
                yield outcome

    def dismiss(self) -> None:
        """End the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def _give(self, actor: Any, function: Any, todo: Sequence[Any], index: int) -> None:
        self._awaited[actor.apply.remote(function, todo[index])] = (actor, index)

    def _next_outcome(self) -> tuple[Any, int | None, Any]:
        """Wait for any actor; return it, its task's index, and the result or its loss."""
        import ray

        from cluster.calls import get

        busy = any(index is not None for _, index in self._awaited.values())
        # A replay may take hours; only actors that do not even start are given up on.
        patience = None if busy else _PLACEMENT_TIMEOUT_S
        ready, _ = ray.wait(list(self._awaited), timeout=patience)
        if not ready:
            msg = f"no verifier actor found a place within {_PLACEMENT_TIMEOUT_S:.0f} s"
            raise PlacementError(msg, next_step="use fewer --workers or --threads, or --no-ray")
        actor, index = self._awaited.pop(ready[0])
        try:
            return actor, index, get(ready[0])
        except ActorLostError as error:
            msg = f"a verifier actor died: {error.message}"
            return actor, index, ActorLostError(msg, next_step=_FEWER)

    def _replace(self, actor: Any) -> None:
        self._actors.remove(actor)
        self._idle.append(self._hire())

    def _hire(self) -> Any:
        import ray

        remote: Any = ray.remote(
            num_cpus=self._threads,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": thread_limits(self._threads)},
        )
        self._actors.append(remote(VerifierActor).remote())
        return self._actors[-1]


def _limit_threads(threads: int) -> None:
    """Before torch is imported: it sizes its pools then."""
    os.environ.update(thread_limits(threads))
