"""Zeros, NaN, infinities, overflow, and the register bits that tf32 drops (NUMERICS 1.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from emulator_ext.probe.cases import Accumulator, Case, Maker, reachable
from emulator_ext.probe.exact import decode
from emulator_ext.probe.experiment import Lab
from emulator_ext.probe.formats import F32, Format
from emulator_ext.probe.model import Model, ZeroSign
from emulator_ext.probe.rounding import Rounding

_ZERO_SIGNS: Final[dict[str, ZeroSign]] = {
    "a zero is always +0": "positive",
    "-0 only for a negative sum that rounds to zero": "underflow",
    "IEEE: also for a sum of nothing but -0": "ieee",
}


def find_zero_sign(lab: Lab, model: Model) -> Model:
    """Find the sign of a zero result."""
    make = lab.make
    hypotheses = {label: replace(model, zero_sign=sign) for label, sign in _ZERO_SIGNS.items()}
    contract = next(iter(_ZERO_SIGNS))
    decision = lab.decide(
        "specials.zero",
        "Which sign does a zero result have?",
        "Zeros of all signs, exact cancellation, and negative sums too small for the result.",
        reachable(_zero_cases(make, model)),
        hypotheses,
        allowed=[contract],
        finding="sign of zero",
    )
    return hypotheses[decision.best]


def _zero_cases(make: Maker, model: Model) -> list[Callable[[], Case]]:
    # In the last step: one more step would turn a -0 into +0.
    k, place, other = make.instruction.k, model.groups[-1][0], model.groups[-1][-1]
    minus = Accumulator(bits=make.accumulator.sign_bit, text="-0")
    plus = Accumulator(bits=0, text="+0")
    negative_zero = make.raw(make.a.sign_bit, 0, "(-0) * (+0)")
    positive_zero = make.raw(0, 0, "(+0) * (+0)")
    tiny = make.accumulator.tiny
    cases: list[Callable[[], Case]] = [
        partial(Case, products=dict.fromkeys(range(k), term), c=c)
        for term in (negative_zero, positive_zero)
        for c in (minus, plus)
    ]
    for sign in (1, -1):
        cases.append(partial(_with_c, make, place, (sign, 0), (-sign, 0)))
        cases += [partial(_with_c, make, place, (sign, tiny - d), None) for d in (1, 2, 3)]
        if place != other:
            cases.append(partial(_two, make, (place, other), (sign, 1), (-sign, 1), minus))
    return cases


def find_nan(lab: Lab, model: Model) -> Model:
    """Find which NaN comes out, whatever went in."""
    cases = reachable(_nan_cases(lab.make, model))
    fmt = lab.make.accumulator
    seen = {bits for bits in lab.answers(cases).tolist() if decode(fmt, bits).nan}
    contract = fmt.nan_bits
    hypotheses = {
        f"always 0x{bits:x}": replace(model, nan_bits=bits) for bits in sorted({contract, *seen})
    }
    decision = lab.decide(
        "specials.nan",
        "Which bits does a NaN result have?",
        "NaNs with several payloads and signs in a, b and c, 0 * Inf, and infinities of both "
        "signs among products and c. One canonical NaN, or does a payload come through?",
        cases,
        hypotheses,
        allowed=[f"always 0x{contract:x}"],
        finding="NaN",
    )
    return hypotheses[decision.best]


def _nans(fmt: Format) -> list[int]:
    """NaNs of a format: all ones, negative, and, where there are more, quiet and signalling."""
    if not fmt.has_infinity:
        return [fmt.nan_bits, fmt.nan_bits | fmt.sign_bit]
    quiet = fmt.infinity_bits | (1 << (fmt.dropped_bits + fmt.fraction_bits - 1))
    last = fmt.infinity_bits | (1 << fmt.dropped_bits)
    return [fmt.nan_bits, quiet, last, quiet | fmt.sign_bit, last | fmt.sign_bit]


def _nan_cases(make: Maker, model: Model) -> list[Callable[[], Case]]:
    place, other = model.groups[-1][-1], model.groups[0][0]
    one_a, one_b = make.a.encode(1, 0), make.b.encode(1, 0)
    cases: list[Callable[[], Case]] = []
    for bits in _nans(make.a):
        term = make.raw(bits, one_b, f"NaN 0x{bits:x} * 1")
        cases.append(partial(Case, products={place: term}))
    for bits in _nans(make.b):
        cases.append(partial(Case, products={place: make.raw(one_a, bits, f"1 * NaN 0x{bits:x}")}))
        cases.append(partial(Case, products={place: make.raw(0, bits, f"0 * NaN 0x{bits:x}")}))
    cases += [
        partial(Case, c=Accumulator(bits=bits, text=f"NaN 0x{bits:x}"))
        for bits in _nans(make.accumulator)
    ]
    if make.b.has_infinity:
        zero_inf = make.raw(0, make.b.infinity_bits, "0 * Inf")
        cases.append(partial(Case, products={place: zero_inf}))
        plus = make.raw(one_a, make.b.infinity_bits, "1 * Inf")
        minus = make.raw(one_a | make.a.sign_bit, make.b.infinity_bits, "-1 * Inf")
        if place != other:
            cases.append(partial(Case, products={place: plus, other: minus}))
        cases.append(partial(Case, products={place: plus}, c=_infinity(make, negative=True)))
    return cases


def _infinity(make: Maker, *, negative: bool) -> Accumulator:
    fmt = make.accumulator
    bits = fmt.infinity_bits | (fmt.sign_bit if negative else 0)
    return Accumulator(bits=bits, text="-Inf" if negative else "+Inf")


def check_infinities(lab: Lab, model: Model) -> None:
    """Check that an infinity among products or in c comes out with its sign."""
    make, place, other = lab.make, model.groups[0][0], model.groups[-1][-1]
    cases = [Case(c=_infinity(make, negative=negative)) for negative in (False, True)]
    if make.a.has_infinity:
        for sign in (0, make.a.sign_bit):
            name = "-Inf" if sign else "+Inf"
            for significand in (1, -1):
                b_bits = make.b.encode(significand, 0)
                term = make.raw(make.a.infinity_bits | sign, b_bits, f"{name} * {significand}")
                cases.append(Case(products={place: term}, c=make.c(5, 0)))
                cases.append(Case(products={other: term, place: make.product(-7, 0)}))
                tiny_bits = make.b.encode(significand, make.b.tiny)
                tiny = make.raw(make.a.infinity_bits | sign, tiny_bits, f"{name} * subnormal")
                cases.append(Case(products={other: tiny}))
    label = "an infinity comes out with its sign"
    lab.decide(
        "specials.infinity",
        "What does an infinity among the terms give?",
        "c or a product infinite, all others finite; also infinity times a subnormal, which is "
        "NaN only where subnormals are flushed.",
        cases,
        {label: model},
        allowed=[label],
        finding="infinity",
    )


def find_overflow(lab: Lab, model: Model) -> Model:
    """Find what a sum beyond the accumulator's range gives."""
    infinity, largest = "infinity", "the largest number"
    hypotheses = {infinity: model, largest: replace(model, saturates=True)}
    cases = reachable(_overflow_cases(lab.make, model))
    decision = lab.decide(
        "specials.overflow",
        "What does a sum beyond the range of the accumulator give?",
        "Sums just below, at and above the limit, and products far beyond it that cancel.",
        cases,
        hypotheses,
        allowed=[infinity],
        finding="overflow",
    )
    return hypotheses[decision.best]


