"""Rounding of integer magnitudes, in all the ways an adder might be built.

Two forms of one rule: `shift_right` over int64 arrays for the narrow formats, and
`shift_right_exact` over Python integers where nothing may overflow (FP64, a last addition
outside the tensor core).
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from emulator_ext.probe.formats import Bools, Ints

# int64 arithmetic: magnitudes stay below 2^62, so a longer shift leaves nothing.
MAX_SHIFT = 62


class Rounding(StrEnum):
    """How the bits below the last kept one count."""

    TRUNCATE = "toward zero"
    FLOOR = "floor (two's complement)"
    CEILING = "ceiling"
    AWAY = "away from zero"
    NEAREST_EVEN = "nearest, ties to even"
    NEAREST_AWAY = "nearest, ties away"
    STICKY = "sticky (lost bits set the last bit)"


def shift_right(magnitude: Ints, shift: Ints, negative: Bools, rounding: Rounding) -> Ints:
    """Return magnitude * 2^-shift rounded to integers; a negative shift is exact."""
    down = np.clip(shift, 0, MAX_SHIFT)
    kept = np.where(shift > 0, magnitude >> down, magnitude << np.clip(-shift, 0, MAX_SHIFT))
    lost = np.where(shift > 0, magnitude & ((np.int64(1) << down) - 1), 0)
    half = np.where(shift > 0, np.int64(1) << np.maximum(down - 1, 0), 1)
    if rounding is Rounding.STICKY:
        return np.where(lost > 0, kept | 1, kept)
    up: Bools
    match rounding:
        case Rounding.TRUNCATE:
            return kept
        case Rounding.FLOOR:
            up = negative & (lost > 0)
        case Rounding.CEILING:
            up = ~negative & (lost > 0)
        case Rounding.AWAY:
            up = lost > 0
        case Rounding.NEAREST_EVEN:
            up = (lost > half) | ((lost == half) & ((kept & 1) == 1))
        case Rounding.NEAREST_AWAY:
            up = lost >= half
    return kept + up


def shift_right_exact(magnitude: int, shift: int, *, negative: bool, rounding: Rounding) -> int:
    """Return magnitude * 2^-shift rounded to an integer, for any size."""
    if shift <= 0:
        return magnitude << -shift
    kept, lost = magnitude >> shift, magnitude & ((1 << shift) - 1)
    half = 1 << (shift - 1)
    match rounding:
        case Rounding.TRUNCATE:
            up = False
        case Rounding.FLOOR:
            up = negative and lost > 0
        case Rounding.CEILING:
            up = not negative and lost > 0
        case Rounding.AWAY:
            up = lost > 0
        case Rounding.STICKY:
            up = lost > 0 and kept & 1 == 0
        case Rounding.NEAREST_EVEN:
            up = lost > half or (lost == half and kept & 1 == 1)
        case Rounding.NEAREST_AWAY:
            up = lost >= half
    return kept + up


def bit_length(magnitude: Ints) -> Ints:
    """Return the number of significant bits of each non-negative integer below 2^62."""
    high = magnitude >> 31
    part = np.where(high > 0, high, magnitude)
    # Below 2^32 a double holds the integer exactly, so frexp's exponent is the length.
    length: Ints = np.frexp(part.astype(np.float64))[1].astype(np.int64)
    return length + np.where(high > 0, 31, 0)
