"""Evaluates a `Model` on bit patterns: NUMERICS section 1 with every choice left open.

Vectorised over the batch in int64. A term's aligned magnitude is below 2^(F+2) and a group
has at most 64 terms and c, so F up to 54 fits; nothing here is meant to be fast beyond that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from emulator_ext.probe.device import Instruction
from emulator_ext.probe.exact import add_bits
from emulator_ext.probe.formats import (
    F32,
    FORMATS,
    TF32,
    Bits,
    Bools,
    Format,
    Ints,
    Unpacked,
    unpack,
)
from emulator_ext.probe.model import Model, Place
from emulator_ext.probe.rounding import Rounding, bit_length, shift_right

_NOWHERE: Final = -(1 << 20)  # an exponent below every other: zero terms do not count


def evaluate(
    model: Model, instruction: Instruction, a: Bits, b: Bits, c: Bits, floors: Ints | None = None
) -> Bits:
    """Return the model's result bits; a, b [n, K], c [n] -> [n].

    floors [n], if given, replaces the model's zero exponent, one for each input.
    """
    if floors is None and model.zero_exponent is not None:
        floors = np.full(len(c), model.zero_exponent, np.int64)
    accumulator = FORMATS[instruction.accumulator]
    terms = _products(model, instruction, a, b)
    carry_format = F32 if model.wide_carry else accumulator
    joins = model.c_joins == "first"
    carry: Bits = c if joins else np.zeros_like(c)
    current = accumulator
    for index, group in enumerate(model.groups):
        last = index == len(model.groups) - 1
        target = accumulator if last else carry_format
        carry_model = _as_f32(model) if model.wide_carry and not last else model
        incoming = _prepared(model, "c", current, carry)
        carry = _step(carry_model, terms.pick(group), incoming, target, floors)
        current = target
    if joins:
        return carry
    return add_bits(accumulator, carry, c, model.end_rounding, model.nan_bits)


def _as_f32(model: Model) -> Model:
    """Return the same step with its result in an f32 register."""
    return replace(
        model,
        significant_bits=24,
        rounding=Rounding.TRUNCATE,
        first_rounded=False,
        nan_bits=F32.nan_bits,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """Products, arrays [n, K]: value = +-magnitude * 2^lsb, aligned by `exponent`."""

    negative: Bools
    magnitude: Ints
    exponent: Ints
    lsb: Ints
    infinite: Bools
    nan: Bools

    def pick(self, group: tuple[int, ...]) -> _Terms:
        index = list(group)
        return _Terms(
            negative=self.negative[:, index],
            magnitude=self.magnitude[:, index],
            exponent=self.exponent[:, index],
            lsb=self.lsb[:, index],
            infinite=self.infinite[:, index],
            nan=self.nan[:, index],
        )


def _operand(model: Model, place: Place, name: str, bits: Bits) -> Unpacked:
    fmt = FORMATS[name]
    if fmt is TF32 and model.operand_rounding is None:
        fmt = F32
    elif fmt is TF32 and model.operand_rounding is not Rounding.TRUNCATE:
        bits = _rounded_register(bits, model.operand_rounding or Rounding.TRUNCATE)
    return _prepared(model, place, fmt, bits)


def _rounded_register(bits: Bits, rounding: Rounding) -> Bits:
    magnitude = bits.astype(np.int64) & 0x7FFFFFFF
    negative = (bits & np.uint32(0x80000000)) != 0
    shift = np.full(bits.shape, TF32.dropped_bits, np.int64)
    rounded = shift_right(magnitude, shift, negative, rounding) << TF32.dropped_bits
    finite = magnitude < F32.infinity_bits
    result: Ints = np.where(finite, rounded, magnitude) | (negative.astype(np.int64) << 31)
    return result.astype(np.uint32)


def _prepared(model: Model, place: Place, fmt: Format, bits: Bits) -> Unpacked:
    value = unpack(fmt, bits)
    subnormal = value.significand < (1 << fmt.fraction_bits)
    if place in model.flushed:
        value = replace(value, significand=np.where(subnormal, 0, value.significand))
    if place in model.normalised:
        leading = value.lsb + bit_length(value.significand) - 1
        value = replace(value, exponent=np.where(subnormal, leading, value.exponent))
    return value


def _products(model: Model, instruction: Instruction, a: Bits, b: Bits) -> _Terms:
    x = _operand(model, "a", instruction.a, a)
    y = _operand(model, "b", instruction.b, b)
    magnitude = x.significand * y.significand
    lsb = x.lsb + y.lsb
    exponent = x.exponent + y.exponent
    if model.normalised_products:
        exponent = lsb + bit_length(magnitude) - 1
    x_zero = (x.significand == 0) & ~x.infinite
    y_zero = (y.significand == 0) & ~y.infinite
    infinite = x.infinite | y.infinite
    return _Terms(
        negative=x.negative != y.negative,
        magnitude=magnitude,
        exponent=exponent,
        lsb=lsb,
        infinite=infinite,
        nan=x.nan | y.nan | (infinite & (x_zero | y_zero)),
    )


def _step(model: Model, terms: _Terms, c: Unpacked, target: Format, floors: Ints | None) -> Bits:
    """One group's exact sum of aligned terms and c, rounded once."""
    magnitude = np.concatenate([terms.magnitude, c.significand[:, None]], axis=1)
    exponent = np.concatenate([terms.exponent, c.exponent[:, None]], axis=1)
    lsb = np.concatenate([terms.lsb, c.lsb[:, None]], axis=1)
    negative = np.concatenate([terms.negative, c.negative[:, None]], axis=1)
    largest = np.where(magnitude > 0, exponent, _NOWHERE).max(axis=1)
    if floors is not None:
        largest = np.maximum(largest, floors)
    unit = largest - model.fraction_bits
    # A zero has whatever exponent its bits say; clip so that shifting it stays defined.
    shift = np.where(magnitude > 0, unit[:, None] - lsb, 0)
    aligned = shift_right(magnitude, shift, negative, model.alignment)
    total = np.where(negative, -aligned, aligned).sum(axis=1)
    all_negative = negative.all(axis=1) & (magnitude == 0).all(axis=1)
    result = _rounded(model, total, unit, all_negative, target)
    return _with_specials(model, result, terms, c, target)


