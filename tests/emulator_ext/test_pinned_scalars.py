"""The pinned scalar functions, the reduction and the random numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emulator_ext
from emulator_ext import pinned
from tests.emulator_ext import pinned_model as model

REFERENCES = {
    "exp2": (pinned.exp2, lambda x: mpmath.mpf(2) ** x, (-149.0, 127.0)),
    "log2": (pinned.log2, lambda x: mpmath.log(x) / mpmath.ln2, (1e-40, 3e38)),
    "tanh": (pinned.tanh, mpmath.tanh, (-10.0, 10.0)),
    "erf": (pinned.erf, mpmath.erf, (-4.5, 4.5)),
    "sigmoid": (pinned.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), (-103.0, 20.0)),
}


def ulps_away(got, exact):
    """Return the distance of an f32 from an mpmath number, in ulps of the latter."""
    exponent = max(mpmath.frexp(exact)[1] - 24, -149) if exact else -149
    return abs(mpmath.ldexp(mpmath.mpf(float(got)) - exact, -exponent))


@pytest.mark.parametrize("name", REFERENCES)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_rounded_to_nearest(name, data):
    """The result is within half an ulp, and 1e-6 of one more, of the exact value at 200 bits."""
    function, reference, (low, high) = REFERENCES[name]
    x = data.draw(st.floats(np.float32(low).item(), np.float32(high).item(), width=32))
    got = function(np.array([x], np.float32))[0]
    with mpmath.workprec(200):
        assert ulps_away(got, reference(mpmath.mpf(x))) <= mpmath.mpf("0.500001")


@pytest.mark.parametrize("name", ["exp2", "log2", "tanh", "sigmoid"])
def test_same_bits_as_extended_precision(name):
    """On 200,000 spread arguments every bit is that of the extended-precision C library."""
    function, _, (low, high) = REFERENCES[name]
    x = np.random.default_rng(1).uniform(max(low, -99), min(high, 1e4), 200_000)
    x = x.astype(np.float32)
    expected = getattr(model, name)(x)
    assert np.array_equal(function(x).view(np.uint32), expected.view(np.uint32))


def test_exact_values():
    """Powers of two are exact both ways, odd functions keep -0, and limits are reached."""
    k = np.arange(-149, 128).astype(np.float32)
    powers = np.ldexp(np.float32(1), k.astype(int)).astype(np.float32)
    assert np.array_equal(pinned.exp2(k), powers)
    assert np.array_equal(pinned.log2(powers), k)
    minus_zero = np.array([-0.0], np.float32)
    assert np.signbit(pinned.tanh(minus_zero))[0]
    assert np.signbit(pinned.erf(minus_zero))[0]
    ends = np.array([-1e30, 1e30], np.float32)
    assert pinned.tanh(ends).tolist() == [-1, 1]
    assert pinned.erf(ends).tolist() == [-1, 1]
    assert pinned.sigmoid(ends).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("function", "x"), [(pinned.exp2, 128.0), (pinned.log2, 0.0), (pinned.log2, -1.0)]
)
def test_results_outside_f32_abort(function, x):
    """A scalar function whose result is NaN or infinite aborts, by name."""
    with pytest.raises(emulator_ext.NonFiniteError, match=function.__name__):
        function(np.array([x], np.float32))


def test_polynomials_are_the_scripts_output():
    """The committed polynomial header is, byte for byte, what the committed script derives."""
    root = Path(emulator_ext.__file__).parent
    script = root / "tools" / "derive_polynomials.py"
    header = root / "include" / "bitwitness" / "pinned_polynomials.h"
    output = subprocess.run([sys.executable, script], capture_output=True, check=True)
    assert output.stdout == header.read_bytes()


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1))
def test_reduction_is_256_lanes_and_a_tree(n, seed):
    """The sum of squares has the bits of 256 ascending lanes folded 128 ... 1 apart."""
    x = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
    assert pinned.sum_squares(x).view(np.uint32) == model.tree(x * x).view(np.uint32)


def test_philox_known_answers():
    """The stream whose key and counter are the Random123 vectors' gives their words."""
    words = pinned.philox(0, 0, 0, 4)
    assert words.tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    # The model carries the vector with digits of pi, whose block number is too high to reach.
    key, counter = (0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert model.philox_block(counter, key) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    stream=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**64 - 1),
    count=st.integers(0, 41),
)
def test_philox_streams(seed, stream, step, count):
    """A stream's words are its blocks in order, keyed and counted as documented."""
    key = seed & 0xFFFFFFFF, seed >> 32
    blocks = [
        model.philox_block((b, stream, step & 0xFFFFFFFF, step >> 32), key) for b in range(11)
    ]
    expected = [word for block in blocks for word in block][:count]
    assert pinned.philox(seed, stream, step, count).tolist() == expected


def test_unit_interval():
    """Words map to multiples of 2^-24 in [0, 1), dropping the low 8 bits."""
    words = np.array([0, 255, 256, 2**31, 2**32 - 1], np.uint32)
    assert pinned.unit_interval(words).tolist() == [0, 0, 2**-24, 0.5, 1 - 2**-24]
