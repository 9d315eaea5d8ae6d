"""How the exact sum of a step becomes the next accumulator: precision and rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from emulator_ext.probe.alignment import members
from emulator_ext.probe.cases import Accumulator, Case, Maker, Product, reachable
from emulator_ext.probe.experiment import Lab
from emulator_ext.probe.grouping import C
from emulator_ext.probe.model import Model
from emulator_ext.probe.rounding import Rounding

# Precisions that a result has been seen with: f32, 14 bits in an f32 register, f16; and the
# neighbours that would betray a design between them.
PRECISIONS: Final = (8, 10, 11, 12, 13, 14, 15, 16, 22, 23, 24)
_DIRECTED: Final = (
    Rounding.TRUNCATE,
    Rounding.FLOOR,
    Rounding.CEILING,
    Rounding.AWAY,
    Rounding.NEAREST_EVEN,
    Rounding.NEAREST_AWAY,
)


def allowed_rounding(lab: Lab) -> list[str]:
    """Return the labels of the roundings of NUMERICS 1.1 for this accumulator."""
    if lab.instruction.accumulator == "f16":
        return [_label(11, Rounding.NEAREST_EVEN, double=False)]
    return [_label(p, Rounding.TRUNCATE, double=False) for p in (24, 14)]


def find_result(lab: Lab, model: Model) -> Model:
    """Find the precision of a step's result and how the exact sum is rounded to it."""
    limit = lab.make.accumulator.fraction_bits + 1
    hypotheses: dict[str, Model] = {}
    for precision in (p for p in PRECISIONS if p <= limit):
        for rounding in _DIRECTED:
            for double in (False, True) if precision < limit or limit == 11 else (False,):
                label = _label(precision, rounding, double=double)
                hypotheses[label] = replace(
                    model, significant_bits=precision, rounding=rounding, first_rounded=double
                )
    decision = lab.decide(
        "result.rounding",
        "To how many bits is the sum of a step rounded, and how?",
        "Large terms set the last place of the result; small ones add 0, 1/4 ... 7/4 of a unit in "
        "that place, just more and just less than half of one, with both signs.",
        reachable(_fractions(lab.make, members(model), model)),
        hypotheses,
        allowed=allowed_rounding(lab),
        finding="result of a step",
    )
    # A double rounding that no input can show is none.
    survivors = sorted(decision.survivors, key=lambda label: "then" in label)
    return hypotheses[survivors[0] if survivors else decision.best]


def find_carry(lab: Lab, model: Model) -> Model:
    """Find whether the sum carried between steps has the accumulator's precision."""
    if len(model.groups) == 1:
        return model
    first, second = model.groups[0], model.groups[1]
    fractions = _fractions(lab.make, list(first), model)
    builders = [partial(_cancel_in, lab.make, build, second) for build in fractions]
    rounded, wide = "rounded to the accumulator after each step", "kept as f32 between steps"
    hypotheses = {rounded: model}
    if lab.instruction.accumulator != "f32" or model.significant_bits < 24:
        hypotheses[wide] = replace(model, wide_carry=True)
    decision = lab.decide(
        "result.carry",
        "What is carried from one step to the next?",
        "The first step's sum needs more bits than the accumulator has; the second subtracts its "
        "leading part, so that what was carried shows.",
        reachable(builders),
        hypotheses,
        allowed=[rounded],
        finding="carried sum",
    )
    return hypotheses[decision.best]


def find_end_rounding(lab: Lab, model: Model) -> Model:
    """Where c joins at the end: how that addition rounds."""
    if model.c_joins != "end":
        return model
    make, bits = lab.make, lab.make.accumulator.fraction_bits
    place = model.groups[0][0]
    builders = [
        partial(_two_terms, make, place, (sign, 0), (sign * n, -bits - 3))
        for n in (1, 3, 4, 5, 7, 8, 12, 13, 20)
        for sign in (1, -1)
    ]
    builders += [
        partial(_two_terms, make, place, (sign, 0), (-sign * n, -bits - 3))
        for n in (1, 2, 3, 5, 6, 7)
        for sign in (1, -1)
    ]
    hypotheses = {str(r): replace(model, end_rounding=r) for r in _DIRECTED}
    decision = lab.decide(
        "result.end",
        "How is c added to the finished sum?",
        f"The products give 1; c is a few eighths of the last place of 1, 2^-{bits}.",
        reachable(builders),
        hypotheses,
        allowed=[str(Rounding.NEAREST_EVEN)],
        finding="rounding of the last addition",
    )
    return hypotheses[decision.best]


