"""The small end: subnormal inputs and results, and the floor of the largest exponent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from emulator_ext.probe.aligned_sum import evaluate
from emulator_ext.probe.cases import ZERO, Accumulator, Case, Maker, Product, reachable, stack
from emulator_ext.probe.experiment import Experiment, Finding, Lab
from emulator_ext.probe.formats import Bits
from emulator_ext.probe.grouping import C
from emulator_ext.probe.model import Model, Place

KEPT: Final = "kept"
FLUSHED: Final = "flushed to zero"
FLOOR_NAME: Final = "limits.exponent_floor"


def find_flushes(lab: Lab, model: Model) -> Model:
    """Find where subnormal values are used as they are, and where they count as zero."""
    for place, question, builders in _flush_experiments(lab.make, model):
        flushed = model.flushed | {place}
        hypotheses = {KEPT: model, FLUSHED: replace(model, flushed=flushed)}
        decision = lab.decide(
            f"limits.subnormal_{place}",
            question,
            "A subnormal value whose effect on the result is a normal number, where the formats "
            "allow that.",
            reachable(builders),
            hypotheses,
            allowed=[KEPT],
            finding=f"subnormal {place}",
        )
        model = hypotheses[decision.best]
    return model


def _flush_experiments(
    make: Maker, model: Model
) -> list[tuple[Place, str, list[Callable[[], Case]]]]:
    place = model.groups[0][0]
    other = model.groups[0][-1]
    a_sub = [(1, make.a.tiny), ((1 << make.a.fraction_bits) - 1, make.a.tiny)]
    b_sub = [(1, make.b.tiny), ((1 << make.b.fraction_bits) - 1, make.b.tiny)]
    b_top, a_top = min(make.b.emax, 10), min(make.a.emax, 10)
    acc = make.accumulator
    half = (acc.emin - 2) // 2
    return [
        (
            "a",
            "Does a subnormal operand a count?",
            [partial(_pairs, make, {place: (x, (1, b_top))}) for x in a_sub],
        ),
        (
            "b",
            "Does a subnormal operand b count?",
            [partial(_pairs, make, {place: ((1, a_top), y)}) for y in b_sub],
        ),
        (
            "result",
            "Is a subnormal result produced?",
            [
                partial(_pairs, make, {place: ((1, half), (1, acc.emin - 2 - half))}),
                partial(_pairs, make, {place: ((-3, half), (1, acc.emin - 2 - half))}),
                partial(_difference, make, place, (1, acc.emin + 1), (5, acc.emin - 1)),
                partial(_difference, make, other, (1, acc.emin + 2), (17, acc.emin - 2)),
            ],
        ),
        (
            "c",
            "Does a subnormal c count?",
            [
                partial(_difference, make, place, (-1, acc.emin), (1, acc.emin - 1)),
                partial(_difference, make, place, (-1, acc.emin + 1), (3, acc.emin - 2)),
                partial(_difference, make, place, (0, 0), (1, acc.emin - 1)),
                partial(_difference, make, place, (0, 0), (1, acc.emin - 5)),
            ],
        ),
    ]


def _pairs(make: Maker, values: dict[int, tuple[tuple[int, int], tuple[int, int]]]) -> Case:
    return Case(products={place: make.pair(*value) for place, value in values.items()})


def _difference(make: Maker, place: int, x: tuple[int, int], c: tuple[int, int]) -> Case:
    """Return a negative product against c (no product where x is zero)."""
    products = {place: make.product(-abs(x[0]), x[1])} if x[0] else {}
    return Case(products=products, c=make.c(*c))


def find_floor(lab: Lab, model: Model) -> Model:
    """Find e_zero, the constant below which the largest exponent never falls.

    No experiment can tell floors apart that lie below everything the formats can express;
    then the floor is inert, and the finding says below which value.
    """
    cases = reachable([*_edge_cases(lab.make, model, ZERO), *_tiny_alone(lab.make, model)])
    candidates = range(lab.make.normal_floor - 2, lab.make.top + 1)
    floors = [e for e in candidates if e >= _FLOOR_LIMIT]
    observed = lab.answers(cases)
    wrong = _refutations(lab, model, cases, floors, observed)
    survivors = [e for e in floors if wrong[e] == 0]
    value, status, zero = _floor_conclusion(survivors, floors, wrong)
    near = sorted(floors, key=lambda e: (abs(e - (zero if zero is not None else floors[0])), e))[:5]
    shown = sorted(near)
    rows = lab.rows(
        cases, {f"e_zero {e}": replace(model, zero_exponent=e) for e in shown}, observed
    )
    lab.record(
        Experiment(
            name=FLOOR_NAME,
            question="Below which exponent does the largest exponent of a step never fall?",
            method="Terms far below 1 whose lost bits would carry the sum over the edge of a "
            "result: 2^g - 2^v with 2^v for the smallest result 2^g, a tie 2^(g-1) with 2^v, and "
            "2^v alone, for falling v. With a floor, 2^v is lost once v < e_zero - F.",
            inputs=len(cases),
            rows=rows,
            hypotheses=tuple((f"e_zero {e}", wrong[e]) for e in shown),
            conclusion=f"exponent floor e_zero: {value}",
            contradicts=not survivors,
        ),
        Finding(name="exponent floor e_zero", value=value, status=status, experiment=FLOOR_NAME),
    )
    return replace(model, zero_exponent=zero)


def _refutations(
    lab: Lab, model: Model, cases: list[Case], floors: list[int], observed: Bits
) -> dict[int, int]:
    """Return how many cases refute each floor; all floors are weighed in one evaluation."""
    a, b, c = stack(lab.instruction, cases)
    n = len(floors)
    tiled = np.tile(a, (n, 1)), np.tile(b, (n, 1)), np.tile(c, n)
    each = np.repeat(np.array(floors, np.int64), len(cases))
    predicted = evaluate(model, lab.instruction, *tiled, floors=each).reshape(n, len(cases))
    counts = (predicted != observed[None, :]).sum(axis=1)
    return dict(zip(floors, counts.tolist(), strict=True))


# Below this an f32 result cannot show a floor: its unit would be 2^-54 of the smallest f32.
_FLOOR_LIMIT: Final = -160


def _floor_conclusion(
    survivors: list[int], floors: list[int], wrong: dict[int, int]
) -> tuple[str, str, int | None]:
    if not survivors:
        best = min(floors, key=lambda e: wrong[e])
        return f"none fits; closest {best}", "refuted", best
    if survivors[0] == floors[0]:
        return f"inert: any floor up to {survivors[-1]} predicts the same", "inert", None
    if len(survivors) == 1:
        return str(survivors[0]), "decided", survivors[0]
    return f"between {survivors[0]} and {survivors[-1]}", "decided", survivors[0]


def find_c_exponent(lab: Lab, model: Model) -> Model:
    """Find whether a subnormal c counts with emin or with its leading bit."""
    if model.c_joins != "first":
        return model
    fmt = lab.make.accumulator
    keeps, leading = "keeps emin", "normalised"
    hypotheses = {
        keeps: model,
        leading: replace(model, normalised=model.normalised | {"c"}),
    }
    cases = reachable(
        build
        for significand in (1, 2)
        for build in _edge_cases(lab.make, model, lab.make.c(significand, fmt.tiny))
    )
    decision = lab.decide(
        "limits.subnormal_c_exponent",
        "Does a subnormal c keep the exponent emin, or is it normalised first?",
        f"c is 1 or 2 times 2^{fmt.tiny}, with products below its last place that reach the next "
        "result only if none of their bits is lost.",
        cases,
        hypotheses,
        allowed=[keeps],
        finding="exponent of a subnormal c",
    )
    return hypotheses[decision.best]


def _edge_cases(make: Maker, model: Model, c: Accumulator) -> list[Callable[[], Case]]:
    """Return sums that reach the smallest result, or pass a tie below it, only if 2^v is kept."""
    grid = make.accumulator.emin - (model.significant_bits - 1)
    places = list(model.groups[0])
    builders: list[Callable[[], Case]] = []
    for v in range(grid - 2, grid - 36, -1):
        builders.append(partial(_filled, make, places, grid, v, c))
        builders.append(partial(_filled, make, places, grid - 1, v, c))
        builders.append(partial(_tie, make, places, grid - 1, v, c))
    return builders


def _tiny_alone(make: Maker, model: Model) -> list[Callable[[], Case]]:
    place = model.groups[0][0]
    low = max(make.a.tiny + make.b.tiny, make.accumulator.tiny)
    high = min(make.top, low + 60)
    return [partial(_alone, make, place, v) for v in range(low, high)]


def _filled(make: Maker, places: list[int], top: int, v: int, c: Accumulator) -> Case:
    """2^top - 2^v in few products, and 2^v."""
    terms = [*make.filler((1 << (top - v)) - 1, v), make.product(1, v)]
    return _spread(places, terms, c)


def _tie(make: Maker, places: list[int], tie: int, v: int, c: Accumulator) -> Case:
    return _spread(places, [make.product(1, tie), make.product(1, v)], c)


def _alone(make: Maker, place: int, v: int) -> Case:
    return Case(products={place: make.product(1, v)})


def _spread(places: list[int], terms: list[Product], c: Accumulator) -> Case:
    usable = [place for place in places if place != C]
    if len(terms) > len(usable):
        return Case(c=c)
    return Case(products=dict(zip(usable, terms, strict=False)), c=c)
