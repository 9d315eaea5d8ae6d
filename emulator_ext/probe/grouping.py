"""Which products share an alignment, in which order, and where c comes in.

The masking method of FPRev (Xie, Gao and Xue, "FPRev: Revealing the Order of Floating-Point
Summation by Numerical Testing", 2024) carried over to fused sums: +M at one place, -M at
another, equal small terms everywhere else. The small terms that meet M before it is cancelled
are lost; counting the survivors gives, for every pair of places, the size of the smallest
group that holds both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from emulator_ext.probe.cases import ZERO, Case, Maker
from emulator_ext.probe.exact import decode
from emulator_ext.probe.experiment import MAX_ROWS, Experiment, Finding, Lab, Row
from emulator_ext.probe.formats import FORMATS
from emulator_ext.probe.model import AnyModel, Model

C = -1  # the place of c; products have their own index
NAME = "grouping"
QUESTION = "Which terms are aligned and added together, and in which order?"

Nested = frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """The order of addition, as far as a chain of groups describes it.

    Attributes:
        groups: product indices of each step; empty if no chain of groups fits.
        c_joins: `first` or `end`.
        exact: no term was ever lost, so nothing shows any order.
        broken: some answers were no count of small terms, so that losses may be misread.
        text: the whole order in words, for a report.

    """

    groups: tuple[tuple[int, ...], ...]
    c_joins: str
    exact: bool = False
    broken: bool = False
    text: str


def find_grouping(lab: Lab) -> Grouping:
    """Run the masking experiment and read the order of addition from it."""
    k = lab.instruction.k
    places = [C, *range(k)]
    pairs = [(i, j) for n, i in enumerate(places) for j in places[n + 1 :]]
    questions = [(i, j, part) for i, j in pairs for part in _portions(lab.make, i, j, k)]
    answers = lab.answers([_masked(lab.make, *question) for question in questions]).tolist()
    survivors: dict[tuple[int, int], int | None] = dict.fromkeys(pairs, 0)
    for (i, j, part), bits in zip(questions, answers, strict=True):
        so_far, count = survivors[i, j], _survivors(lab.make, bits, len(part))
        survivors[i, j] = None if so_far is None or count is None else so_far + count
    grouping = _interpret(survivors, places)
    conclusion = f"{grouping.text}{' (some answers are no count)' if grouping.broken else ''}"
    shown = range(0, len(questions), -(-len(questions) // MAX_ROWS))
    experiment = Experiment(
        name=NAME,
        question=QUESTION,
        method=_method(lab.make),
        inputs=len(questions),
        rows=tuple(_row(lab, *questions[n], answers[n]) for n in shown),
        hypotheses=(),
        conclusion=conclusion,
        contradicts=grouping.broken or not _allowed(grouping, k),
    )
    status = "decided" if grouping.groups and not grouping.broken else "refuted"
    lab.record(experiment, Finding(name=NAME, value=grouping.text, status=status, experiment=NAME))
    return grouping


def mask_exponents(make: Maker) -> tuple[int, int]:
    """Return the exponents of M and s: far apart, and in the accumulator's normal range."""
    big = min(make.a.emax + make.b.emax, make.accumulator.emax)
    small = max(min(make.normal_floor, big - _NEAREST), make.accumulator.emin)
    return big, small


# M / s at least this far apart (powers of two), so that with F up to 25 no sum of the small
# terms of one question comes within half a unit of M's grid.
_NEAREST: Final = 29
_HEADROOM: Final = 26


def _portions(make: Maker, i: int, j: int, k: int) -> list[tuple[int, ...]]:
    """Return the other places, in portions whose small terms together are still lost beside M."""
    big, small = mask_exponents(make)
    size = (1 << min(big - small - _HEADROOM, 10)) - 1
    others = [place for place in (C, *range(k)) if place not in {i, j}]
    return [tuple(others[n : n + size]) for n in range(0, len(others), size)] or [()]


def _row(lab: Lab, i: int, j: int, part: tuple[int, ...], bits: int) -> Row:
    count = _survivors(lab.make, bits, len(part))
    read = "not a count" if count is None else f"{count} of {len(part)} survive"
    products = tuple(place for place in part if place != C)
    where = ", ".join(
        [*(["c"] if C in part else []), *([f"p{_ranges(products)}"] if products else [])]
    )
    return Row(
        fed=f"+M at {_place(i)}, -M at {_place(j)}, s at {where}",
        predictions=(),
        observed=f"{lab.text(bits)}: {read}",
    )


def _method(make: Maker) -> str:
    big, small = mask_exponents(make)
    return (
        f"M = 2^{big} at one place, -M at another, s = 2^{small} at the others. A small term that "
        "is added while M is there is lost; the result counts those that are not. The terms "
        "lost between two places are their smallest common group."
    )


def _masked(make: Maker, i: int, j: int, part: tuple[int, ...]) -> Case:
    big, small = mask_exponents(make)
    values = {i: (1, big), j: (-1, big), **dict.fromkeys(part, (1, small))}
    return Case(
        products={place: make.product(*value) for place, value in values.items() if place != C},
        c=make.c(*values[C]) if C in values else ZERO,
    )


def _survivors(make: Maker, bits: int, most: int) -> int | None:
    """Read the result as a count of small terms; None if it is no such count."""
    _, small = mask_exponents(make)
    value = decode(FORMATS[make.accumulator.name], bits)
    if value.nan or value.infinite or value.negative:
        return None
    shift = value.exponent - small
    if shift >= 0:
        count = value.significand << shift
    elif value.significand & ((1 << -shift) - 1):
        return None
    else:
        count = value.significand >> -shift
    return count if count <= most else None


