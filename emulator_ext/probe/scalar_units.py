"""FP64 and INT8: devices that do not align a group of products (NUMERICS 1.1, last rows)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from emulator_ext.probe.cases import Accumulator, Case, Maker, Product, reachable
from emulator_ext.probe.exact import decode
from emulator_ext.probe.experiment import Lab
from emulator_ext.probe.formats import F64
from emulator_ext.probe.model import FmaModel, IntegerModel, Place
from emulator_ext.probe.rounding import Rounding

_INT32_MAX: Final = (1 << 31) - 1
_NEAR_ALL: Final = tuple(r for r in Rounding if r is not Rounding.STICKY)


def find_fma(lab: Lab, order: tuple[int, ...]) -> FmaModel:
    """Characterise a chain of FP64 multiply-adds whose order is known."""
    make, place = lab.make, order[0]
    model = FmaModel(order=order, nan_bits=F64.nan_bits)
    model = _find_nan(lab, model)
    fused, split = "one rounding (fused)", "product rounded first"
    hypotheses = {
        f"{kind}, {rounding}": replace(model, fused=kind == fused, rounding=rounding)
        for kind in (fused, split)
        for rounding in _NEAR_ALL
    }
    contract = f"{fused}, {Rounding.NEAREST_EVEN}"
    decision = lab.decide(
        "fma.rounding",
        "Is each product exact inside its addition, and how is the sum rounded?",
        "(1 + 2^-52)^2 - (1 + 2^-51) leaves 2^-104 only if the product is exact; c = 1 with "
        "eighths of its last place, of both signs, tells the rounding.",
        reachable(_fma_cases(make, place)),
        hypotheses,
        allowed=[contract],
        finding="multiply-add",
    )
    return _find_flushes(lab, hypotheses[decision.best])


def _fma_cases(make: Maker, place: int) -> list[Callable[[], Case]]:
    step = (1 << 52) + 1, -52
    cases: list[Callable[[], Case]] = []
    for sign in (1, -1):
        cases.append(partial(_square, make, place, step, (-sign * ((1 << 51) + 1), -51), sign))
        for eighths in (1, 3, 4, 5, 7, 11, 12, 13):
            for odd in (0, 1):
                c = (sign * ((1 << 52) + odd), -52)
                term = (sign * eighths, -55)
                cases.append(partial(_term, make, place, term, c))
    return cases


def _square(make: Maker, place: int, x: tuple[int, int], c: tuple[int, int], sign: int) -> Case:
    return Case(products={place: make.pair((sign * x[0], x[1]), x)}, c=make.c(*c))


def _term(make: Maker, place: int, x: tuple[int, int], c: tuple[int, int]) -> Case:
    return Case(products={place: make.product(*x)}, c=make.c(*c))


def _find_nan(lab: Lab, model: FmaModel) -> FmaModel:
    make, place = lab.make, model.order[0]
    quiet = F64.infinity_bits | (1 << 51) | 5
    one = F64.encode(1, 0)
    cases = [
        Case(products={place: make.raw(quiet, one, "NaN * 1")}),
        Case(products={place: make.raw(one, quiet | F64.sign_bit, "1 * -NaN")}),
        Case(products={place: make.raw(0, F64.infinity_bits, "0 * Inf")}),
        Case(c=Accumulator(bits=F64.infinity_bits | 9, text="signalling NaN")),
        Case(
            products={place: make.raw(one, F64.infinity_bits, "1 * Inf")},
            c=Accumulator(bits=F64.infinity_bits | F64.sign_bit, text="-Inf"),
        ),
        Case(
            products={
                place: make.raw(one, F64.infinity_bits, "1 * Inf"),
                model.order[-1]: make.raw(one, one, "1 * 1"),
            },
            c=make.c(1, 0),
        ),
    ]
    seen = {bits for bits in lab.answers(cases).tolist() if decode(F64, bits).nan}
    hypotheses = {
        f"always 0x{bits:x}": replace(model, nan_bits=bits) for bits in sorted({*seen, *_F64_NANS})
    }
    decision = lab.decide(
        "specials.nan",
        "Which bits does a NaN result have?",
        "NaNs with payloads in a, b and c, 0 * Inf, and infinities of both signs.",
        cases,
        hypotheses,
        # IEEE 754 leaves the payload open, and NUMERICS does not fix it for FP64.
        allowed=list(hypotheses),
        finding="NaN",
    )
    return hypotheses[decision.best]


_F64_NANS: Final = (F64.nan_bits, F64.infinity_bits | (1 << 51))


def _find_flushes(lab: Lab, model: FmaModel) -> FmaModel:
    make, place = lab.make, model.order[0]
    kept, flushed = "kept", "flushed to zero"
    tiny = F64.tiny
    cases = [
        _term(make, place, (1, tiny), (0, 0)),
        _term(make, place, (0, 0), (1, tiny)),
        Case(products={place: make.pair((1, -600), (1, -450))}),
        Case(products={place: make.pair((1, tiny), (1, 200))}),
        Case(products={place: make.pair((1, 200), (3, tiny))}),
    ]
    everywhere: frozenset[Place] = frozenset({"a", "b", "c", "result"})
    hypotheses = {kept: model, flushed: replace(model, flushed=everywhere)}
    decision = lab.decide(
        "limits.subnormal",
        "Are subnormal operands and results used as they are?",
        "Subnormal a, b, c and results, alone.",
        cases,
        hypotheses,
        allowed=[kept],
        finding="subnormals",
    )
    return hypotheses[decision.best]


def find_integer(lab: Lab) -> IntegerModel:
    """Characterise exact integer products with an int32 accumulator."""
    signed = {"a": lab.instruction.a == "s8", "b": lab.instruction.b == "s8"}
    wraps, saturates = "wraps modulo 2^32", "saturates"
    model = IntegerModel(signed_a=signed["a"], signed_b=signed["b"])
    exact = "every sum is exact"
    lab.decide(
        "integer.exact",
        "Are all products and sums exact?",
        "The largest and smallest bytes at every place, alone and at all places at once, with c.",
        _integer_cases(lab.instruction.k),
        {exact: model},
        allowed=[exact],
        finding="integer sums",
    )
    top = Accumulator(bits=_INT32_MAX, text="2^31 - 1")
    bottom = Accumulator(bits=1 << 31, text="-2^31")
    one = Product(a_bits=1, b_bits=1, text="1")
    minus = Product(a_bits=0xFF, b_bits=1, text="byte 255 * 1")
    cases = [Case(products={0: term}, c=c) for term in (one, minus) for c in (top, bottom)]
    hypotheses = {wraps: model, saturates: replace(model, saturates=True)}
    decision = lab.decide(
        "integer.overflow",
        "What does a sum outside int32 give?",
        "c at both ends of int32, and one product of 1 or of byte 255.",
        cases,
        hypotheses,
        allowed=[wraps],
        finding="integer overflow",
    )
    return hypotheses[decision.best]


def _integer_cases(k: int) -> list[Case]:
    bytes_ = (0x01, 0x7F, 0x80, 0xFF)
    cases = []
    for x in bytes_:
        for y in bytes_:
            term = Product(a_bits=x, b_bits=y, text=f"byte {x} * byte {y}")
            cases += [Case(products={i: term}) for i in range(k)]
            everywhere = dict.fromkeys(range(k), term)
            cases.append(Case(products=everywhere))
            cases.append(Case(products=everywhere, c=Accumulator(bits=0xFFFF0001, text="-65535")))
    return cases
