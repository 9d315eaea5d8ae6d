"""Additions on exact integers: FP64 fused multiply-adds, and c added outside the tensor core.

IEEE 754-2019 where the rounding is to nearest even; the other roundings exist so that a
device that uses them can be recognised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator_ext.probe.formats import Bits, Format
from emulator_ext.probe.rounding import Rounding, shift_right_exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One decoded number: value = significand * 2^exponent, sign apart."""

    negative: bool
    significand: int
    exponent: int
    infinite: bool = False
    nan: bool = False

    @property
    def zero(self) -> bool:
        """Whether it is +0 or -0."""
        return self.significand == 0 and not self.infinite and not self.nan


def decode(fmt: Format, bits: int) -> Scalar:
    """Decode one register of any format."""
    fraction = (bits >> fmt.dropped_bits) & ((1 << fmt.fraction_bits) - 1)
    top = (1 << fmt.exponent_bits) - 1
    field = (bits >> (fmt.dropped_bits + fmt.fraction_bits)) & top
    negative = bool(bits & fmt.sign_bit)
    full = (1 << fmt.fraction_bits) - 1
    if field == top and (fmt.has_infinity or fraction == full):
        infinite = fmt.has_infinity and fraction == 0
        return Scalar(
            negative=negative, significand=0, exponent=0, infinite=infinite, nan=not infinite
        )
    significand = fraction | ((1 << fmt.fraction_bits) if field else 0)
    exponent = max(field, 1) - fmt.bias - fmt.fraction_bits
    return Scalar(negative=negative, significand=significand, exponent=exponent)


def product(x: Scalar, y: Scalar) -> Scalar:
    """Return the exact product, NaN and infinities by IEEE rules."""
    negative = x.negative != y.negative
    infinite = x.infinite or y.infinite
    nan = x.nan or y.nan or (infinite and (x.zero or y.zero))
    return Scalar(
        negative=negative,
        significand=x.significand * y.significand,
        exponent=x.exponent + y.exponent,
        infinite=infinite and not nan,
        nan=nan,
    )


def add(fmt: Format, x: Scalar, y: Scalar, rounding: Rounding, nan_bits: int) -> int:
    """Return the bits of x + y, rounded once to `fmt`."""
    if x.nan or y.nan or (x.infinite and y.infinite and x.negative != y.negative):
        return nan_bits
    if x.infinite or y.infinite:
        negative = x.negative if x.infinite else y.negative
        return fmt.infinity_bits | (fmt.sign_bit if negative else 0)
    exponent = min(x.exponent, y.exponent)
    total = _signed(x) * (1 << (x.exponent - exponent)) + _signed(y) * (
        1 << (y.exponent - exponent)
    )
    if total == 0:
        both = x.zero and y.zero and x.negative and y.negative
        return fmt.sign_bit if both else 0
    return round_to(fmt, total, exponent, rounding)


def round_to(fmt: Format, total: int, exponent: int, rounding: Rounding) -> int:
    """Return the bits of total * 2^exponent rounded to `fmt`; total is not zero."""
    negative, magnitude = total < 0, abs(total)
    leading = magnitude.bit_length() - 1 + exponent
    grid = max(leading, fmt.emin) - fmt.fraction_bits
    kept = shift_right_exact(magnitude, grid - exponent, negative=negative, rounding=rounding)
    bits = kept + ((grid - fmt.tiny) << fmt.fraction_bits)
    if bits >= fmt.infinity_bits >> fmt.dropped_bits:
        bits = fmt.infinity_bits >> fmt.dropped_bits
    return (bits << fmt.dropped_bits) | (fmt.sign_bit if negative else 0)


def add_bits(fmt: Format, x: Bits, y: Bits, rounding: Rounding, nan_bits: int) -> Bits:
    """Add two arrays [n] of one format element by element."""
    sums = [
        add(fmt, decode(fmt, int(p)), decode(fmt, int(q)), rounding, nan_bits)
        for p, q in zip(x, y, strict=True)
    ]
    return np.array(sums, dtype=fmt.dtype)


def _signed(x: Scalar) -> int:
    return -x.significand if x.negative else x.significand