def _rounded(model: Model, total: Ints, unit: Ints, all_negative: Bools, target: Format) -> Bits:
    negative = total < 0
    magnitude = np.abs(total)
    if model.first_rounded:
        drop = bit_length(magnitude) - 24
        cut = shift_right(magnitude, np.maximum(drop, 0), negative, Rounding.TRUNCATE)
        magnitude = cut << np.maximum(drop, 0)
    significant = model.significant_bits
    leading = bit_length(magnitude) - 1 + unit
    grid = np.maximum(leading, target.emin) - (significant - 1)
    grid = np.where(magnitude > 0, grid, unit)
    kept = shift_right(magnitude, grid - unit, negative, model.rounding)
    bits = _encoded(kept, grid, target, saturates=model.saturates)
    if "result" in model.flushed:
        bits = np.where(bits < (1 << target.fraction_bits), 0, bits)
    zero = bits == 0
    signed = negative & ~zero
    if model.zero_sign != "positive":
        signed |= negative
    if model.zero_sign == "ieee":
        signed |= all_negative
    return np.where(signed, bits | target.sign_bit, bits).astype(target.dtype)


def _encoded(kept: Ints, grid: Ints, target: Format, *, saturates: bool) -> Ints:
    """Bits of the magnitude kept * 2^grid, which is a number of the format or too large."""
    leading = bit_length(kept) - 1 + grid
    lsb = np.maximum(leading, target.emin) - target.fraction_bits
    shift = np.where(kept > 0, lsb - grid, 0)
    none = np.zeros(kept.shape, np.bool_)
    significand = shift_right(kept, shift, none, Rounding.TRUNCATE)
    bits = significand + ((lsb - target.tiny) << target.fraction_bits)
    over = target.largest_bits if saturates else target.infinity_bits
    bits = np.where(leading > target.emax, over, bits)
    return np.where(kept > 0, bits, 0)


def _with_specials(model: Model, result: Bits, terms: _Terms, c: Unpacked, target: Format) -> Bits:
    """NUMERICS 1.2: NaN wins, then infinities of both signs, then an infinity."""
    positive = (terms.infinite & ~terms.negative).any(axis=1) | (c.infinite & ~c.negative)
    negative = (terms.infinite & terms.negative).any(axis=1) | (c.infinite & c.negative)
    nan = terms.nan.any(axis=1) | c.nan | (positive & negative)
    result = np.where(positive, target.infinity_bits, result)
    result = np.where(negative, target.infinity_bits | target.sign_bit, result)
    return np.where(nan, model.nan_bits, result).astype(target.dtype)
