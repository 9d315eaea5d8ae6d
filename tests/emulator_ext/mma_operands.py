"""Operands for the emulator's tests: random bit patterns and the shapes they come in."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.emulator_ext.mma_model import DTYPES, UNSIGNED

KINDS = ("bits", "finite", "normal", "near_max", "near_one", "tiny", "sparse")


def bits(rng, dtype, shape):
    """Uniformly random bit patterns of a dtype: specials and subnormals at their natural rate."""
    dtype = np.dtype(dtype)
    raw = rng.integers(0, 2 ** (8 * dtype.itemsize), shape, dtype=np.uint64)
    return raw.astype(UNSIGNED[dtype.itemsize]).view(dtype)


def operand(rng, name, shape, kind):
    """Random operands of one format; kind is one of KINDS."""
    dtype = np.dtype(DTYPES[name])
    x = bits(rng, dtype, shape)
    if kind == "bits":
        return x
    if kind in {"finite", "sparse"}:
        x[~np.isfinite(x.astype(np.float32))] = 1
        if kind == "sparse":
            x[rng.random(shape) < 0.7] = 0
        return x
    if kind == "near_max":
        values = float(ml_dtypes.finfo(dtype).max) * rng.choice([1, 1, 1, -1, 0.5], shape)
    elif kind == "near_one":
        values = rng.choice([1.99, 1.999, -1.99, 1e-3, 0.0, 1.9995], shape)
    elif kind == "tiny":
        values = rng.standard_normal(shape) * float(ml_dtypes.finfo(dtype).tiny)
    else:
        values = rng.standard_normal(shape)
    return values.astype(np.float32).astype(dtype)


def accumulator(rng, acc, shape, kind):
    """Accumulator inputs: None, random bits or normal numbers."""
    dtype = np.float16 if acc == "f16" else np.float32
    if kind is None:
        return None
    if kind == "bits":
        return bits(rng, dtype, shape)
    return rng.standard_normal(shape).astype(dtype)


def assert_same_bits(actual, expected, context=""):
    """Equality of bits, never of values; tells the first difference."""
    unsigned = UNSIGNED[expected.dtype.itemsize]
    x = np.ascontiguousarray(actual).view(unsigned)
    y = np.ascontiguousarray(expected).view(unsigned)
    assert actual.dtype == expected.dtype
    assert x.shape == y.shape
    wrong = np.argwhere(x != y)
    if len(wrong):
        at = tuple(wrong[0])
        raise AssertionError(
            f"{context}: {len(wrong)} of {x.size} differ, first at {at}: "
            f"{int(x[at]):#x} instead of {int(y[at]):#x}"
        )
