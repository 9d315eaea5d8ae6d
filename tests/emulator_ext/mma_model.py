"""A second model of the tensor core, in Python integers, and of the GEMM profiles over it.

Written from NUMERICS 1 and 2 alone and as literally as they are, without a look at the C++; slow.
Operands and results are numpy arrays of the real dtypes, so that tests compare bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor, frexp

import ml_dtypes
import numpy as np

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "f64": np.float64,
    "s8": np.int8,
    "u8": np.uint8,
}
# exponent bits, fraction bits, dropped low bits, emin
FIELDS = {
    "f16": (5, 10, 0, -14),
    "bf16": (8, 7, 0, -126),
    "tf32": (8, 10, 13, -126),
    "e4m3": (4, 3, 0, -6),
    "e5m2": (5, 2, 0, -14),
    "f32": (8, 23, 0, -126),
}


@dataclass(frozen=True, slots=True)
class Number:
    """A decoded operand: kind "finite", "inf" or "nan"; value = m * 2^(e - fraction bits)."""

    kind: str
    sign: int
    m: int
    e: int


@dataclass(frozen=True, slots=True)
class Unit:
    """One row of the table in NUMERICS 1.1; output "rz32", "rz14" or "rne16"."""

    F: int
    L: int
    e_zero: int
    output: str


def bits_of(x):
    """Return the bit patterns of an array as unsigned integers."""
    x = np.asarray(x)
    return np.ascontiguousarray(x).view(UNSIGNED[x.itemsize])


def decode(name, bits):
    exponent_bits, fraction_bits, dropped, emin = FIELDS[name]
    bits = int(bits) >> dropped
    fraction = bits % 2**fraction_bits
    field = bits // 2**fraction_bits % 2**exponent_bits
    sign = -1 if bits >> (fraction_bits + exponent_bits) else 1
    top = field == 2**exponent_bits - 1
    if name == "e4m3":
        if top and fraction == 7:
            return Number("nan", sign, 0, 0)
    elif top:
        return Number("nan" if fraction else "inf", sign, 0, 0)
    hidden = 2**fraction_bits if field else 0
    return Number("finite", sign, fraction + hidden, max(field - 1, 0) + emin)


def special(a, b, c):
    """NUMERICS 1.2: "nan", +1, -1 for an infinity, or None."""
    infinities = set()
    for x, y in zip(a, b, strict=True):
        if "nan" in {x.kind, y.kind}:
            return "nan"
        if "inf" in {x.kind, y.kind}:
            if (x.kind == "finite" and x.m == 0) or (y.kind == "finite" and y.m == 0):
                return "nan"
            infinities.add(x.sign * y.sign)
    if c.kind == "nan":
        return "nan"
    if c.kind == "inf":
        infinities.add(c.sign)
    if len(infinities) == 2:
        return "nan"
    return infinities.pop() if infinities else None


def encode(value, output):
    """Round an exact Fraction once to the output's format; bits as an int."""
    if output == "rne16":
        precision, emin, bias, fraction_bits, inf = 11, -14, 15, 10, 0x7C00
    else:
        precision, emin, bias, fraction_bits, inf = 24, -126, 127, 23, 0x7F800000
    if value == 0:
        return 0
    sign = inf + 2**fraction_bits if value < 0 else 0
    value = abs(value)
    e = value.numerator.bit_length() - value.denominator.bit_length()
    e = e if value >= Fraction(2) ** e else e - 1
    digits = 14 if output == "rz14" else precision
    grid = Fraction(2) ** (max(e, emin) - (digits - 1))
    steps = value / grid
    whole = round(steps) if output == "rne16" else floor(steps)  # round(): ties to even
    value = whole * grid
    if value == 0:
        return 0
    if value >= Fraction(2) ** (bias + 1):
        return sign | inf
    e = value.numerator.bit_length() - value.denominator.bit_length()
    if e < emin:
        return sign | int(value / Fraction(2) ** (emin - fraction_bits))
    significand = int(value / Fraction(2) ** (e - fraction_bits))
    return sign | ((e + bias) * 2**fraction_bits + significand - 2**fraction_bits)


def step(a, a_name, b, b_name, c_bits, unit):
    """One tensor-core step on decoded operands; accumulator bits in, accumulator bits out."""
    half = unit.output == "rne16"
    c = decode("f16" if half else "f32", c_bits)
    what = special(a, b, c)
    if what == "nan":
        return 0x7FFF if half else 0x7FFFFFFF
    if what is not None:
        return (0x7C00 if half else 0x7F800000) | ((0x8000 if half else 2**31) if what < 0 else 0)
    fraction_bits = FIELDS[a_name][1] + FIELDS[b_name][1]
    terms = [
        (x.sign * y.sign, x.m * y.m, x.e + y.e, fraction_bits) for x, y in zip(a, b, strict=True)
    ]
    terms.append((c.sign, c.m, c.e, 10 if half else 23))
    emax = max([unit.e_zero, *(e for _, m, e, _ in terms if m)])
    quantum = Fraction(2) ** (emax - unit.F)
    total = sum(s * floor(m * Fraction(2) ** (e - f) / quantum) for s, m, e, f in terms)
    return encode(total * quantum, unit.output)


