"""How far below the largest term a step keeps bits, and what it does with the rest.

Each experiment cancels two large terms exactly, so that nothing but the treatment of a
small third one can show in the result, whatever the rounding at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from emulator_ext.probe.cases import Case, Maker, reachable
from emulator_ext.probe.experiment import Decision, Lab
from emulator_ext.probe.formats import Format
from emulator_ext.probe.grouping import C
from emulator_ext.probe.model import EXACT_FRACTION_BITS, Model
from emulator_ext.probe.rounding import Rounding

TRIO = 3  # members that a cancelling experiment needs


WIDTH: Final = "alignment.width"
WIDTH_QUESTION: Final = "How many bits below the largest exponent does the alignment keep?"
_UPWARD: Final = {
    "": Rounding.TRUNCATE,
    ", halves round up": Rounding.NEAREST_AWAY,
    ", anything rounds up": Rounding.STICKY,
}


def members(model: Model) -> list[int]:
    """Return the places of the first step: its products, then c if it joins."""
    first = list(model.groups[0])
    return [*first, C] if model.c_joins == "first" else first


def observable(model: Model) -> bool:
    """Whether a step has enough terms for two to cancel while a third is aligned."""
    return len(members(model)) >= TRIO


def find_width(lab: Lab, model: Model) -> Model:
    """Find F: the smallest term that survives beside cancelling terms 2^top."""
    top = lab.make.top
    trio = members(model)[:TRIO]
    widths = range(1, min(top - _floor(lab.make), EXACT_FRACTION_BITS) + 1)
    cases = reachable(partial(_cancelled, lab.make, trio, top, (1, top - w)) for w in widths)
    hypotheses = _widths(model, len(cases))
    decision = lab.decide(
        WIDTH,
        WIDTH_QUESTION,
        f"2^{top} and -2^{top} cancel inside one step; 2^({top}-w) beside them is all that can "
        "remain. It survives while w <= F.",
        cases,
        hypotheses,
        allowed=["13", "23", "24", "25"],
        finding="alignment width F",
    )
    return hypotheses[decision.best] if decision.survivors else _first_loss(lab, model, cases, top)


def find_width_by_borrow(lab: Lab, model: Model) -> Model:
    """Find F where a step has no third term: 1 minus a small term borrows from the last place."""
    place = model.groups[0][0]
    base = lab.make.accumulator.emax - 1 if lab.instruction.accumulator == "f16" else 0
    lowest = max(_floor(lab.make), base - EXACT_FRACTION_BITS)
    widths = range(1, base - lowest + 1)
    cases = [
        Case(products={place: lab.make.product(-1, base - w)}, c=lab.make.c(1, base))
        for w in widths
    ]
    hypotheses = _widths(model, len(cases))
    wide = list(hypotheses)[-1]
    decision = lab.decide(
        WIDTH,
        WIDTH_QUESTION,
        f"c = 2^{base} and a product -2^({base}-w): rounded toward zero, the sum falls below "
        "c only while the small term is seen. A rounding to nearest shows less.",
        cases,
        hypotheses,
        allowed=["13", "23", "24", "25"],
        finding="alignment width F",
    )
    kept = wide if wide in decision.survivors else decision.best
    return hypotheses[kept]


def _widths(model: Model, limit: int) -> dict[str, Model]:
    """Return a hypothesis for each F, for small terms that are lost and for such that round up."""
    wide = EXACT_FRACTION_BITS
    hypotheses: dict[str, Model] = {}
    for suffix, rounding in _UPWARD.items():
        some = replace(model, alignment=rounding)
        hypotheses |= {f"{f}{suffix}": replace(some, fraction_bits=f) for f in range(1, limit)}
    return {**hypotheses, f"at least {limit}": replace(model, fraction_bits=wide)}


def _first_loss(lab: Lab, model: Model, cases: list[Case], top: int) -> Model:
    """Without a clean threshold, take the last width that came through unharmed."""
    exact = [lab.make.accumulator.encode(1, top - w) for w in range(1, len(cases) + 1)]
    intact = [bits == want for bits, want in zip(lab.answers(cases).tolist(), exact, strict=True)]
    width = intact.index(False) if False in intact else len(cases)
    return replace(model, fraction_bits=max(width, 1))


def find_rounding(lab: Lab, model: Model) -> Model:
    """Find what happens to the bits below 2^(emax - F): seven known ways."""
    top, trio = lab.make.top, members(model)[:TRIO]
    quarter = top - model.fraction_bits - 2
    cases = reachable(
        partial(_cancelled, lab.make, trio, top, (sign * q, quarter))
        for q in (1, 2, 3, 5, 6, 7)
        for sign in (1, -1)
    )
    hypotheses = {str(r): replace(model, alignment=r) for r in Rounding}
    decision = lab.decide(
        "alignment.rounding",
        "What happens to the bits that the alignment does not keep?",
        f"As before, with F = {model.fraction_bits}: a small term of 1/4, 1/2, 3/4, 5/4, 6/4 and "
        "7/4 units of the grid, of both signs.",
        cases,
        hypotheses,
        allowed=[str(Rounding.TRUNCATE)],
        finding="rounding at alignment",
    )
    return hypotheses[decision.best]


def find_product_exponent(lab: Lab, model: Model) -> Model:
    """Find whether a product in [2, 4) counts with its raw exponent or a normalised one."""
    top, trio = lab.make.top, members(model)[:TRIO]
    unit = top - model.fraction_bits
    big = (3, top // 2 - 1), (3, top - top // 2 - 1)
    cases = reachable(
        partial(_cancelled_pair, lab.make, trio, *big, (1, unit + up)) for up in (-1, 0, 1, 2)
    )
    raw, normal = "raw sum of exponents", "normalised product"
    hypotheses = {raw: model, normal: replace(model, normalised_products=True)}
    decision = lab.decide(
        "alignment.product",
        "Is a product renormalised before its exponent counts?",
        f"(1.5*2^x)(1.5*2^y) with x + y = {top} is 2.25 * 2^{top}: raw exponent {top}, normalised "
        f"{top + 1}. It cancels with its negative; 2^{unit} survives only with the raw exponent.",
        cases,
        hypotheses,
        allowed=[raw],
        finding="exponent of a product",
    )
    return hypotheses[decision.best]


def find_operand_exponent(lab: Lab, model: Model) -> Model:
    """Find whether a subnormal operand counts with emin or with its leading bit."""
    make, trio = lab.make, members(model)
    b_top = min(make.b.emax, 60)
    raw = make.a.emin + b_top
    big = (1, make.a.tiny), (1, b_top)
    unit = raw - model.fraction_bits
    builders: list[Callable[[], Case]] = []
    for below in range(1, make.a.fraction_bits + 2):
        small = (1, unit - below)
        builders.append(partial(_cancelled_pair, make, trio, *big, small))
        builders.append(partial(_cancelled_pair, make, trio, *big, small, twice=True))
    if C in trio:
        pair = [*trio[:2], C]
        builders += [
            partial(_cancelled_pair, make, pair, *big, (1, unit - below))
            for below in range(1, make.a.fraction_bits + 2)
        ]
    keeps, leading = "keeps emin", "normalised"
    hypotheses = {keeps: model, leading: replace(model, normalised=frozenset({"a", "b"}))}
    decision = lab.decide(
        "alignment.subnormal_operand",
        "Does a subnormal operand keep the exponent emin, or is it normalised first?",
        f"2^{make.a.tiny} (subnormal) times 2^{b_top}, and its negative: raw exponent {raw}. "
        f"Terms below 2^{unit} survive only if the subnormal was normalised, as it is when an FP8 "
        "operand passes through f16.",
        reachable(builders),
        hypotheses,
        allowed=[keeps, leading] if "e4m3" in {lab.instruction.a, lab.instruction.b} else [keeps],
        finding="exponent of a subnormal operand",
    )
    return hypotheses[decision.best]


def check_sum(lab: Lab, model: Model) -> None:
    """Check that the sum of the largest significands does not overflow its own register."""
    make, k = lab.make, lab.instruction.k
    a_full, b_full = _full(make.a), _full(make.b)
    base = min(lab.make.top, make.accumulator.emax) - 8
    a_up, b_up = base - base // 2, base // 2
    c_full = _full(make.accumulator)
    builders: list[Callable[[], Case]] = []
    for sign in (1, -1):
        for down in (0, 1):
            term = (sign * a_full[0], a_full[1] + a_up - down), (b_full[0], b_full[1] + b_up)
            starts = ((0, 0), (sign * c_full[0], c_full[1] + base), (-sign, base))
            builders += [partial(_everywhere, make, k, term, c) for c in starts]
    label = "wide enough"
    lab.decide(
        "alignment.sum",
        "Is the sum of all terms wide enough for its largest values?",
        f"All {k} products and c with the largest significands, so that the sum needs more bits "
        "than any term; in 32 bits it would overflow.",
        reachable(builders),
        {label: model},
        allowed=[label],
        finding="width of the sum",
    )


def _full(fmt: Format) -> tuple[int, int]:
    """Return the value just below 2 in a format."""
    return (1 << (fmt.fraction_bits + 1)) - 1, -fmt.fraction_bits


def _everywhere(
    make: Maker,
    k: int,
    term: tuple[tuple[int, int], tuple[int, int]],
    c: tuple[int, int],
) -> Case:
    return Case(products=dict.fromkeys(range(k), make.pair(*term)), c=make.c(*c))


def check_positions(lab: Lab, model: Model) -> Decision:
    """Check that F is the same for every place of every step, c and carried sums included."""
    builders: list[Callable[[], Case]] = []
    top = min(lab.make.top, lab.make.accumulator.emax - 1)
    smalls = [(1, top - model.fraction_bits - extra) for extra in (0, 1, 2)]
    for number, group in enumerate(model.groups):
        places = [*group, C] if number == 0 and model.c_joins == "first" else list(group)
        for turn, place in enumerate(places):
            others = [p for p in places if p != place]
            plus, minus = others[turn % len(others)], others[(turn + 1) % len(others)]
            if plus != minus:
                trio = [plus, minus, place]
                builders += [partial(_cancelled, lab.make, trio, top, s) for s in smalls]
        if number > 0 and len(group) > 1:
            carried = [group[0], group[1], model.groups[0][0]]
            builders += [partial(_cancelled, lab.make, carried, top, s) for s in smalls]
    label = "the same everywhere"
    return lab.decide(
        "alignment.positions",
        "Is the alignment the same for every product, for c and for the carried sum?",
        f"The cancelling pair and the small term (2^(E-F), 2^(E-F-1), 2^(E-F-2), E = {top}) visit "
        "every place of every step, c and the sum carried from the step before included.",
        reachable(builders),
        {label: model},
        allowed=[label],
        finding="alignment at all places",
    )


def _floor(make: Maker) -> int:
    return max(make.normal_floor, make.accumulator.emin)


def _cancelled(
    make: Maker, trio: list[int], top: int, small: tuple[int, int], *, twice: bool = False
) -> Case:
    """2^top at trio[0], -2^top at trio[1], the small value at trio[2] (and trio[3])."""
    return _placed(make, {trio[0]: (1, top), trio[1]: (-1, top)}, _smalls(trio, small, twice=twice))


def _cancelled_pair(
    make: Maker,
    trio: list[int],
    x: tuple[int, int],
    y: tuple[int, int],
    small: tuple[int, int],
    *,
    twice: bool = False,
) -> Case:
    """x*y and -x*y as given factors at trio[0] and trio[1], the small value beside them."""
    case = _placed(make, {}, _smalls(trio, small, twice=twice))
    negative = (-x[0], x[1])
    pair = {trio[0]: make.pair(x, y), trio[1]: make.pair(negative, y)}
    return Case(products={**case.products, **pair}, c=case.c)


def _smalls(trio: list[int], small: tuple[int, int], *, twice: bool) -> dict[int, tuple[int, int]]:
    return dict.fromkeys(trio[2:4] if twice else trio[2:3], small)


def _placed(make: Maker, *values: dict[int, tuple[int, int]]) -> Case:
    """Return a case from (significand, exponent) by place."""
    merged = {place: value for group in values for place, value in group.items()}
    return Case(
        products={p: make.product(*value) for p, value in merged.items() if p != C},
        c=make.c(*merged[C]) if C in merged else Case().c,
    )
