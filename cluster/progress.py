"""Progress on stderr: a bar on a terminal, plain lines at intervals anywhere else.

A Ray job's log, a CI log and a pipe get one line every few seconds, and always the first and
the last; standard output stays free for the result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_INTERVAL_S: Final = 5.0


class Meter(Protocol):
    """What a job reports to while it works."""

    def note(self, text: str) -> None:
        """Say one sentence."""

    def start(self, label: str, total: int) -> None:
        """Begin a stage of `total` items."""

    def advance(self, done: int, detail: str) -> None:
        """Say that `done` items of the stage are finished, and how it goes."""


class SilentMeter:
    """Reports to nobody."""

    def note(self, text: str) -> None:
        """Ignore it."""

    def start(self, label: str, total: int) -> None:
        """Ignore it."""

    def advance(self, done: int, detail: str) -> None:
        """Ignore it."""


class LineMeter:
    """Writes plain lines at intervals.

    Args:
        write: takes one line without its end.
        clock: seconds, monotonic.

    """

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._label = ""
        self._total = 0
        self._said = float("-inf")
        self._first: tuple[float, int] | None = None

    def note(self, text: str) -> None:
        """Write the sentence."""
        self._write(text)

    def start(self, label: str, total: int) -> None:
        """Begin a stage."""
        self._label, self._total = label, total
        self._said, self._first = float("-inf"), None

    def advance(self, done: int, detail: str) -> None:
        """Write a line if it is the last, or if the previous one is old enough."""
        now = self._clock()
        if done < self._total and now - self._said < LINE_INTERVAL_S:
            return
        self._said = now
        self._write(f"{self._label} {done}/{self._total}  {detail}{self._left(now, done)}")

    def _left(self, now: float, done: int) -> str:
        """Estimate from the pace since the first item: workers start before it, at their own."""
        if self._first is None:
            self._first = (now, done)
        began, items = now - self._first[0], done - self._first[1]
        if not items or done >= self._total:
            return ""
        return f"  {began / items * (self._total - done):.0f} s left"


class BarMeter:
    """Draws one bar a stage with rich."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bars = Progress(
            TextColumn("{task.description:<6}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
        )
        self._task: TaskID | None = None

    def note(self, text: str) -> None:
        """Print the sentence above the bars."""
        self._bars.console.print(text, highlight=False, markup=False)

    def start(self, label: str, total: int) -> None:
        """Add a bar."""
        self._bars.start()
        self._task = self._bars.add_task(label, total=total, detail="")

    def advance(self, done: int, detail: str) -> None:
        """Move the current bar."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, detail=detail)

    def stop(self) -> None:
        """Leave the bars as they are and give the terminal back."""
        self._bars.stop()


@contextmanager
def stderr_meter() -> Iterator[Meter]:
    """Return the meter that fits what stderr is connected to."""
    if not sys.stderr.isatty():
        yield LineMeter(_write_line)
        return
    meter = BarMeter()
    try:
        yield meter
    finally:
        meter.stop()


def _write_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