def chain(a_bits, a_name, b_bits, b_name, c_bits, unit):
    """All of K, ascending, L products at a time."""
    a = [decode(a_name, x) for x in a_bits]
    b = [decode(b_name, x) for x in b_bits]
    for k in range(0, len(a), unit.L):
        c_bits = step(a[k : k + unit.L], a_name, b[k : k + unit.L], b_name, c_bits, unit)
    return int(c_bits)


def add_bits(x, y, half):
    """One IEEE addition to nearest even in the accumulator's format; canonical NaN."""
    dtype = np.float16 if half else np.float32
    with np.errstate(all="ignore"):
        total = np.array(x, UNSIGNED[np.dtype(dtype).itemsize]).view(dtype) + np.array(
            y, UNSIGNED[np.dtype(dtype).itemsize]
        ).view(dtype)
    if np.isnan(total):
        return 0x7FFF if half else 0x7FFFFFFF
    return int(bits_of(total.astype(dtype)).item())


def fp8_through_f16(a, b, c_bits, unit):
    """NUMERICS 1.3 on FP8 arrays [K]."""
    half = unit.output == "rne16"
    a, b = a.astype(np.float16), b.astype(np.float16)
    pad = -len(a) % 32
    a, b = np.pad(a, (0, pad)), np.pad(b, (0, pad))
    for k in range(0, len(a), 32):
        x, y = a[k : k + 32], b[k : k + 32]
        t = 0
        for pair in (0, 2):
            pick = [i for i in range(32) if i % 4 in {pair, pair + 1}]
            t = chain(bits_of(x[pick]), "f16", bits_of(y[pick]), "f16", t, unit)
        c_bits = add_bits(t, c_bits, half)
    return c_bits


def heal(a, b, unit):
    """Compute the heal profile of NUMERICS 2, one element at a time."""
    ea = np.array([_exponent(row) for row in a])
    eb = np.array([_exponent(col) for col in b.T])
    a_parts = [_split(row, e) for row, e in zip(a, ea, strict=True)]
    b_parts = [_split(col, e) for col, e in zip(b.T, eb, strict=True)]
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i, (a_hi, a_lo) in enumerate(a_parts):
        for j, (b_hi, b_lo) in enumerate(b_parts):
            out[i, j] = _heal_element(a_hi, a_lo, b_hi, b_lo, int(ea[i] + eb[j]), unit)
    return out


def _exponent(x):
    largest = float(np.max(np.abs(x), initial=0.0))
    return frexp(largest)[1] - 1 - 14 if largest else 0


def _split(x, e):
    """Hi and lo of one row, K padded to blocks of 32."""
    x = np.pad(x, (0, -len(x) % 32))
    # In f64 the scaling is exact; rounding it to f32 is the one f32 multiply.
    y = (x.astype(np.float64) * 2.0**-e).astype(np.float32)
    hi = y.astype(np.float16)
    lo = ((y - hi.astype(np.float32)) * np.float32(2048)).astype(np.float16)
    return bits_of(hi), bits_of(lo)


def _heal_element(a_hi, a_lo, b_hi, b_lo, e, unit):
    main = correction = np.float32(0)
    for k in range(0, len(a_hi), 32):
        s = slice(k, k + 32)
        m = chain(a_hi[s], "f16", b_hi[s], "f16", 0, unit)
        t = chain(a_hi[s], "f16", b_lo[s], "f16", 0, unit)
        t = chain(a_lo[s], "f16", b_hi[s], "f16", t, unit)
        main = main + np.uint32(m).view(np.float32)
        correction = correction + np.uint32(t).view(np.float32)
    value = main + correction * np.float32(2.0**-11)
    return np.float32(np.ldexp(np.float64(value), e))


def bf16(a, b, unit):
    """Compute the bf16 profile of NUMERICS 2."""
    a, b = bits_of(a.astype(ml_dtypes.bfloat16)), bits_of(b.astype(ml_dtypes.bfloat16))
    out = np.zeros((a.shape[0], b.shape[1]), np.uint32)
    for i, j in np.ndindex(*out.shape):
        out[i, j] = chain(a[i], "bf16", b[:, j], "bf16", 0, unit)
    return out.view(np.float32)


def fma32(x, y, z):
    """Fmaf on finite f32 scalars: exact rational arithmetic, rounded once to nearest even."""
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return np.float32(float(x) * float(y) + float(z))  # exact here, with IEEE's sign of zero
    e = exact.numerator.bit_length() - exact.denominator.bit_length()
    e = e if abs(exact) >= Fraction(2) ** e else e - 1
    grid = Fraction(2) ** (max(e, -126) - 23)
    rounded = np.float32(float(abs(round(exact / grid)) * grid))
    return -rounded if exact < 0 else rounded  # a tiny negative result is -0


def fp32(a, b):
    """Compute the fp32 profile of NUMERICS 2."""
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i, j in np.ndindex(*out.shape):
        for k in range(a.shape[1]):
            out[i, j] = fma32(a[i, k], b[k, j], out[i, j])
    return out
