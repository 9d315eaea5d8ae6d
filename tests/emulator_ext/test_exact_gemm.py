"""The exact profile: its edges, its accuracy, and that nothing but the operands matters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emulator_ext
from tests.emulator_ext.mma_operands import assert_same_bits

PATHS = emulator_ext.paths()


def multiply(a, b, **how):
    return emulator_ext.gemm(a, b, profile="exact", arch="hopper", **how)


def error(a, b):
    """Relative Frobenius error against float64."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return np.linalg.norm(multiply(a, b) - exact) / np.linalg.norm(exact)


def test_normal_data_keeps_f32_accuracy():
    """On normal data the error is that of a few f32 roundings, and far below SGEMM's."""
    rng = np.random.default_rng(31)
    a, b = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    assert 5e-8 < error(a, b) < 1.2e-7


def test_outlier_channels_are_the_weak_case():
    """Channels 300 times larger against weights as much smaller cost a digit, not more."""
    rng = np.random.default_rng(32)
    a, b = (rng.standard_normal((128, 256)).astype(np.float32) for _ in range(2))
    b = b.T.copy()
    a[:, ::37] *= 300
    b[::37] /= 300
    assert 1e-7 < error(a, b) < 1e-5


def test_integers_below_2_24_multiply_exactly():
    """Products and sums that f32 holds exactly are exact."""
    rng = np.random.default_rng(33)
    a = rng.integers(-200, 201, (31, 300)).astype(np.float32)
    b = rng.integers(-200, 201, (300, 29)).astype(np.float32)
    for path in PATHS:
        assert_same_bits(multiply(a, b, path=path), a @ b)


def test_all_units_below_f32_give_the_zero_of_the_sum_s_sign():
    """A product too small for f32 rounds to zero and keeps its sign, as one fmaf would."""
    tiny = np.array([[2.0**-100]], np.float32)
    for path in PATHS:
        assert_same_bits(multiply(tiny, tiny, path=path), np.zeros((1, 1), np.float32))
        assert_same_bits(multiply(tiny, -tiny, path=path), np.full((1, 1), -0.0, np.float32))


def test_subnormal_products_round_once():
    """Units below f32's range still contribute what they weigh, to half a least subnormal."""
    for a, b, expected in (
        (2.0**-75, 2.0**-74, 2.0**-149),
        (2.0**-75, 2.0**-75, 0.0),  # a tie, to even
        (2.0**-75, 2.0**-75 + 2.0**-81, 2.0**-149),  # above it, in one digit
        (2.0**-149, 1.0, 2.0**-149),
        (2.0**-149, 2.0**127, 2.0**-22),
    ):
        for path in PATHS:
            out = multiply(np.array([[a]], "f4"), np.array([[b]], "f4"), path=path)
            assert_same_bits(out, np.array([[expected]], np.float32), f"{a} * {b}")


def test_units_above_f32_reach_its_greatest_numbers():
    """2^127 times a hair less than 2 is finite, though the block's scale is beyond f32."""
    top = np.array([[2.0**127]], np.float32)
    below = np.array([[2 - 2.0**-23]], np.float32)
    for path in PATHS:
        assert_same_bits(multiply(top, below, path=path), top * below)
        with pytest.raises(emulator_ext.NonFiniteError, match=r"exact.*product.*\[0, 0\]"):
            multiply(top, below + below, path=path)


def test_empty_dimensions_are_defined():
    """K = 0 gives +0; M = 0 and N = 0 give empty results; so does an empty batch."""
    for m, k, n in ((2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0)):
        a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        for path in PATHS:
            assert_same_bits(multiply(a, b, path=path), np.zeros((m, n), np.float32))
    assert multiply(np.ones((0, 2, 3), "f4"), np.ones((0, 3, 4), "f4")).shape == (0, 2, 4)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_batches_strides_and_threads_do_not_matter(data):
    """A batch in any layout, on any number of threads, is its products one by one."""
    batch = tuple(data.draw(st.lists(st.integers(0, 3), max_size=2)))
    m, n = (data.draw(st.integers(0, 27)) for _ in range(2))
    k = data.draw(st.integers(0, 150))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def array(rows, cols):
        x = rng.standard_normal((*batch, rows, cols)).astype(np.float32)
        layout = data.draw(st.sampled_from(["c", "t", "step", "reversed", "broadcast"]))
        if layout == "t":
            return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        if layout == "step":
            return np.repeat(x, 2, -1)[..., ::2]
        if layout == "broadcast":
            return np.broadcast_to(x[..., :1, :], x.shape)
        return x[..., ::-1, :] if layout == "reversed" else x

    a, b = array(m, k), array(k, n)
    out = multiply(a, b, threads=data.draw(st.integers(1, 4)))
    assert out.shape == (*batch, m, n)
    for index in np.ndindex(*batch):
        assert_same_bits(out[index], multiply(a[index].copy(), b[index].copy(), path="scalar"))


def test_large_products_are_the_same_on_all_paths_and_threads():
    """Several row blocks, panel groups and depths at once give the scalar path's bits."""
    rng = np.random.default_rng(34)
    a = (rng.standard_normal((205, 700)) * np.exp2(rng.uniform(-40, 10, (205, 1)))).astype("f4")
    b = (rng.standard_normal((700, 150)) * np.exp2(rng.uniform(-60, 10, (700, 1)))).astype("f4")
    expected = multiply(a, b, path="scalar")
    for path in PATHS:
        for threads in (1, 2, 3, 40):
            assert_same_bits(multiply(a, b, path=path, threads=threads), expected, path)


def test_long_chains_are_the_same_on_all_paths():
    """A K beyond what is packed at once continues its sums where it left them."""
    rng = np.random.default_rng(35)
    a, b = (
        rng.standard_normal((70, 11000), np.float32),
        rng.standard_normal((11000, 61), np.float32),
    )
    expected = multiply(a, b, path="scalar")
    for path in PATHS:
        assert_same_bits(multiply(a, b, path=path), expected, path)
    b[10990, 60], a[0, 10999] = np.nan, np.inf
    for path in PATHS:
        with pytest.raises(emulator_ext.NonFiniteError, match=r"left.*\[0, 10999\]"):
            multiply(a, b, path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_non_finite_operand_aborts(value, path):
    """NaN or infinity raises, naming the profile, the operand and the first place."""
    a, b = np.ones((2, 30, 70), np.float32), np.ones((2, 70, 20), np.float32)
    a[1, 28, 69] = value
    with pytest.raises(emulator_ext.NonFiniteError, match=r"exact.*left.*\[1, 28, 69\]"):
        multiply(a, b, path=path)
    a[1, 28, 69], b[1, 66, 17], b[1, 66, 18] = 1, value, value
    with pytest.raises(emulator_ext.NonFiniteError, match=r"exact.*right.*\[1, 66, 17\]"):
        multiply(a, b, path=path)


def test_wrong_requests_are_refused():
    """An unknown architecture and other shapes or dtypes are refused, as in every profile."""
    x = np.ones((2, 2), np.float32)
    with pytest.raises(emulator_ext.UnsupportedError, match="kepler"):
        emulator_ext.gemm(x, x, profile="exact", arch="kepler")
    for a, b in ((x.astype(np.float64), x), (x[0], x), (x, np.ones((3, 2), "f4")), (x[None], x)):
        with pytest.raises(emulator_ext.OperandError):
            multiply(a, b)
