"""Who adds up a vector over ranks when `all_reduce` runs: a communicator of this context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator_ext.errors import UnsupportedError


class Communicator(Protocol):
    """Adds a vector over all ranks, in the order that NUMERICS section 3 pins."""

    def all_reduce(self, flat: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return `emulator_ext.pinned.tree_sum` of all ranks' vectors, f32 [n]."""


_communicator: ContextVar[Communicator | None] = ContextVar("bitwitness_communicator", default=None)


@contextmanager
def use(communicator: Communicator) -> Iterator[None]:
    """Let `all_reduce` go through a communicator inside the block.

    The setting belongs to the calling thread's context: a step must run inside the block,
    in the same thread.
    """
    token = _communicator.set(communicator)
    try:
        yield
    finally:
        _communicator.reset(token)


def current(world: int) -> Communicator:
    """Return the installed communicator.

    Raises:
        UnsupportedError: none is installed.

    """
    communicator = _communicator.get()
    if communicator is None:
        msg = (
            f"bitwitness::all_reduce over {world} ranks needs a communicator: "
            "run the step inside trainer.ops.collective.use(...)"
        )
        raise UnsupportedError(msg)
    return communicator
