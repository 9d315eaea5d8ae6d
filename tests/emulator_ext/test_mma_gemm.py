"""The GEMM profiles against the second model, and the errors they raise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emulator_ext
from tests.emulator_ext import mma_model as model
from tests.emulator_ext.mma_operands import assert_same_bits

UNITS = {
    "ampere": model.Unit(24, 8, -132, "rz32"),
    "hopper": model.Unit(25, 16, -133, "rz32"),
    "volta": model.Unit(23, 4, -131, "rz32"),
}
SHAPES = [(1, 32, 1), (1, 45, 3), (3, 7, 2), (2, 64, 5), (4, 33, 4)]
PROFILES = ("heal", "bf16", "fp32")


def operands(rng, m, k, n):
    """f32 operands with zeros, rows scaled by 2^-100 and 2^100, and an empty row and column."""
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((k, n)).astype(np.float32)
    a[rng.random(a.shape) < 0.1] = 0
    if m > 1:
        a[1] *= np.float32(2.0**-100)
    if m > 2:
        a[2] = 0
    if m > 3:
        a[3] *= np.float32(2.0**100)
    if n > 2:
        b[:, 2] *= np.float32(2.0**-100)
    if n > 3:
        b[:, 3] = -0.0
    return a, b


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("arch", UNITS)
def test_heal_is_the_second_model_s(arch, shape):
    """Heal on ragged K, one row, empty and far-scaled rows has no differing bit, on any path."""
    m, k, n = shape
    a, b = operands(np.random.default_rng([9, m, k, n]), m, k, n)
    expected = model.heal(a, b, UNITS[arch])
    for path in emulator_ext.paths():
        out = emulator_ext.gemm(a, b, profile="heal", arch=arch, path=path)
        assert_same_bits(out, expected, path)


def test_heal_of_the_smallest_and_largest_rows_is_the_second_model_s():
    """Subnormal rows, whose scale is two factors, and rows at f32's end are exact too."""
    rng = np.random.default_rng(10)
    a = rng.standard_normal((4, 40)).astype(np.float32)
    a[0] = (a[0] * 2.0**-120).astype(np.float32) * np.float32(2.0**-20)
    a[1] = np.float32(2.0**-149)
    a[2] = np.sign(a[2]) * np.float32(2.0**120)
    b = (rng.standard_normal((40, 3)) * 2.0**-3).astype(np.float32)
    expected = model.heal(a, b, UNITS["hopper"])
    for path in emulator_ext.paths():
        out = emulator_ext.gemm(a, b, profile="heal", arch="hopper", path=path)
        assert_same_bits(out, expected, path)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bf16_and_fp32_are_the_second_model_s(shape):
    """The other two profiles have no differing bit either, on any path."""
    m, k, n = shape
    a, b = operands(np.random.default_rng([11, m, k, n]), m, k, n)
    if m > 3:
        a[3] *= np.float32(2.0**-90)  # leave room: the fp32 chain must stay finite
    for path in emulator_ext.paths():
        out = emulator_ext.gemm(a, b, profile="bf16", arch="ampere", path=path)
        assert_same_bits(out, model.bf16(a, b, UNITS["ampere"]), path)
        out = emulator_ext.gemm(a, b, profile="fp32", arch="ampere", path=path)
        assert_same_bits(out, model.fp32(a, b), path)


@pytest.mark.parametrize("profile", PROFILES)
def test_large_products_are_the_same_on_all_paths(profile):
    """Many blocks, panels and row strips at once: every path gives the scalar path's bits."""
    rng = np.random.default_rng(12)
    a = (rng.standard_normal((70, 300)) * np.exp2(rng.uniform(-40, 10, (70, 1)))).astype("f4")
    b = (rng.standard_normal((300, 101)) * np.exp2(rng.uniform(-40, 10, (300, 1)))).astype("f4")
    expected = emulator_ext.gemm(a, b, profile=profile, arch="hopper", path="scalar")
    for path in emulator_ext.paths():
        out = emulator_ext.gemm(a, b, profile=profile, arch="hopper", path=path)
        assert_same_bits(out, expected, path)


