"""Whole-GEMM schedules: promotion and split-K, built from single chains."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import emulator_ext
from emulator_ext import OperandError, Schedule, UnsupportedError
from emulator_ext.schedule import HOPPER_FP8_PROMOTION
from tests.emulator_ext.mma_operands import assert_same_bits

FP8 = {"arch": "hopper", "instruction": "wgmma"}


def fp8(rng, shape):
    return rng.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("path", emulator_ext.paths())
def test_promotion_adds_chains_of_128_in_f32(path):
    """Hopper's FP8 promotion is one chain from +0 per 128 products, added in ascending order."""
    rng = np.random.default_rng(14)
    a, b = fp8(rng, (5, 300)), fp8(rng, (300, 40))
    c = rng.standard_normal((5, 40)).astype(np.float32)
    expected = c
    for k in range(0, 300, HOPPER_FP8_PROMOTION):
        part = emulator_ext.matmul(a[:, k : k + 128], b[k : k + 128], path="scalar", **FP8)
        expected = expected + part
    schedule = Schedule(promotion=HOPPER_FP8_PROMOTION)
    out = emulator_ext.matmul(a, b, c, schedule=schedule, path=path, **FP8)
    assert_same_bits(out, expected)
    assert (out != emulator_ext.matmul(a, b, c, **FP8)).any()


@pytest.mark.parametrize("partials", ["f32", "f16", "bf16"])
def test_slices_are_merged_forward(partials):
    """Split-K rounds each slice's chain to the partials' format and adds them in order."""
    rng = np.random.default_rng(15)
    a = rng.standard_normal((4, 100)).astype(np.float16)
    b = rng.standard_normal((100, 6)).astype(np.float16)
    dtype = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[partials]
    first, second, third = (
        emulator_ext.matmul(a[:, s], b[s], arch="ampere").astype(dtype).astype(np.float32)
        for s in (slice(0, 48), slice(48, 96), slice(96, 100))
    )
    out = emulator_ext.matmul(
        a, b, arch="ampere", schedule=Schedule(slices=(48, 48, 4), partials=partials)
    )
    assert_same_bits(out, (first + second) + third)


def test_a_promotion_that_is_no_whole_number_of_steps_is_right():
    """Any promotion length falls back to the reference path and keeps its meaning."""
    rng = np.random.default_rng(16)
    a, b = fp8(rng, (3, 70)), fp8(rng, (70, 9))
    schedule = Schedule(promotion=10)
    expected = np.zeros((3, 9), np.float32)
    for k in range(0, 70, 10):
        expected = expected + emulator_ext.matmul(a[:, k : k + 10], b[k : k + 10], **FP8)
    assert_same_bits(emulator_ext.matmul(a, b, schedule=schedule, **FP8), expected)


def test_schedules_that_mean_nothing_are_refused():
    """Slices that do not fill K, empty slices, and schedules over f16 accumulators are errors."""
    a = np.ones((2, 8), np.float16)
    for bad in (
        lambda: emulator_ext.matmul(a, a.T, arch="ampere", schedule=Schedule(slices=(4, 3))),
        lambda: Schedule(slices=(4, 0)),
        lambda: Schedule(promotion=0),
        lambda: Schedule(partials="f64"),
    ):
        with pytest.raises(OperandError):
            bad()
    with pytest.raises(UnsupportedError, match="f32 accumulator"):
        emulator_ext.matmul(a, a.T, arch="ampere", acc="f16", schedule=Schedule(slices=(4, 4)))
    x = a.astype(ml_dtypes.float8_e4m3fn)
    with pytest.raises(UnsupportedError, match="promotion"):
        emulator_ext.matmul(x, x.T, arch="hopper", schedule=Schedule(promotion=128))
