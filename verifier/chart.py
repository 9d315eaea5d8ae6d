"""The loss curve as inline SVG geometry: a few hundred points, however long the run was.

Pure arithmetic from committed losses and step verdicts to coordinates; the template draws
them. Outcomes differ in shape as well as in colour, so they can be told apart in print and by
readers who do not see the colours.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verifier.verdict import Verdict

WIDTH, HEIGHT = 880, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 34
MAX_BUCKETS = 300
MAX_MARKS = 160

SHAPES: Mapping[Verdict, str] = {
    Verdict.MATCH: "circle",
    Verdict.MISMATCH: "cross",
    Verdict.INVALID_COMMITMENT: "diamond",
    Verdict.NON_RESPONSE: "square",
    Verdict.INCONCLUSIVE: "triangle",
    Verdict.DECLARED_FAULT: "triangle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A challenged step: where, in which shape, and what a pointer over it reads."""

    x: float
    y: float
    shape: str
    verdict: Verdict
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A line of the grid: its coordinate and label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Geometry in SVG user units; `line` is a polyline's points, empty if there are none."""

    line: str
    marks: tuple[Mark, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    description: str


def f32(bits: str) -> float:
    """Return the value of 8 hexadecimal digits; NaN for anything else."""
    try:
        return float(struct.unpack(">f", bytes.fromhex(bits))[0])
    except (ValueError, struct.error):
        return math.nan


def loss_chart(losses: Sequence[str], outcomes: Mapping[int, Verdict]) -> Chart:
    """Lay out the loss of each step and a mark for each challenged step.

    Args:
        losses: f32 bits by step, 8 hexadecimal digits; others are left out of the line.
        outcomes: verdict by challenged step.

    """
    known = [(step, f32(bits)) for step, bits in enumerate(losses)]
    points = [(step, loss) for step, loss in known if math.isfinite(loss)]
    values = dict(points)
    ticks = _nice_ticks([loss for _, loss in points])
    last = max(len(losses) - 1, 1)

    def x(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / last, 1)

    def y(loss: float) -> float:
        share = (loss - ticks[0]) / (ticks[-1] - ticks[0])
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    middle = (ticks[0] + ticks[-1]) / 2
    return Chart(
        line=" ".join(f"{x(step)},{y(loss)}" for step, loss in _thin(points)),
        marks=tuple(
            Mark(
                x=x(step),
                y=y(values.get(step, middle)),
                shape=SHAPES[verdict],
                verdict=verdict,
                title=f"step {step}: {verdict}",
            )
            for step, verdict in _few(outcomes)
        ),
        x_ticks=tuple(Tick(at=x(step), label=f"{step:,.0f}") for step in _steps(len(losses) - 1)),
        y_ticks=tuple(Tick(at=y(loss), label=f"{loss:g}") for loss in ticks),
        description=_describe(points, outcomes),
    )


def _describe(points: Sequence[tuple[int, float]], outcomes: Mapping[int, Verdict]) -> str:
    if not points:
        return "No losses were committed."
    matched = sum(verdict is Verdict.MATCH for verdict in outcomes.values())
    return (
        f"Loss from {points[0][1]:.3f} at step {points[0][0]} to {points[-1][1]:.3f} at step "
        f"{points[-1][0]}; {len(outcomes)} steps were drawn, {matched} of them matched."
    )


def _thin(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Keep the least and the greatest loss of each bucket of steps, in step order."""
    if len(points) <= 2 * MAX_BUCKETS:
        return list(points)
    kept: list[tuple[int, float]] = []
    for i in range(MAX_BUCKETS):
        start, end = (len(points) * j // MAX_BUCKETS for j in (i, i + 1))
        bucket = points[start:end]
        ends = {min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def _few(outcomes: Mapping[int, Verdict]) -> list[tuple[int, Verdict]]:
    """Choose the steps to mark: all that did not match as far as there is room, then evenly."""
    others = [item for item in outcomes.items() if item[1] is not Verdict.MATCH][:MAX_MARKS]
    matched = [item for item in outcomes.items() if item[1] is Verdict.MATCH]
    room = max(MAX_MARKS - len(others), 2)
    if len(matched) > room:
        matched = [matched[i * (len(matched) - 1) // (room - 1)] for i in range(room)]
    # what did not match is drawn last, on top
    return matched + others


def _nice_ticks(values: Sequence[float], wanted: int = 5) -> list[float]:
    """Return ascending round numbers that enclose the values, at least two."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    span = high - low or max(abs(high), 1.0)
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _steps(last: int) -> list[int]:
    """Return round step numbers for the horizontal axis."""
    if last <= 0:
        return [0]
    return [int(tick) for tick in _nice_ticks([0.0, float(last)]) if tick <= last and tick % 1 == 0]