@pytest.mark.parametrize("arch", ["ampere", "hopper"])
def test_heal_is_more_accurate_than_the_f32_chain(arch):
    """Against float64 the error of heal is below the fp32 profile's, and bf16's far above."""
    rng = np.random.default_rng(13)
    a = rng.standard_normal((96, 512)).astype(np.float32)
    b = rng.standard_normal((512, 96)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)

    def error(profile):
        out = emulator_ext.gemm(a, b, profile=profile, arch=arch)
        return np.linalg.norm(out - exact) / np.linalg.norm(exact)

    assert error("heal") < 2e-7 < error("fp32") < 6e-7
    assert 1e-3 < error("bf16") < 5e-3


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_batches_and_strides_do_not_matter(data):
    """A batch in any layout is its products one by one."""
    profile = data.draw(st.sampled_from(PROFILES))
    batch = tuple(data.draw(st.lists(st.integers(0, 3), max_size=2)))
    m, k, n = (data.draw(st.integers(0, 9)) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def array(rows, cols):
        x = rng.standard_normal((*batch, rows, cols)).astype(np.float32)
        layout = data.draw(st.sampled_from(["c", "t", "step", "reversed"]))
        if layout == "t":
            return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        if layout == "step":
            return np.repeat(x, 2, -1)[..., ::2]
        return x[..., ::-1, :] if layout == "reversed" else x

    a, b = array(m, k), array(k, n)
    out = emulator_ext.gemm(a, b, profile=profile, arch="ampere")
    assert out.shape == (*batch, m, n)
    for index in np.ndindex(*batch):
        single = emulator_ext.gemm(
            a[index].copy(), b[index].copy(), profile=profile, arch="ampere", path="scalar"
        )
        assert_same_bits(out[index], single)


@pytest.mark.parametrize("profile", PROFILES)
def test_empty_dimensions_are_defined(profile):
    """K = 0 gives +0; M = 0 and N = 0 give empty results."""
    for m, k, n in ((2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0)):
        a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        out = emulator_ext.gemm(a, b, profile=profile, arch="ada")
        assert_same_bits(out, np.zeros((m, n), np.float32))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_non_finite_operand_aborts(profile, value):
    """NaN or infinity in an operand raises, naming the profile, the operand and the place."""
    a, b = np.ones((2, 3, 4), np.float32), np.ones((2, 4, 5), np.float32)
    a[1, 2, 3] = value
    with pytest.raises(emulator_ext.NonFiniteError, match=rf"{profile}.*left.*\[1, 2, 3\]"):
        emulator_ext.gemm(a, b, profile=profile, arch="hopper")
    a[1, 2, 3], b[1, 0, 4] = 1, value
    with pytest.raises(emulator_ext.NonFiniteError, match=rf"{profile}.*right.*\[1, 0, 4\]"):
        emulator_ext.gemm(a, b, profile=profile, arch="hopper")


@pytest.mark.parametrize("profile", PROFILES)
def test_an_overflowing_product_aborts(profile):
    """A product beyond f32 raises, and never returns infinity."""
    a = np.full((1, 2), 2.0**127, np.float32)
    for path in emulator_ext.paths():
        with pytest.raises(emulator_ext.NonFiniteError, match=rf"{profile}.*product.*\[0, 0\]"):
            emulator_ext.gemm(a, a.T, profile=profile, arch="hopper", path=path)


def test_unknown_profiles_and_wrong_operands_are_refused():
    """Each refusal names what was asked for and what there is."""
    x = np.ones((2, 2), np.float32)
    with pytest.raises(emulator_ext.UnsupportedError, match="fp32, bf16, heal"):
        emulator_ext.gemm(x, x, profile="fp8", arch="hopper")
    with pytest.raises(emulator_ext.UnsupportedError, match="kepler"):
        emulator_ext.gemm(x, x, profile="heal", arch="kepler")
    with pytest.raises(emulator_ext.UnsupportedError, match="bf16"):
        emulator_ext.gemm(x, x, profile="bf16", arch="volta")
    for a, b in ((x.astype(np.float64), x), (x[0], x), (x, np.ones((3, 2), "f4")), (x[None], x)):
        with pytest.raises(emulator_ext.OperandError):
            emulator_ext.gemm(a, b, profile="heal", arch="hopper")
