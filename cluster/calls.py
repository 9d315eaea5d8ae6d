"""Calls to Ray actors, and how their errors come home."""

from __future__ import annotations

from typing import Any

import ray

from cluster.errors import ActorLostError, RayError

_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.NodeDiedError,
)


def get(refs: Any, timeout: float | None = None) -> Any:
    """Return the results of Ray calls.

    Raises:
        ActorLostError: an actor's process or node died.
        RayError: Ray failed, or `timeout` seconds passed.
        BaseException: what the actor's own code raised.

    """
    try:
        return ray.get(refs, timeout=timeout)
    except ray.exceptions.RayError as error:
        raise translate(error) from None


def translate(error: ray.exceptions.RayError) -> BaseException:
    """Return the exception that a Ray error stands for; a remote traceback becomes its note."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause: BaseException = error.cause
        if isinstance(cause, ray.exceptions.RayError):
            return translate(cause)
        cause.add_note(str(error))
        return cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    return ActorLostError(first) if isinstance(error, _LOST) else RayError(first)
