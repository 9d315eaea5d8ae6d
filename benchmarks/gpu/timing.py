"""Time on the device, by CUDA events."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARMUPS = 3
_REPEATS = 10


def milliseconds(action: Callable[[], object]) -> float:
    """Return the median time of an action on torch's current stream, after warm-ups."""
    for _ in range(_WARMUPS):
        action()
    times = []
    for _ in range(_REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[_REPEATS // 2]