def check_c_alone(lab: Lab, model: Model) -> None:
    """Check what becomes of c when every product is zero."""
    fmt = lab.make.accumulator
    full = (1 << fmt.fraction_bits) - 1
    samples = {
        "1 + all fraction bits": fmt.encode((1 << fmt.fraction_bits) | full, -fmt.fraction_bits),
        "1 + last bit": fmt.encode((1 << fmt.fraction_bits) | 1, -fmt.fraction_bits),
        "the largest number": fmt.largest_bits,
        "the smallest normal": fmt.encode(1, fmt.emin),
        "the largest subnormal": full,
        "the smallest subnormal": 1,
        "a subnormal of one high bit": 1 << (fmt.fraction_bits - 2),
        "a subnormal of alternating bits": full // 3,
    }
    cases = [
        Case(c=Accumulator(bits=bits | sign, text=f"{'-' if sign else '+'}{text}"))
        for text, bits in samples.items()
        for sign in (0, fmt.sign_bit)
    ]
    label = "aligned and rounded like any term"
    if model.c_joins == "end":
        label = "comes out unchanged"
    lab.decide(
        "result.c_alone",
        "What becomes of c when all products are zero?",
        "Zero operands everywhere; c takes values with bits in every place.",
        cases,
        {label: model},
        allowed=[label],
        finding="c alone",
    )


def _label(precision: int, rounding: Rounding, *, double: bool) -> str:
    first = "cut to 24 bits, then " if double else ""
    return f"{first}{precision} bits, {rounding}"


def _fractions(make: Maker, places: list[int], model: Model) -> list[Callable[[], Case]]:
    """Return sums of 2 to 6.75 * 2^e and fractions of the unit in the last place of that."""
    precision = make.accumulator.fraction_bits + 1
    base = max(0, model.fraction_bits + make.normal_floor)
    base = min(base, make.accumulator.emax - 3)
    last = base + 2 - (precision - 1)  # of a result in [4, 8) * 2^base
    grid = base - model.fraction_bits
    builders: list[Callable[[], Case]] = []
    for sign in (1, -1):
        for odd in (0, 1):
            for significand, exponent in _small_parts(last, grid, precision, model):
                small = (sign * significand, exponent)
                builders.append(partial(_sum, make, places, base, sign, odd, last, [small]))
            half = (sign, last - 1)
            for tiny in (1, -1):
                nudge = [half, (sign * tiny, max(grid, make.accumulator.tiny - 12))]
                builders.append(partial(_sum, make, places, base, sign, odd, last, nudge))
    return builders


def _small_parts(last: int, grid: int, precision: int, model: Model) -> list[tuple[int, int]]:
    parts = [(n, last - 2) for n in (0, 1, 2, 3, 5, 6, 7)]
    # Places between this precision and 14 or fewer bits: they tell the precision itself.
    parts += [(1, last + up) for up in range(precision)]
    parts += [(3, last + up - 1) for up in range(precision - 1)]
    return [part for part in parts if part[1] >= grid or part[0] == 0 or model.fraction_bits < 13]


def _sum(
    make: Maker,
    places: list[int],
    base: int,
    sign: int,
    odd: int,
    last: int,
    smalls: list[tuple[int, int]],
) -> Case:
    """Two terms of 2.25 * 2^base, perhaps an odd last place, and small terms, on free places."""
    big = make.pair((3 * sign, base - base // 2 - 1), (3, base // 2 - 1))
    values = [*smalls, *([(sign, last)] if odd else [])]
    products: dict[int, Product] = {}
    free = [place for place in places if place != C]
    c = Case().c
    if len(free) < 2 + len(values) and C in places:
        c, values = make.c(*values[-1]), values[:-1]
    if len(free) < 2 + len(values):
        return Case(products={free[0]: big}, c=c)
    products = {free[0]: big, free[1]: big}
    for place, value in zip(free[2:], values, strict=False):
        if value[0]:
            products[place] = make.product(*value)
    return Case(products=products, c=c)


def _cancel_in(make: Maker, build: Callable[[], Case], second: tuple[int, ...]) -> Case:
    """Return the first step as built; the second subtracts the same two large terms."""
    case = build()
    large = list(case.products.items())[:2]
    flipped = {
        place: make.raw(p.a_bits ^ make.a.sign_bit, p.b_bits, f"-({p.text})")
        for place, (_, p) in zip(second, large, strict=False)
    }
    return Case(products={**case.products, **flipped}, c=case.c)


def _two_terms(make: Maker, place: int, x: tuple[int, int], c: tuple[int, int]) -> Case:
    return Case(products={place: make.product(*x)}, c=make.c(*c))
