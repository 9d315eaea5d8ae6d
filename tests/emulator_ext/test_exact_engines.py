"""The exact profile has one set of bits, whichever engine forms its sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emulator_ext
from tests.emulator_ext import exact_model as model
from tests.emulator_ext.mma_model import fma32
from tests.emulator_ext.mma_operands import assert_same_bits

ARCHITECTURES = ("volta", "turing", "ampere", "ada", "hopper", "blackwell", "rtx_blackwell")
ENGINES = {
    "int64": model.integers,
    "sgemm": model.sgemm,
    "volta f16": model.tensor_core("volta", "f16"),
    "ampere f16": model.tensor_core("ampere", "f16"),
    "ampere bf16": model.tensor_core("ampere", "bf16"),
    "hopper f16": model.tensor_core("hopper", "f16"),
    "hopper bf16": model.tensor_core("hopper", "bf16"),
}
SHAPES = [(1, 64, 1), (1, 200, 5), (3, 7, 2), (7, 65, 9), (13, 300, 33), (4, 0, 3), (26, 128, 40)]


def multiply(a, b, path=None, arch="hopper"):
    return emulator_ext.gemm(a, b, profile="exact", arch=arch, path=path)


def operands(rng, m, k, n):
    """f32 operands with zeros, rows and columns far from 1, some empty, some subnormal."""
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((k, n)).astype(np.float32)
    a[rng.random(a.shape) < 0.1] = 0
    for i, scale in enumerate((1, 2.0**-100, 0, 2.0**100, 2.0**-140, 2.0**-62)[:m]):
        a[i] *= np.float32(scale)
    for j, scale in enumerate((1, 2.0**20, 2.0**-100, -0.0, 2.0**-140)[:n]):
        b[:, j] *= np.float32(scale)
    return a, b


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gives_the_same_bits(engine, shape):
    """Integers, SGEMM and three architectures' tensor cores agree with every path to the bit."""
    a, b = operands(np.random.default_rng([21, *shape]), *shape)
    expected = model.exact(a, b, ENGINES[engine])
    for path in emulator_ext.paths():
        assert_same_bits(multiply(a, b, path), expected, f"{engine}, {path}")


def test_the_largest_digits_still_sum_exactly():
    """Sixty-four products of the largest digits, of one sign, stay exact in every engine."""
    largest = np.float32(2 - 2.0**-23)  # 256, 0, -4
    halves = np.float32(0.5 + 2.0**-9 + 2.0**-18)  # digits 128, 128, 128 below the same exponent
    for a_row in ([largest] * 64, [largest] + [halves] * 63, [largest] + [-halves] * 63):
        a = np.array([a_row], np.float32)
        expected = model.exact(a, a.T, model.integers)
        for name, engine in ENGINES.items():
            assert_same_bits(model.exact(a, a.T, engine), expected, name)
        for path in emulator_ext.paths():
            assert_same_bits(multiply(a, a.T, path), expected, path)


def test_the_architecture_has_no_say():
    """All architectures give one product, also those without bf16."""
    a, b = operands(np.random.default_rng(22), 9, 130, 7)
    expected = multiply(a, b)
    for arch in ARCHITECTURES:
        assert_same_bits(multiply(a, b, arch=arch), expected, arch)


finite_bits = st.integers(0, 0x7F7FFFFF).flatmap(
    lambda magnitude: st.sampled_from([magnitude, magnitude | 0x80000000])
)


@settings(deadline=None, max_examples=150)
@given(
    a_bits=st.lists(finite_bits, min_size=1, max_size=70),
    b_bits=st.lists(finite_bits, min_size=70, max_size=70),
)
def test_any_finite_bits_give_the_model_s_bits(a_bits, b_bits):
    """Rows of any finite f32 bits multiply as the model says, or overflow where it does."""
    a = np.array([a_bits], np.uint32).view(np.float32)
    b = np.array(b_bits[: len(a_bits)], np.uint32).view(np.float32)[:, None]
    expected = model.exact(a, b, model.integers)
    for path in emulator_ext.paths():
        if np.isfinite(expected).all():
            assert_same_bits(multiply(a, b, path), expected, path)
        else:
            with pytest.raises(emulator_ext.NonFiniteError, match=r"exact.*product"):
                multiply(a, b, path)


@pytest.mark.parametrize("seed", range(4))
def test_rows_anywhere_in_f32_share_a_tile(seed):
    """Rows and columns from 2^-140 to 2^60 side by side, with 30 binary orders in each, agree."""
    rng = np.random.default_rng([23, seed])

    def lines(count, k):
        places = rng.permutation(np.linspace(-120, 60, count).astype(int))[:, None]
        significands = rng.choice([-1, 1], (count, k)) * rng.uniform(1, 2, (count, k))
        return np.ldexp(significands, places - rng.integers(0, 30, (count, k))).astype(np.float32)

    a, b = lines(17, 192), lines(19, 192).T
    expected = model.exact(a, b, model.integers)
    assert np.isfinite(expected).all()
    for path in emulator_ext.paths():
        assert_same_bits(multiply(a, b, path), expected, path)


def test_every_exponent_of_a_unit_is_exact():
    """Units are swept through both ends of f32, one binary order at a time."""
    rng = np.random.default_rng(24)
    x, y = rng.uniform(0.5, 1, (5, 64)), rng.uniform(0.5, 1, (64, 9))
    x *= rng.choice([-1, 1, 1], x.shape)
    for total in range(-200, -80):
        a, b = np.ldexp(x, total // 2), np.ldexp(y, total - total // 2)
        compare_with_the_model(a.astype(np.float32), b.astype(np.float32), f"2^{total}")
    # The greatest meet numbers 2^25 times smaller: S_0 is 0, its unit beyond f32.
    x[:, 1:32] *= 2.0**-25
    y[0] *= 2.0**-25
    x[:, 32:], y[32:], y[1:32] = 0, 0, y[1:32] * 2.0**-3
    for total in range(100, 150):
        a, b = np.ldexp(x, total // 2), np.ldexp(y, total - total // 2)
        compare_with_the_model(a.astype(np.float32), b.astype(np.float32), f"2^{total}")


def compare_with_the_model(a, b, context):
    expected = model.exact(a, b, model.integers)
    assert np.isfinite(expected).all()
    for path in emulator_ext.paths():
        assert_same_bits(multiply(a, b, path), expected, f"{context} {path}")


@settings(deadline=None, max_examples=300)
@given(
    total=st.integers(-3 * 2**22, 3 * 2**22),
    exponent=st.integers(-284, 100),
    c_bits=st.integers(0, 0x7EFFFFFF),
    negative=st.booleans(),
)
def test_the_model_s_chain_rounds_once(total, exponent, c_bits, negative):
    """The model's float64 step equals rational arithmetic, at the ends of f32 too."""
    c = np.array(c_bits | (0x80000000 if negative else 0), np.uint32).view(np.float32)
    expected = fma32(total, 2.0**exponent, c)
    assert_same_bits(model.fma(np.array(total), np.array(exponent), c), np.array(expected))
