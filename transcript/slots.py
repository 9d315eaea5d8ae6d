"""Which step lies in which slot of a stored array.

Steps are ascending and known before the first is written, so the index is fixed and small: runs of
[first step, number of steps, stride], in order. Every step that is not a multiple of the stride,
such as the last one, makes a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from transcript.errors import ContractError, LimitError, MalformedError, MissingError

MAX_SLOTS: Final = 10_000_000
MAX_RUNS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Slots:
    """Ascending steps as ranges; slot i holds the i-th step."""

    runs: tuple[range, ...]

    @classmethod
    def of(cls, steps: Sequence[int]) -> Slots:
        """Index ascending non-negative steps; ContractError for any others."""
        runs: list[range] = []
        for step in steps:
            if step < 0 or (runs and step <= runs[-1][-1]):
                raise ContractError(f"steps must ascend from 0 on: {step} does not")
            if runs and (extended := _extend(runs[-1], step)):
                runs[-1] = extended
            else:
                runs.append(range(step, step + 1))
        return cls(tuple(runs))

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def __iter__(self) -> Iterator[int]:
        for run in self.runs:
            yield from run

    def __contains__(self, step: object) -> bool:
        return any(step in run for run in self.runs)

    def slot(self, step: int) -> int:
        """Return the slot of a step; MissingError if the step was not to be stored."""
        before = 0
        for run in self.runs:
            if step in run:
                return before + run.index(step)
            before += len(run)
        raise MissingError(f"step {step} was not recorded")

    def document(self) -> list[list[int]]:
        """Return [[first, count, stride], ...]."""
        return [[run.start, len(run), run.step] for run in self.runs]

    @classmethod
    def from_document(cls, document: object, *, file: str = "") -> Slots:
        """Parse an untrusted index.

        Raises:
            MalformedError: not ascending runs of three integers.
            LimitError: more than MAX_RUNS runs or MAX_SLOTS slots.

        """
        if not isinstance(document, list):
            raise MalformedError("a slot index is a list", file=file)
        if len(document) > MAX_RUNS:
            raise LimitError(f"a slot index has over {MAX_RUNS} runs", file=file)
        slots = cls(tuple(_parse_run(item, file) for item in document))
        if any(b.start <= a[-1] for a, b in zip(slots.runs, slots.runs[1:], strict=False)):
            raise MalformedError("the runs of a slot index do not ascend", file=file)
        if len(slots) > MAX_SLOTS:
            raise LimitError(f"a slot index has over {MAX_SLOTS} slots", file=file)
        return slots


def _extend(run: range, step: int) -> range | None:
    stride = step - run[-1] if len(run) == 1 else run.step
    if step != run[-1] + stride:
        return None
    return range(run.start, step + 1, stride)


def _parse_run(item: object, file: str) -> range:
    if not isinstance(item, list) or len(item) != 3 or any(type(n) is not int for n in item):
        raise MalformedError("a slot index has runs of three integers", file=file)
    start, count, stride = item
    if start < 0 or not 1 <= count <= MAX_SLOTS or not 1 <= stride <= 2**40:
        raise MalformedError(f"a slot index has the run {item}", file=file)
    return range(start, start + (count - 1) * stride + 1, stride)
