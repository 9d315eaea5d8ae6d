"""The recorder of a rank: packs a step's values into its arena, hashes it, has it written.

Writing overlaps with the next step: one background thread writes in order, so that a state
is in the store only after the arenas of all steps before it. A power cut can still lose what was
written last, in any order: `flush` is called before a tree head covers it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainer.graph import Value
from transcript.leaves import arena_root
from transcript.store import RunStore

Buffer = NDArray[np.uint8]

_BUFFERS = 2  # one that is being filled, one that is being written


class Recorder:
    """Owns a rank's arena buffers and its writes; `seconds` is the time it held up the step.

    Args:
        store: open for writing.
        rank: from 0.
        threads: for hashing.

    """

    def __init__(self, store: RunStore, *, rank: int, threads: int) -> None:
        self._store, self._rank, self._threads = store, rank, threads
        self._layout = store.layouts.arena
        self._arenas = [np.zeros(self._layout.bytes, np.uint8) for _ in range(_BUFFERS)]
        self._pending: list[Future[None]] = []
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bitwitness-writer")
        self.seconds = 0.0

    def sink(self, value: Value, tensor: Tensor) -> Tensor:
        """Pack one value into the arena that is being filled; return the tensor unchanged."""
        started = time.perf_counter()
        self._layout.pack_into(self._arenas[0], value.name, tensor.numpy())
        self.seconds += time.perf_counter() - started
        return tensor

    @property
    def arena(self) -> Buffer:
        """The arena that is being filled, uint8 [arena bytes]."""
        return self._arenas[0]

    def fill(self, arena: Buffer) -> None:
        """Take a whole arena that was packed elsewhere, uint8 [arena bytes]."""
        np.copyto(self._arenas[0], arena)

    def root(self) -> str:
        """Return the root of the arena that is being filled, hex."""
        return arena_root(self._arenas[0], self._layout, self._threads).hex()

    def write_arena(self, step: int) -> None:
        """Have the filled arena written, and go on with another buffer.

        Raises:
            transcript.errors.StorageError: an earlier write failed.

        """
        # Writes happen in order, so once none is under way every other buffer is free.
        self._await(0)
        arena = self._arenas.pop(0)
        self._submit(lambda: self._store.write_arena(self._rank, step, arena))
        self._arenas.append(arena)

    def write_state(self, step: int, packed: Buffer) -> None:
        """Have the state before `step` written; errors as `write_arena`."""
        self._submit(lambda: self._store.write_state(step, packed))

    def flush(self) -> None:
        """Wait until all is written and would survive a power cut; errors as `write_arena`."""
        self._submit(self._store.sync)
        self._await(0)

    def _submit(self, write: Callable[[], None]) -> None:
        self._pending.append(self._writer.submit(write))

    def _await(self, most: int) -> None:
        """Wait until at most so many writes, the youngest, are under way."""
        while len(self._pending) > most:
            self._pending.pop(0).result()