def _overflow_cases(make: Maker, model: Model) -> list[Callable[[], Case]]:
    place, other = model.groups[0][0], model.groups[0][-1]
    fmt = make.accumulator
    last = fmt.emax - fmt.fraction_bits
    largest = (1 << (fmt.fraction_bits + 1)) - 1
    top = make.a.emax + make.b.emax
    cases: list[Callable[[], Case]] = []
    for sign in (1, -1):
        for significand, exponent in ((1, last - 2), (1, last - 1), (3, last - 2), (1, last)):
            small = (sign * significand, exponent)
            cases.append(partial(_with_c, make, place, small, (sign * largest, last)))
        cases.append(partial(_with_c, make, place, (sign, fmt.emax), (sign, fmt.emax)))
        cases.append(partial(_with_c, make, place, (sign, fmt.emax + 1), None))
        if place != other:
            pair = (place, other)
            cases.append(partial(_two, make, pair, (sign, top), (-sign, top), make.c(1, 0)))
            cases.append(
                partial(_two, make, pair, (sign, fmt.emax), (sign, fmt.emax), make.c(1, 0))
            )
    return cases


def find_dropped_bits(lab: Lab, model: Model) -> Model:
    """Find how the 13 low register bits of tf32 operands count."""
    if lab.instruction.a != "tf32":
        return model
    one = F32.encode(1, 0)
    place = model.groups[0][0]
    patterns = [1 << n for n in range(14)] + [0x1FFF, 0x1001, 0x3000, 0x3001, 0x2FFF]
    cases = []
    for bits in patterns:
        text = f"(1 + 0x{bits:x} in the low register bits)"
        cases.append(Case(products={place: lab.make.raw(one | bits, one, f"{text} * 1")}))
        cases.append(Case(products={place: lab.make.raw(one, one | bits, f"1 * {text}")}))
    low_nan = F32.infinity_bits | 1
    cases.append(Case(products={place: lab.make.raw(low_nan, one, "NaN 0x7f800001 * 1")}))
    dropped = "dropped"
    hypotheses = {
        dropped: model,
        "rounded to nearest even": replace(model, operand_rounding=Rounding.NEAREST_EVEN),
        "rounded to nearest, ties away": replace(model, operand_rounding=Rounding.NEAREST_AWAY),
        "used": replace(model, operand_rounding=None),
    }
    decision = lab.decide(
        "specials.tf32_bits",
        "Do the 13 low bits of a tf32 register count?",
        "1 with one or more low register bits set, times 1; and a NaN whose payload lies only in "
        "the low bits, which is an infinity once they are dropped.",
        cases,
        hypotheses,
        allowed=[dropped],
        finding="low register bits of tf32",
    )
    return hypotheses[decision.best]


def _with_c(make: Maker, place: int, x: tuple[int, int], c: tuple[int, int] | None) -> Case:
    products = {place: make.product(*x)}
    return Case(products=products) if c is None else Case(products=products, c=make.c(*c))


def _two(
    make: Maker,
    places: tuple[int, int],
    x: tuple[int, int],
    y: tuple[int, int],
    c: Accumulator,
) -> Case:
    products = {places[0]: make.product(*x), places[1]: make.product(*y)}
    return Case(products=products, c=c)
