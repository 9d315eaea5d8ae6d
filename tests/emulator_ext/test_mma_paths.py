"""No code path, thread count, stride or shape changes a bit of a matrix product."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emulator_ext
from tests.emulator_ext.mma_model import DTYPES
from tests.emulator_ext.mma_operands import KINDS, accumulator, assert_same_bits, bits, operand

VECTOR_PATHS = [p for p in emulator_ext.paths() if p != "scalar"]
# arch, instruction, operand dtypes, accumulators
INSTRUCTIONS = [
    ("volta", "mma", ("f16", "f16"), ("f32", "f16")),
    ("ampere", "mma", ("f16", "f16"), ("f32", "f16")),
    ("ampere", "mma", ("bf16", "bf16"), ("f32",)),
    ("ampere", "mma", ("tf32", "tf32"), ("f32",)),
    ("ada", "mma", ("e4m3", "e5m2"), ("f32", "f16")),
    ("hopper", "mma", ("f16", "f16"), ("f32", "f16")),
    ("hopper", "mma", ("bf16", "bf16"), ("f32",)),
    ("hopper", "mma", ("tf32", "tf32"), ("f32",)),
    ("hopper", "mma", ("e5m2", "e4m3"), ("f32", "f16")),
    ("hopper", "wgmma", ("e4m3", "e4m3"), ("f32", "f16")),
    ("blackwell", "tcgen05", ("e4m3", "e5m2"), ("f32", "f16")),
    ("rtx_blackwell", "mma", ("e5m2", "e5m2"), ("f32", "f16")),
]
SHAPES = [(1, 1, 1), (3, 5, 0), (0, 4, 8), (2, 0, 3), (7, 33, 16), (17, 70, 100), (66, 31, 257)]


@pytest.mark.parametrize("path", VECTOR_PATHS)
@pytest.mark.parametrize("which", INSTRUCTIONS, ids=lambda w: "-".join([*w[:2], *w[2]]))
def test_vector_paths_give_the_scalar_path_s_bits(which, path):
    """Every kind of operand and accumulator, on every shape, is the same on all paths."""
    arch, instruction, names, accumulators = which
    rng = np.random.default_rng([5, INSTRUCTIONS.index(which)])
    for kind in KINDS:
        for m, n, k in SHAPES:
            for acc in accumulators:
                a, b = operand(rng, names[0], (m, k), kind), operand(rng, names[1], (k, n), kind)
                c = accumulator(rng, acc, (m, n), (None, "normal", "bits")[int(rng.integers(3))])
                row = {"arch": arch, "acc": acc, "instruction": instruction}
                expected = emulator_ext.matmul(a, b, c, path="scalar", **row)
                out = emulator_ext.matmul(a, b, c, path=path, **row)
                assert_same_bits(out, expected, f"{kind} {m}x{n}x{k} {acc}")


@pytest.mark.parametrize("path", VECTOR_PATHS)
@pytest.mark.parametrize("name", ["bf16", "tf32"])
def test_wide_exponent_ranges_give_the_scalar_path_s_bits(name, path):
    """Rows and columns of any exponent span, in one matrix, are the same on all paths."""
    rng = np.random.default_rng(6)
    for span in (10, 40, 60, 120):
        for trial in range(4):
            m, n, k = 24, 40, 96
            a, b = (
                np.ldexp(
                    rng.standard_normal(shape), rng.integers(-span, span + 1, shape) // (1 + trial)
                ).astype(np.float32)
                for shape in ((m, k), (k, n))
            )
            a[rng.random((m, k)) < 0.2] = 0
            a[rng.integers(m)] *= np.float32(2.0**-100)
            a, b = a.astype(DTYPES[name]), b.astype(DTYPES[name])
            expected = emulator_ext.matmul(a, b, arch="hopper", path="scalar")
            out = emulator_ext.matmul(a, b, arch="hopper", path=path)
            assert_same_bits(out, expected, f"span {span}")


@pytest.mark.parametrize("sign", [1, -1])
def test_f16_sums_beyond_32_bits_are_exact(sign):
    """Sixteen largest products and a c below 2 pass 2^31 at F = 25, and stay right."""
    largest = np.float16(2 - 2.0**-10)
    a, b = np.full((3, 16), sign * largest), np.full((16, 40), largest)
    for size in (0.5, 1.0, 1.9999998):
        c = np.full((3, 40), sign * size, np.float32)
        total = 16 * float(largest) ** 2 + float(np.float32(size))
        assert total * 2**25 > 2**31
        toward_zero = np.float32(total)
        if float(toward_zero) > total:
            toward_zero = np.nextafter(toward_zero, np.float32(0))
        expected = np.full((3, 40), sign * toward_zero, np.float32)
        for path in emulator_ext.paths():
            assert_same_bits(emulator_ext.matmul(a, b, c, arch="hopper", path=path), expected)


@pytest.mark.parametrize("acc", ["f32", "f16"])
def test_fp8_sums_of_33_bits_are_exact(acc):
    """Thirty-two large FP8 products at F = 25 pass 2^32 in steps that also cancel."""
    rng = np.random.default_rng(17)
    a = (rng.choice([1.75, 1.875], (8, 64)) * rng.choice([1, 1, 1, 1, -1], (8, 1))).astype("f4")
    b = rng.choice([1.75, 1.875], (64, 70)).astype(np.float32)
    assert np.abs(a[:, :32] @ b[:32]).max() * 2**25 > 2**31
    a, b = a.astype(DTYPES["e4m3"]), b.astype(DTYPES["e4m3"])
    row = {"arch": "blackwell", "instruction": "tcgen05", "acc": acc}
    expected = emulator_ext.matmul(a, b, path="scalar", **row)
    for path in VECTOR_PATHS:
        assert_same_bits(emulator_ext.matmul(a, b, path=path, **row), expected, path)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_strides_and_bits_do_not_matter(data):
    """Any strides (negative, zero, transposed, sliced) and any bits give the contiguous answer."""
    name = data.draw(st.sampled_from(["f16", "bf16", "tf32", "e4m3", "e5m2"]))
    m, n, k = (data.draw(st.integers(0, 20)) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def strided(rows, cols):
        layout = data.draw(st.sampled_from(["c", "t", "step", "negative", "broadcast"]))
        if layout == "t":
            return bits(rng, DTYPES[name], (cols, rows)).T
        if layout == "step":
            return bits(rng, DTYPES[name], (rows * 2, cols * 3))[::2, ::3]
        if layout == "negative":
            return bits(rng, DTYPES[name], (rows, cols))[::-1, ::-1]
        if layout == "broadcast":
            return np.broadcast_to(bits(rng, DTYPES[name], (1, cols)), (rows, cols))
        return bits(rng, DTYPES[name], (rows, cols))

    a, b = strided(m, k), strided(k, n)
    c = accumulator(rng, "f32", (n, m), data.draw(st.sampled_from([None, "bits"])))
    c = None if c is None else c.T
    arch, instruction = ("hopper", "wgmma")
    row = {"arch": arch, "instruction": instruction}
    expected = emulator_ext.matmul(
        *(np.ascontiguousarray(x) for x in (a, b)),
        None if c is None else np.ascontiguousarray(c),
        path="scalar",
        **row,
    )
    assert_same_bits(emulator_ext.matmul(a, b, c, **row), expected)


def test_unaligned_and_big_endian_operands_give_the_same_bits():
    """Odd byte offsets and foreign byte orders are copied, not misread."""
    rng = np.random.default_rng(7)
    a, b = bits(rng, np.float16, (4, 9)), bits(rng, np.float16, (9, 5))
    expected = emulator_ext.matmul(a, b, arch="ampere")
    packed = np.zeros(a.shape, np.dtype([("pad", "u1"), ("x", "<f2")]))
    packed["x"] = a
    assert_same_bits(emulator_ext.matmul(packed["x"], b, arch="ampere"), expected)
    assert_same_bits(emulator_ext.matmul(a.astype(">f2"), b, arch="ampere"), expected)


def test_thread_counts_do_not_matter():
    """One, two and three threads give the same bits."""
    rng = np.random.default_rng(8)
    a, b = operand(rng, "f16", (150, 80), "sparse"), operand(rng, "f16", (80, 130), "finite")
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((3, 70, 50), (3, 50, 90)))
    expected = emulator_ext.matmul(a, b, arch="hopper", threads=1)
    for threads in (2, 3):
        assert_same_bits(emulator_ext.matmul(a, b, arch="hopper", threads=threads), expected)
        for profile in ("heal", "bf16", "fp32"):
            row = {"profile": profile, "arch": "hopper"}
            one = emulator_ext.gemm(x, y, threads=1, **row)
            assert_same_bits(emulator_ext.gemm(x, y, threads=threads, **row), one, profile)


def test_the_environment_chooses_the_path(monkeypatch):
    """BITWITNESS_PATH is obeyed, and a path that this processor lacks is refused by name."""
    a = np.ones((1, 4), np.float16)
    monkeypatch.setenv("BITWITNESS_PATH", "scalar")
    assert emulator_ext.matmul(a, a.T, arch="ampere")[0, 0] == 4
    monkeypatch.setenv("BITWITNESS_PATH", "altivec")
    with pytest.raises(emulator_ext.UnsupportedError, match="altivec"):
        emulator_ext.matmul(a, a.T, arch="ampere")
    assert emulator_ext.matmul(a, a.T, arch="ampere", path="scalar")[0, 0] == 4
