"""How many threads the CPU operators use: a setting of the calling context, no bit's matter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from emulator_ext.paths import thread_count

_threads: ContextVar[int | None] = ContextVar("bitwitness_threads", default=None)


@contextmanager
def use(threads: int | None) -> Iterator[None]:
    """Run operators with at most `threads` threads inside the block; None means all processors.

    Raises:
        OperandError: `threads` is below 1.

    """
    thread_count(threads)
    token = _threads.set(threads)
    try:
        yield
    finally:
        _threads.reset(token)


def current() -> int | None:
    """Return the setting of this context."""
    return _threads.get()


def resolve(threads: int | None) -> int:
    """Return `threads`, or the number of processors of this process for None.

    Raises:
        OperandError: `threads` is below 1.

    """
    return thread_count(threads)
