"""A second model of the exact profile (NUMERICS 2), with the engine of its sums to choose.

Digits come from int64 arithmetic, the chain from float64 with rounding to odd: nothing is
shared with the C++ core but the definition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import emulator_ext
from tests.emulator_ext.mma_model import DTYPES

BLOCK = 64
# Digits of one block, [3, M, 64] and [3, 64, N], to the sums [3, M, N].
Engine = Callable[[Any, Any], Any]


def exact(a, b, engine: Engine):
    """Multiply f32 a [M, K] by b [K, N]; may hold infinities where f32 ends."""
    pad = -a.shape[1] % BLOCK
    a, b = np.pad(a, ((0, 0), (0, pad))), np.pad(b, ((0, pad), (0, 0)))
    c = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], BLOCK):
        left, ea = digits(a[:, k : k + BLOCK])
        right, eb = digits(b[k : k + BLOCK].T)
        sums = engine(left, right.swapaxes(1, 2))
        for o in (2, 1, 0):
            c = fma(sums[o], ea[:, None] + eb[None, :] - 16 - 9 * o, c)
    return c


def digits(x):
    """Digits int64 [3, rows, 64] and exponents int64 [rows] of one block of rows."""
    greatest = np.abs(x).max(axis=1, initial=0).astype(np.float64)
    e = np.maximum(np.frexp(greatest)[1].astype(np.int64), -125)
    e[greatest == 0] = -125
    q = np.rint(np.ldexp(x.astype(np.float64), 26 - e[:, None])).astype(np.int64)
    high = np.floor_divide(q + 256, 512)
    top = np.floor_divide(high + 256, 512)
    return np.stack([top, high - 512 * top, q - 512 * high]), e


def fma(sums, exponents, c):
    """Add sums * 2^exponents to f32 c, rounded once: float64, to odd first where it is inexact."""
    x = np.ldexp(np.asarray(sums, np.float64), exponents)
    y = c.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        total = x + y
        rest = total - x
        error = (x - (total - rest)) + (y - rest)
        even = (total.view(np.int64) & 1) == 0
        toward = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        odd = np.isfinite(total) & even & (error != 0)
        return np.where(odd, toward, total).astype(np.float32)


def integers(left, right):
    """Sum in int64."""
    return [sum(left[i] @ right[o - i] for i in range(o + 1)) for o in range(3)]


def sgemm(left, right):
    """Sum in float32 by NumPy's BLAS, in whatever order it takes."""
    left, right = left.astype(np.float32), right.astype(np.float32)
    return [sum(left[i] @ right[o - i] for i in range(o + 1)) for o in range(3)]


def tensor_core(arch: str, dtype: str) -> Engine:
    """Sum on an emulated tensor core: each o one chain through its f32 accumulator."""

    def sums(left, right):
        x, y = left.astype(DTYPES[dtype]), right.astype(DTYPES[dtype])
        out = []
        for o in range(3):
            s = None
            for i in range(o + 1):
                s = emulator_ext.matmul(x[i], y[o - i], s, arch=arch)
            out.append(s)
        return out

    return sums
