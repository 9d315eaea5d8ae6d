"""Leaf hashing beside one hashlib call over the same bytes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable

import numpy as np

from transcript.layout import Layout
from transcript.leaves import arena_root

_SHAPE = (64, 1024, 256)  # 64 MiB of f32, in 16 KiB leaves
_REPEATS = 5


def best_seconds(action: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Return the shortest of several runs: the least disturbed one."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Print GB/s and ratios for one thread and for all."""
    layout = Layout.build([("tensor", "f32", _SHAPE)])
    buffer = np.random.default_rng(0).integers(0, 256, layout.bytes, dtype=np.uint8)
    gigabytes = layout.bytes / 1e9
    plain = gigabytes / best_seconds(lambda: hashlib.sha256(buffer).digest())
    print(f"hashing: {layout.bytes >> 20} MiB in {layout.leaf_count} leaves")
    print(f"  hashlib SHA-256, one call, 1 thread     {plain:6.2f} GB/s")
    for threads in range(1, (os.cpu_count() or 1) + 1):
        speed = gigabytes / best_seconds(lambda n=threads: arena_root(buffer, layout, n))
        print(
            f"  Merkle root over leaves, {threads} thread(s)   "
            f"{speed:6.2f} GB/s  {speed / plain:.2f}x"
        )


if __name__ == "__main__":
    main()