def _interpret(survivors: dict[tuple[int, int], int | None], places: list[int]) -> Grouping:
    k = len(places) - 1
    # An answer that is no count (terms rounded up instead of lost) leaves nothing intact.
    broken = any(count is None for count in survivors.values())
    size = {pair: k + 1 - (count or 0) for pair, count in survivors.items()}
    if k > 1 and all(value == 2 for value in size.values()):
        text = f"nothing is ever lost: all {k} products and c add up exactly"
        return Grouping(groups=(tuple(range(k)),), c_joins="first", exact=True, text=text)
    sets = _common_sets(size, places)
    if sets is None:
        text = "the losses fit no order of addition"
        return Grouping(groups=(), c_joins="first", broken=True, text=text)
    return replace(_chain(sets, places), broken=broken)


def regroup(lab: Lab, model: Model) -> Model:
    """Where terms are not lost but rounded up, weigh equal groups as hypotheses instead."""
    k, make = lab.instruction.k, lab.make
    cases = [
        _masked(make, 0, j, tuple(p for p in range(k) if p not in {0, j})) for j in range(1, k)
    ]
    hypotheses: dict[str, AnyModel] = {}
    models: dict[str, Model] = {}
    for length in (n for n in range(1, k + 1) if k % n == 0):
        groups = tuple(tuple(range(start, start + length)) for start in range(0, k, length))
        models[f"groups of {length}"] = replace(model, groups=groups)
    hypotheses.update(models)
    decision = lab.decide(
        "grouping.again",
        "Which equal groups explain the masked sums, with the rounding found at alignment?",
        "+M at p0, -M at another product, s at all others, weighed as a whole.",
        cases,
        hypotheses,
        allowed=[],
        finding="groups, given that rounding",
    )
    return models[decision.best]


def _common_sets(size: dict[tuple[int, int], int], places: list[int]) -> list[Nested] | None:
    """Return the groups as sets of places, small to large; None if they contradict each other."""

    def of(i: int, j: int) -> int:
        return size.get((i, j), size.get((j, i), 0))

    found: set[Nested] = set()
    for i, j in size:
        from_i = frozenset(p for p in places if p in {i, j} or of(i, p) <= of(i, j))
        from_j = frozenset(p for p in places if p in {i, j} or of(j, p) <= of(i, j))
        if from_i != from_j or len(from_i) != of(i, j):
            return None
        found.add(from_i)
    if any(x & y and not (x <= y or y <= x) for x in found for y in found):
        return None
    return sorted(found, key=lambda places_: (len(places_), sorted(places_)))


def _chain(sets: list[Nested], places: list[int]) -> Grouping:
    nested = all(small < large for small, large in pairwise(sets))
    if not nested:
        text = f"a tree, not a chain of groups: {_tree(sets, frozenset(places))}"
        return Grouping(groups=(), c_joins="first", text=text)
    layers = [sets[0], *(large - small for small, large in pairwise(sets))]
    if layers[-1] == {C}:
        groups = tuple(tuple(sorted(layer)) for layer in layers[:-1])
        text = f"{_groups_text(groups)}; c is added to the result at the end"
        return Grouping(groups=groups, c_joins="end", text=text)
    if C not in layers[0]:
        text = f"a chain in which c joins late: {_tree(sets, frozenset(places))}"
        return Grouping(groups=(), c_joins="first", text=text)
    groups = tuple(tuple(sorted(layer - {C})) for layer in layers)
    text = f"{_groups_text(groups)}; c is a term of the first"
    return Grouping(groups=groups, c_joins="first", text=text)


def _allowed(grouping: Grouping, k: int) -> bool:
    """Whether NUMERICS has this order: ascending equal groups, or the halves of 1.3."""
    if not grouping.groups or grouping.exact:
        return False
    halves = tuple(tuple(i for i in range(k) if i % 4 // 2 == half) for half in (0, 1))
    if grouping.c_joins == "end":
        return grouping.groups == halves
    length = len(grouping.groups[0])
    return grouping.groups == tuple(
        tuple(range(start, min(start + length, k))) for start in range(0, k, length)
    )


def _groups_text(groups: tuple[tuple[int, ...], ...]) -> str:
    lengths = sorted({len(group) for group in groups})
    inside = " then ".join(f"{{{_ranges(group)}}}" for group in groups)
    noun = "group" if len(groups) == 1 else "groups"
    return f"{len(groups)} {noun} of {' or '.join(map(str, lengths))}: {inside}"


def _ranges(indices: tuple[int, ...]) -> str:
    parts: list[str] = []
    start = previous = indices[0]
    for index in (*indices[1:], None):
        if index is not None and index == previous + 1:
            previous = index
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        if index is not None:
            start = previous = index
    return ",".join(parts)


def _tree(sets: list[Nested], whole: Nested) -> str:
    """Nested brackets: members of one bracket are added together."""
    inner = [s for s in sets if s < whole]
    maximal = [s for s in inner if not any(s < other for other in inner)]
    loose = sorted(whole.difference(*maximal) if maximal else whole)
    parts = [_tree(sets, s) for s in sorted(maximal, key=min)]
    return f"({' '.join([*parts, *(_place(p) for p in loose)])})"


def _place(place: int) -> str:
    return "c" if place == C else f"p{place}"
