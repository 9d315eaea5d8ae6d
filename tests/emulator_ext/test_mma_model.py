"""The emulator against the second model: every table row, in exact rational arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

import emulator_ext
from tests.emulator_ext import mma_model as model
from tests.emulator_ext.mma_operands import KINDS, accumulator, assert_same_bits, operand

# NUMERICS 1.1, written out again: arch, instruction, dtypes, F, L, e_zero f32 / f16 (None: the
# instruction has no f16 accumulator), f32 rounding.
TABLE = [
    ("volta", "mma", ("f16",), 23, 4, -131, -19, "rz32"),
    ("turing", "mma", ("f16",), 24, 8, -132, -20, "rz32"),
    ("ampere", "mma", ("f16",), 24, 8, -132, -20, "rz32"),
    ("ampere", "mma", ("bf16",), 24, 8, -132, None, "rz32"),
    ("ampere", "mma", ("tf32",), 24, 4, -132, None, "rz32"),
    ("ada", "mma", ("f16",), 24, 8, -132, -20, "rz32"),
    ("ada", "mma", ("bf16",), 24, 8, -132, None, "rz32"),
    ("ada", "mma", ("tf32",), 24, 4, -132, None, "rz32"),
    ("ada", "mma", ("e4m3", "e5m2"), 13, 16, -132, -20, "rz14"),
    ("hopper", "mma", ("f16",), 25, 16, -133, -21, "rz32"),
    ("hopper", "mma", ("bf16",), 25, 16, -133, None, "rz32"),
    ("hopper", "mma", ("tf32",), 25, 8, -133, None, "rz32"),
    ("hopper", "wgmma", ("f16",), 25, 16, -133, -21, "rz32"),
    ("hopper", "wgmma", ("bf16",), 25, 16, -133, None, "rz32"),
    ("hopper", "wgmma", ("tf32",), 25, 8, -133, None, "rz32"),
    ("hopper", "wgmma", ("e4m3", "e5m2"), 13, 32, -133, -21, "rz14"),
    ("blackwell", "mma", ("f16",), 25, 16, -133, -21, "rz32"),
    ("blackwell", "mma", ("bf16",), 25, 16, -133, None, "rz32"),
    ("blackwell", "mma", ("tf32",), 25, 8, -133, None, "rz32"),
    ("blackwell", "tcgen05", ("f16",), 25, 16, -133, -21, "rz32"),
    ("blackwell", "tcgen05", ("bf16",), 25, 16, -133, None, "rz32"),
    ("blackwell", "tcgen05", ("tf32",), 25, 8, -133, None, "rz32"),
    ("blackwell", "tcgen05", ("e4m3", "e5m2"), 25, 32, -133, -21, "rz32"),
    ("rtx_blackwell", "mma", ("f16",), 25, 16, -133, -21, "rz32"),
    ("rtx_blackwell", "mma", ("bf16",), 25, 16, -133, None, "rz32"),
    ("rtx_blackwell", "mma", ("tf32",), 25, 8, -133, None, "rz32"),
    ("rtx_blackwell", "mma", ("e4m3", "e5m2"), 25, 32, -133, -21, "rz32"),
]
DEPTHS = (1, 7, 16, 33, 48)


def rows():
    for arch, instruction, dtypes, F, L, zero32, zero16, rounding in TABLE:
        yield arch, instruction, dtypes, "f32", model.Unit(F, L, zero32, rounding)
        if zero16 is not None:
            yield arch, instruction, dtypes, "f16", model.Unit(F, L, zero16, "rne16")


@pytest.mark.parametrize("row", list(rows()), ids=lambda r: "-".join([*r[:2], *r[2], r[3]]))
def test_every_row_agrees_with_the_second_model(row):
    """Chains of any depth, on every kind of operand and mix of dtypes, give the model's bits."""
    arch, instruction, dtypes, acc, unit = row
    rng = np.random.default_rng([1, *map(ord, arch + instruction + acc)])
    for kind in KINDS:
        for trial in range(8):
            x, y = dtypes[trial % len(dtypes)], dtypes[trial // 2 % len(dtypes)]
            depth = DEPTHS[trial % len(DEPTHS)]
            a, b = operand(rng, x, (1, depth), kind), operand(rng, y, (1, depth), kind)
            c = accumulator(rng, acc, (1,), ("bits", "normal")[trial % 2])
            expected = model.chain(
                model.bits_of(a)[0], x, model.bits_of(b)[0], y, model.bits_of(c)[0], unit
            )
            out = emulator_ext.dot(a, b, c, arch=arch, acc=acc, instruction=instruction)
            bits = model.bits_of(out)
            assert_same_bits(bits, np.array([expected], bits.dtype), f"{kind} {x} {y} {depth}")


@pytest.mark.parametrize("arch", ["hopper", "blackwell"])
@pytest.mark.parametrize("acc", ["f32", "f16"])
def test_fp8_through_mma_agrees_with_the_second_model(arch, acc):
    """FP8 through mma.sync: two permuted f16 steps and one addition for every 32 products."""
    unit = model.Unit(25, 16, *((-133, "rz32") if acc == "f32" else (-21, "rne16")))
    rng = np.random.default_rng([2, *map(ord, arch + acc)])
    for kind in KINDS:
        for x, y in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2")):
            for depth in (32, 45):
                a, b = operand(rng, x, (1, depth), kind), operand(rng, y, (1, depth), kind)
                c = accumulator(rng, acc, (1,), "normal")
                expected = model.fp8_through_f16(a[0], b[0], int(model.bits_of(c)[0]), unit)
                for out in (
                    emulator_ext.dot(a, b, c, arch=arch, acc=acc),
                    emulator_ext.matmul(a, b.T, c[:, None], arch=arch, acc=acc)[0],
                ):
                    bits = model.bits_of(out)
                    assert_same_bits(bits, np.array([expected], bits.dtype), f"{kind} {x} {y}")


def test_integers_are_exact_modulo_two_to_the_32():
    """s8 and u8 in any mix give the exact sum, wrapped to int32, from any c."""
    rng = np.random.default_rng(3)
    for x, y in (("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")):
        a, b = (
            rng.integers(0, 256, (5, 300)).astype(np.uint8).view(model.DTYPES[x]),
            rng.integers(0, 256, (300, 67)).astype(np.uint8).view(model.DTYPES[y]),
        )
        c = rng.integers(-(2**31), 2**31, (5, 67)).astype(np.int32)
        exact = a.astype(np.int64) @ b.astype(np.int64) + c
        expected = (exact % 2**32).astype(np.uint32).view(np.int32)
        for path in emulator_ext.paths():
            assert_same_bits(emulator_ext.matmul(a, b, c, arch="ampere", path=path), expected, path)
        rows = emulator_ext.dot(
            np.repeat(a[:1], 67, 0), np.ascontiguousarray(b.T), c[0], arch="hopper"
        )
        assert_same_bits(rows, expected[0])


def test_fp64_is_one_ieee_fma_per_product():
    """A DMMA chain is fma in ascending K: exact rational arithmetic, rounded once per product."""
    from fractions import Fraction

    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((3, 40)), rng.standard_normal((40, 35))
    c = rng.standard_normal((3, 35))
    expected = c.copy()
    for i, j in np.ndindex(*c.shape):
        for k in range(40):
            exact = Fraction(a[i, k]) * Fraction(b[k, j]) + Fraction(expected[i, j])
            expected[i, j] = float(exact)  # Fraction to float rounds to nearest even
    for path in emulator_ext.paths():
        assert_same_bits(emulator_ext.matmul(a, b, c, arch="hopper", path=path), expected, path)
    rows = emulator_ext.dot(np.repeat(a[:1], 35, 0), np.ascontiguousarray(b.T), c[0], arch="ampere")
    assert_same_bits(rows, expected[0])
