"""Time on the device, by CUDA events, within a time limit and whatever fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import torch

T = TypeVar("T")

_WARMUPS = 3
_REPEATS = 10
# A slow action is repeated less often: its times differ less, and minutes on a GPU are few.
_SECONDS = 1.0


class DeviceLostError(Exception):
    """The device takes no more work: nothing that follows can be measured."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What is printed as it is measured, and what could not be.

    Attributes:
        deadline: of `time.monotonic`; what would begin later is left out, by name.

    """

    deadline: float
    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Print a line at once."""
        print(line, flush=True)

    def attempt(self, name: str, part: Callable[[], T]) -> T | None:
        """Return what a part returns, or None if it failed or time is up.

        Raises:
            DeviceLostError: after the failure the device does not even wait.

        """
        if time.monotonic() > self.deadline:
            self.left_out.append(name)
            return None
        try:
            return part()
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001  # a compiler's, a driver's or a kernel's
            self.fail(name, error)
            return None

    def time(
        self,
        name: str,
        action: Callable[[], object],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> float | None:
        """Return the milliseconds of an action inside a context; see `attempt` for the rest."""

        def part() -> float:
            with within():
                return milliseconds(action)

        return self.attempt(name, part)

    def fail(self, name: str, error: Exception) -> None:
        """Report a failure; for errors see `attempt`."""
        self.failed.append(name)
        self.say(f"  {name}: FAILED  {type(error).__name__}: {str(error).strip()}"[:300])
        try:
            torch.cuda.synchronize()
        except Exception as lost:
            raise DeviceLostError(name) from lost


def milliseconds(action: Callable[[], object]) -> float:
    """Return the median time of an action on torch's current stream, after warm-ups."""
    action()  # compiles
    torch.cuda.synchronize()
    begin = time.monotonic()
    times: list[float] = []
    for i in range(_WARMUPS - 1 + _REPEATS):
        measured = _once(action)
        late = time.monotonic() - begin > _SECONDS
        if i >= _WARMUPS - 1 or late:
            times.append(measured)
        if late:
            break
    return sorted(times)[len(times) // 2]


def _once(action: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    action()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
