"""Leaf hashes and roots of a byte range in leaf order: `sha256-rfc9162-tile64-v1`.

The tree is RFC 9162's over SHA-256, its leaves are `Layout`'s. What is hashed is raw little-endian
bytes, never a printed form; what a leaf means follows from its index and from the layout, whose
document stands in the step graph that every step leaf names by digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import chain, pairwise
from typing import Final

import numpy as np

from transcript.errors import ContractError
from transcript.layout import ALGORITHM, Bytes, Layout, byte_view
from transcript.merkle import LEAF_PREFIX, root_of

__all__ = ["ALGORITHM", "arena_root", "leaf_hashes"]

# Below this a thread costs more than it hashes.
MIN_BYTES_PER_THREAD: Final = 1 << 20


def leaf_hashes(buffer: Bytes, layout: Layout, threads: int = 1) -> list[bytes]:
    """Hash every leaf of a byte range.

    Args:
        buffer: exactly `layout.bytes` bytes, C-contiguous.
        layout: gives the leaves.
        threads: upper bound; hashlib lets go of the interpreter lock, so they run in parallel.

    Returns:
        `layout.leaf_count` hashes of 32 bytes, in order.

    Raises:
        ContractError: the buffer's length is not the layout's.

    """
    view = byte_view(buffer).data
    if len(view) != layout.bytes:
        raise ContractError(f"buffer has {len(view)} bytes, the layout {layout.bytes}")
    threads = min(threads, len(view) // MIN_BYTES_PER_THREAD)
    if threads <= 1:
        return _hash_run(view, layout.leaf_bounds().tolist())
    runs = _runs(layout, threads)
    with ThreadPoolExecutor(threads) as pool:
        return list(chain.from_iterable(pool.map(lambda run: _hash_run(view, run), runs)))


def arena_root(buffer: Bytes, layout: Layout, threads: int = 1) -> bytes:
    """Return the RFC 9162 root (32 bytes) over the leaves of a byte range; see `leaf_hashes`."""
    return root_of(leaf_hashes(buffer, layout, threads))


def _runs(layout: Layout, threads: int) -> list[list[int]]:
    """Cut the leaves into contiguous runs of about equal bytes, each given by its bounds."""
    bounds = layout.leaf_bounds()
    goals = [layout.bytes * i // threads for i in range(threads + 1)]
    cuts = np.searchsorted(bounds, goals).tolist()
    return [bounds[start : end + 1].tolist() for start, end in pairwise(cuts)]


def _hash_run(view: memoryview, bounds: Sequence[int]) -> list[bytes]:
    # The loop is kept bare: at 16 KiB a leaf, a tenth of a leaf's time is one microsecond. Copying
    # a state that holds the prefix spares the lookup of the algorithm and a copy of the data.
    start_state = sha256(LEAF_PREFIX).copy
    hashes = []
    start = bounds[0]
    for end in bounds[1:]:
        state = start_state()
        state.update(view[start:end])
        hashes.append(state.digest())
        start = end
    return hashes
