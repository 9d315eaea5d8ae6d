"""The probe's own arithmetic: its two roundings agree, and formats encode what they decode."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator_ext.probe.exact import decode
from emulator_ext.probe.formats import FORMATS, unpack
from emulator_ext.probe.rounding import Rounding, bit_length, shift_right, shift_right_exact

MAGNITUDES = st.integers(0, (1 << 61) - 1) | st.integers(0, 63).map(lambda n: (1 << n) >> 2)


@settings(deadline=None, max_examples=300)
@given(MAGNITUDES, st.integers(0, 62), st.booleans(), st.sampled_from(list(Rounding)))
def test_both_roundings_agree(
    magnitude: int, shift: int, negative: bool, rounding: Rounding
) -> None:
    """Rounding over arrays and over Python integers is one function."""
    array = shift_right(np.array([magnitude]), np.array([shift]), np.array([negative]), rounding)
    assert array[0] == shift_right_exact(magnitude, shift, negative=negative, rounding=rounding)


@settings(deadline=None, max_examples=300)
@given(MAGNITUDES)
def test_bit_length_is_exact(magnitude: int) -> None:
    """No power of two is mistaken for its neighbour."""
    assert bit_length(np.array([magnitude]))[0] == magnitude.bit_length()


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_finite_values_encode_to_their_bits(data: st.DataObject) -> None:
    """Decoding and encoding again gives the same register bits, in every format."""
    fmt = FORMATS[data.draw(st.sampled_from(sorted(FORMATS)))]
    raw = data.draw(st.integers(0, (1 << fmt.width) - 1))
    bits = raw >> fmt.dropped_bits << fmt.dropped_bits
    value = decode(fmt, bits)
    if value.nan or value.infinite or value.zero:
        return
    significand = -value.significand if value.negative else value.significand
    assert fmt.encode(significand, value.exponent) == bits


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "f16", "bf16"])
def test_both_decoders_agree_on_every_pattern(name: str) -> None:
    """Array and scalar decoding see the same number in every bit pattern."""
    fmt = FORMATS[name]
    bits = np.arange(1 << fmt.width).astype(fmt.dtype)
    array = unpack(fmt, bits)
    for pattern in range(1 << fmt.width):
        value = decode(fmt, pattern)
        assert array.nan[pattern] == value.nan
        assert array.infinite[pattern] == value.infinite
        assert array.negative[pattern] == value.negative
        assert array.significand[pattern] == value.significand
        if value.significand:
            assert array.lsb[pattern] == value.exponent
