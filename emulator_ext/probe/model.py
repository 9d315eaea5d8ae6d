"""The space of hypotheses: one value describes how a device might add.

NUMERICS section 1 is one point of it; the other values are mistakes and other
designs that hardware is known or feared to have, so that a device outside the contract is
described and not only refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from emulator_ext.probe.rounding import Rounding

# An alignment this wide loses nothing that a result could show, and still fits int64 sums.
EXACT_FRACTION_BITS: Final = 54

Place = Literal["a", "b", "c", "result"]
ZeroSign = Literal["positive", "underflow", "ieee"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An aligned-sum tensor core.

    Attributes:
        groups: product indices of each step, in the order in which the steps are chained.
        c_joins: whether c is a term of the first step, or is added to the last result.
        fraction_bits: F, bits kept below the largest exponent of a step.
        alignment: rounding of each term to that grid.
        significant_bits: precision p of a step's result.
        rounding: of the exact sum to p bits.
        first_rounded: the sum is cut to 24 bits before that (a double rounding).
        wide_carry: between steps an f32 is kept although the accumulator is narrower.
        end_rounding: of the addition of c, where c joins at the end.
        normalised_products: a product's exponent is that of its leading bit, not the raw sum.
        normalised: places whose subnormal values get the exponent of their leading bit.
        zero_exponent: constant floor of the largest exponent, or none.
        flushed: places where subnormal values count as zero.
        zero_sign: `positive`: a zero is +0; `underflow`: a negative sum that rounds to zero
            gives -0; `ieee`: so does a sum of nothing but -0.
        nan_bits: the NaN that comes out, whatever went in.
        saturates: overflow gives the largest number instead of an infinity.
        operand_rounding: how tf32's dropped bits count; none: they are all used.

    """

    groups: tuple[tuple[int, ...], ...]
    c_joins: Literal["first", "end"] = "first"
    fraction_bits: int = EXACT_FRACTION_BITS
    alignment: Rounding = Rounding.TRUNCATE
    significant_bits: int = 24
    rounding: Rounding = Rounding.TRUNCATE
    first_rounded: bool = False
    wide_carry: bool = False
    end_rounding: Rounding = Rounding.NEAREST_EVEN
    normalised_products: bool = False
    normalised: frozenset[Place] = frozenset()
    zero_exponent: int | None = None
    flushed: frozenset[Place] = frozenset()
    zero_sign: ZeroSign = "positive"
    nan_bits: int
    saturates: bool = False
    operand_rounding: Rounding | None = Rounding.TRUNCATE


@dataclass(frozen=True, slots=True, kw_only=True)
class FmaModel:
    """A chain of IEEE multiply-adds, one product a step (FP64 DMMA).

    Attributes:
        order: product indices in the order in which they are added to c.
        fused: the product is exact; otherwise it is rounded before the addition.
        rounding: of each addition.
        flushed: places where subnormal values count as zero.
        nan_bits: the NaN that comes out, whatever went in.

    """

    order: tuple[int, ...]
    fused: bool = True
    rounding: Rounding = Rounding.NEAREST_EVEN
    flushed: frozenset[Place] = frozenset()
    nan_bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerModel:
    """Exact integer dot products.

    Attributes:
        saturates: a sum outside int32 gives the nearest int32; otherwise it wraps.
        signed_a, signed_b: whether an operand's byte is two's complement.

    """

    saturates: bool = False
    signed_a: bool
    signed_b: bool


AnyModel = Model | FmaModel | IntegerModel
