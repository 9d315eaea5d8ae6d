"""INT16 vectors: what a code stands for, and products that are the same on every tensor core."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import emulator_ext
from emulator_ext import pinned
from emulator_ext.errors import NonFiniteError, OperandError

ARCHITECTURES = ("volta", "ampere", "hopper")
RANDOM = np.random.default_rng(16)
FINITE = st.integers(0, 0xFF7FFFFF).filter(lambda b: b & 0x7F800000 != 0x7F800000)
VECTORS = arrays(np.uint32, st.integers(1, 40), elements=FINITE).map(lambda a: a.view(np.float32))


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def bits(x):
    return x.view(np.uint32)


def integers(codes):
    return codes.view(np.int16).astype(np.int64)


def unit(scales):
    return np.ldexp(1.0, scales.astype(np.int64) - 127)


def rounded(sums, exponents):
    """Scale exact integers by powers of two and round once to f32, nearest even."""
    return np.ldexp(sums.astype(np.float64), exponents).astype(np.float32)


def halves(q):
    high = (q + 128) >> 8
    return high, q - 256 * high


def held24(x):
    """Return rows of x [R, N] as 24-bit integers, and their scales."""
    field = (bits(x) & 0x7FFFFFFF).max(axis=1) >> 23
    scales = np.maximum(field, 23).astype(np.int64) - 22
    q = np.rint(np.ldexp(x.astype(np.float64), 127 - scales[:, None]))
    return np.clip(q, -(2**23) + 1, 2**23 - 1).astype(np.int64), scales


def digits24(w):
    top = (w + 32768) >> 16
    return top, *halves(w - 65536 * top)


def on_tensor_cores(left, right, arch):
    """Return the integers a b [M, N] whose base-256 digits are left and right, largest first."""
    sums = [
        (i + j, emulator_ext.matmul(x.astype(np.float16), y.astype(np.float16), arch=arch))
        for (i, x), (j, y) in product(enumerate(reversed(left)), enumerate(reversed(right)))
    ]
    return sum(256**power * part.astype(np.int64) for power, part in sums)


@settings(deadline=None, max_examples=200)
@given(VECTORS)
def test_a_code_is_the_nearest_multiple_of_the_unit(x):
    """Scale, nearest integer with ties to even, and saturation follow the definition."""
    codes, scale = pinned.int16_quantise(x)
    field = int((bits(x) & 0x7FFFFFFF).max()) >> 23
    assert int(scale) == max(field, 15) - 14
    exact = x.astype(np.longdouble) * np.exp2(np.longdouble(127 - int(scale)))
    expected = np.clip(np.rint(exact), -32767, 32767).astype(np.int64)
    assert integers(codes).tolist() == expected.tolist()
    if field >= 15:
        assert np.abs(expected).max() >= 2**14


@settings(deadline=None, max_examples=100)
@given(VECTORS)
def test_held_values_are_held_again_unchanged(x):
    """Quantising what codes stand for gives the same codes and scale."""
    codes, scale = pinned.int16_quantise(x)
    again = pinned.int16_quantise(pinned.int16_dequantise(codes, scale))
    assert np.array_equal(again[0], codes)
    assert again[1] == scale


def test_zeros_are_zeros():
    """A zero vector, of either sign, has scale 1 and codes 0."""
    codes, scale = pinned.int16_quantise(np.array([0.0, -0.0], np.float32))
    assert not codes.any()
    assert int(scale) == 1


def test_every_integer_is_two_balanced_halves():
    """Q = 256 high + low with both at most 128 in magnitude, hence exact in f16 and bf16."""
    q = np.arange(-32767, 32768)
    high, low = halves(q)
    assert np.array_equal(256 * high + low, q)
    assert max(np.abs(high).max(), np.abs(low).max()) == 128


@pytest.mark.parametrize("width", [1, 32, 64, 100, 128, 1024])
def test_scores_are_the_integers_rounded_once(width):
    """Scores equal int64 sums of the codes, scaled and rounded once."""
    q, k = normal(2, 3, width), normal(2, 5, width) * np.float32(1e-3)
    (kc, ks), (qc, qs) = pinned.int16_quantise(k), pinned.int16_quantise(q)
    sums = integers(qc) @ integers(kc).transpose(0, 2, 1)
    exponents = qs[:, :, None].astype(np.int64) + ks[:, None, :] - 254
    got = pinned.int16_scores(q, kc, ks)
    assert np.array_equal(bits(got), bits(rounded(sums, exponents)))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("width", [32, 64, 128, 1024])
def test_tensor_cores_give_the_same_scores(arch, width):
    """Four f16 products on an emulated tensor core give the bits of int64."""
    q, k = normal(8, width), normal(24, width)
    (kc, ks), (qc, qs) = pinned.int16_quantise(k), pinned.int16_quantise(q)
    sums = on_tensor_cores(halves(integers(qc)), halves(integers(kc).T), arch)
    exponents = qs[:, None].astype(np.int64) + ks[None, :] - 254
    assert np.array_equal(sums, integers(qc) @ integers(kc).T)
    assert np.array_equal(bits(pinned.int16_scores(q, kc, ks)), bits(rounded(sums, exponents)))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("largest", [32767, 32640, -32767, -32640])
def test_the_widest_sums_are_exact(arch, largest):
    """With 1024 products, all of one sign and of the largest halves, nothing is lost."""
    a = np.full((8, 1024), 32640)
    b = np.full((1024, 8), largest)
    assert np.array_equal(on_tensor_cores(halves(a), halves(b), arch), a @ b)


def test_one_more_product_would_not_be_exact():
    """The bound is tight: after 2^24 an f32 accumulator loses a unit."""
    ones = np.full((8, 1025), 128, np.float16)
    ones[:, -1] = 1
    other = np.full((1025, 8), 128, np.float16)
    other[-1] = 1
    assert emulator_ext.matmul(ones, other, arch="hopper")[0, 0] == 2**24


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_tensor_cores_give_the_same_mixture(arch):
    """Weights times values: blocks of 1024 tokens on tensor cores, their integers added."""
    p, v = np.abs(normal(4, 1500)), normal(1500, 32)
    vc, vs = pinned.int16_quantise(v)
    weights = p * unit(vs).astype(np.float32)
    w, ws = held24(weights)
    sums = sum(
        on_tensor_cores(digits24(w[:, block]), halves(integers(vc)[block]), arch)
        for block in (slice(0, 1024), slice(1024, 1500))
    )
    got = pinned.int16_mix(p[None], vc[None], vs[None])[0]
    assert np.array_equal(sums, w @ integers(vc))
    assert np.array_equal(bits(got), bits(rounded(sums, ws[:, None] - 127)))


def test_errors_against_float64_are_those_of_the_codes():
    """On normal data both are within 6e-5 of float64, and bf16 is 40 times worse."""
    q, k, v = normal(16, 64), normal(200, 64), normal(200, 64)
    p = np.exp(normal(16, 200))
    p /= p.sum(axis=1, keepdims=True)

    def error(got, exact):
        return np.linalg.norm(got - exact) / np.linalg.norm(exact)

    scores, exact = pinned.int16_scores(q, *pinned.int16_quantise(k)), q.astype(float) @ k.T
    mixed = pinned.int16_mix(p, *pinned.int16_quantise(v))
    coarse = emulator_ext.gemm(q, np.ascontiguousarray(k.T), profile="bf16", arch="hopper")
    assert error(scores, exact) < 6e-5
    assert error(mixed, p.astype(float) @ v) < 6e-5
    assert error(coarse, exact) > 40 * error(scores, exact)


def test_token_scales_may_differ_by_any_power_of_two():
    """Scales of values are folded into the weights: tiny and huge tokens mix exactly."""
    p = np.array([[0.5, 0.25, 0.25]], np.float32)
    v = np.array([[2.0**60], [2.0**-60], [3.0]], np.float32)
    mixed = pinned.int16_mix(p, *pinned.int16_quantise(v))
    assert mixed.tolist() == [[2.0**59]]


@pytest.mark.parametrize("operator", ["int16_quantise", "int16_scores", "int16_mix", "argmax"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_name(operator, bad):
    """NaN and infinity abort, naming operator, value and index."""
    codes, scales = pinned.int16_quantise(normal(4, 4))
    x = normal(2, 4)
    x[1, 2] = bad
    arguments = (codes, scales) if operator in {"int16_scores", "int16_mix"} else ()
    with pytest.raises(NonFiniteError, match=rf"{operator}: .* first at flat index 6"):
        getattr(pinned, operator)(x, *arguments)


def test_what_is_too_wide_is_refused_by_name():
    """Beyond 1024 elements a head, or 32768 tokens a context, sums would not be exact."""
    codes, scales = pinned.int16_quantise(normal(2, 1025))
    with pytest.raises(OperandError, match="int16_scores: heads of 1025"):
        pinned.int16_scores(normal(2, 1025), codes, scales)
    codes, scales = pinned.int16_quantise(normal(32769, 1))
    with pytest.raises(OperandError, match="int16_mix: contexts of 32769"):
        pinned.int16_mix(normal(1, 32769), codes, scales)


@pytest.mark.parametrize(
    ("codes", "scales"),
    [
        (np.zeros((3, 4), np.int16), np.zeros(3, np.uint8)),
        (np.zeros((3, 4), np.uint16), np.zeros(4, np.uint8)),
        (np.zeros((3, 5), np.uint16), np.zeros(3, np.uint8)),
    ],
)
def test_operands_that_do_not_fit_are_refused(codes, scales):
    """Another dtype, another number of scales, another width."""
    with pytest.raises(OperandError):
        pinned.int16_scores(normal(2, 4), codes, scales)


def test_threads_change_no_bit():
    """One thread or many: the same codes, scores, mixtures and indices."""
    q, k, p = normal(3, 90, 64), normal(3, 500, 64), np.abs(normal(3, 90, 500))
    codes, scales = pinned.int16_quantise(k, threads=1)
    many = pinned.int16_quantise(k, threads=4)
    assert np.array_equal(codes, many[0])
    assert np.array_equal(scales, many[1])
    for function, x in ((pinned.int16_scores, q), (pinned.int16_mix, p)):
        one, four = (function(x, codes, scales, threads=n) for n in (1, 4))
        assert np.array_equal(bits(one), bits(four))
    rows = q.reshape(-1, 64)
    assert np.array_equal(pinned.argmax(rows, threads=1), pinned.argmax(rows, threads=4))


def test_prefix_softmax_is_a_row_of_the_causal_one():
    """A row with n live entries has the bits of row n - 1 of the causal softmax."""
    scores = normal(2, 40, 40)
    causal = pinned.causal_softmax(scores, 0.3)
    for live in (1, 2, 17, 40):
        row = pinned.prefix_softmax(scores[:, live - 1], live, 0.3)
        assert np.array_equal(bits(row), bits(causal[:, live - 1]))
    scores[:, :, 30:] = np.nan
    assert np.isfinite(pinned.prefix_softmax(scores, 30, 0.3)).all()
    for live in (0, 41):
        with pytest.raises(OperandError, match="live entries"):
            pinned.prefix_softmax(scores, live, 0.3)


def test_the_lowest_index_of_the_largest_entry_wins():
    """Ties go to the lowest index; +0 lies above -0."""
    x = np.array([[1, 3, 3, 2], [-0.0, 0.0, -1, 0.0], [-5, -5, -6, -7]], np.float32)
    assert pinned.argmax(x).tolist() == [1, 1, 0]


def test_the_header_is_cuda_too():
    """NVRTC compiles the same header, without contraction."""
    nvrtc = pytest.importorskip("tests.trainer.kernels.nvrtc")
    include = Path(emulator_ext.__file__).parent / "include"
    source = """
    #include "bitwitness/pinned_int16.h"
    extern "C" __global__ void every(const float* x, float* y) {
        using namespace bitwitness;
        const u32 scale = int16_scale(bits_of(x[0]));
        const i32 q = int16_quantise(x[1], scale);
        y[0] = mul_rn(static_cast<float>(int16_high(q) + int16_low(q)), int16_unit(scale));
        y[1] = int16_round(int16_join(x[2], x[3], x[4], x[5]), static_cast<i32>(scale) - 127);
    }
    """
    options = ("--std=c++17", "--gpu-architecture=sm_80", "--fmad=false", f"-I{include}")
    try:
        cubin = nvrtc.compile_cubin(source, options)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no NVRTC here: {error}")
    assert cubin[:4] == b"\x7fELF"
