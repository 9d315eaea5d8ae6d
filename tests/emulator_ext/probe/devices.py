"""Slow scalar devices for the probe's tests, written from NUMERICS section 1 in integers.

They share no code with the probe or with the C++ core: a knob for each way in which hardware
may differ, and one loop over Python integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from emulator_ext.probe.device import Instruction

# exponent bits, fraction bits, dropped bits, has infinity, register bits
LAYOUTS = {
    "f16": (5, 10, 0, True, 16),
    "bf16": (8, 7, 0, True, 16),
    "tf32": (8, 10, 13, True, 32),
    "e4m3": (4, 3, 0, False, 8),
    "e5m2": (5, 2, 0, True, 8),
    "f32": (8, 23, 0, True, 32),
    "f64": (11, 52, 0, True, 64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """sign * magnitude * 2^lsb; `exponent` is the weight of the hidden bit's place."""

    kind: str
    sign: int
    magnitude: int = 0
    exponent: int = 0
    lsb: int = 0
    bits: int = 0


@lru_cache(maxsize=1 << 16)
def decode(name: str, bits: int) -> Number:
    exponent_bits, fraction_bits, dropped, has_infinity, _ = LAYOUTS[name]
    value = bits >> dropped
    fraction = value % (1 << fraction_bits)
    field = (value >> fraction_bits) % (1 << exponent_bits)
    sign = -1 if value >> (fraction_bits + exponent_bits) else 1
    if field == (1 << exponent_bits) - 1:
        if has_infinity:
            return Number(kind="nan" if fraction else "inf", sign=sign, bits=bits)
        if fraction == (1 << fraction_bits) - 1:
            return Number(kind="nan", sign=sign, bits=bits)
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = (field or 1) - bias
    magnitude = fraction + (1 << fraction_bits if field else 0)
    lsb = exponent - fraction_bits
    return Number(kind="num", sign=sign, magnitude=magnitude, exponent=exponent, lsb=lsb, bits=bits)


def cut(magnitude: int, shift: int, sign: int, how: str) -> int:
    """Magnitude * 2^-shift to an integer, the lost bits treated as `how` says."""
    if shift <= 0:
        return magnitude << -shift
    whole, rest = divmod(magnitude, 1 << shift)
    if rest == 0 or how == "truncate":
        return whole
    if how == "floor":
        return whole + (sign < 0)
    if how == "sticky":
        return whole | 1
    twice = 2 * rest - (1 << shift)
    assert how == "nearest"
    return whole + (twice > 0 or (twice == 0 and whole % 2 == 1))


def pack(name: str, total: int, unit: int, precision: int, how: str, saturate: bool = False) -> int:
    """Total * 2^unit to `precision` bits in the register of format `name`."""
    exponent_bits, fraction_bits, dropped, _, width = LAYOUTS[name]
    if total == 0:
        return 0
    sign, magnitude = (-1 if total < 0 else 1), abs(total)
    bias = (1 << (exponent_bits - 1)) - 1
    leading = magnitude.bit_length() - 1 + unit
    grid = max(leading, 1 - bias) - (precision - 1)
    kept = cut(magnitude, grid - unit, sign, how)
    top = kept.bit_length() - 1 + grid
    infinity = ((1 << exponent_bits) - 1) << fraction_bits
    if top > bias:
        bits = infinity - saturate
    elif top < 1 - bias:
        bits = kept << (grid - (1 - bias - fraction_bits))
    else:
        up = grid - top + fraction_bits  # -1 where rounding carried into the next power of two
        significand = kept << up if up >= 0 else kept >> -up
        bits = ((top + bias) << fraction_bits) + significand - (1 << fraction_bits)
    if kept and sign < 0:
        bits |= 1 << (width - 1)
    return bits << dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """What one tensor core does; the defaults are NUMERICS section 1."""

    F: int
    L: int
    e_zero: int
    precision: int = 24
    end: str = "truncate"
    align: str = "truncate"
    normalise_products: bool = False
    normalise_subnormals: bool = False
    groups: tuple[tuple[int, ...], ...] = ()
    c_last: bool = False
    extra_bits: dict[int, int] | None = None  # by place; -1 is c
    flush: frozenset[str] = frozenset()
    saturate: bool = False
    wrap_bits: int = 0
    payload: bool = False
    negative_zero: bool = False
    wide_carry: bool = False
    round_tf32: bool = False


class StepDevice:
    """A chain of aligned sums with the given knobs."""

    def __init__(self, instruction: Instruction, knobs: Knobs, name: str = "test device") -> None:
        self.instruction, self.knobs, self.name = instruction, knobs, name

    def mma(self, a: Any, b: Any, c: Any) -> Any:
        """Return d = c + sum of a * b as bits."""
        rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        out = [self.one(x, y, z) for x, y, z in rows]
        return np.array(out, dtype=c.dtype)

    def one(self, a: list[int], b: list[int], c_bits: int) -> int:
        """Return one result's bits."""
        knobs, acc = self.knobs, self.instruction.accumulator
        k = self.instruction.k
        groups = knobs.groups or [range(s, min(s + knobs.L, k)) for s in range(0, k, knobs.L)]
        carry, carry_name = (0 if knobs.c_last else c_bits), acc
        for index, group in enumerate(groups):
            wide = knobs.wide_carry and index < len(groups) - 1
            out = "f32" if wide else acc
            carry = self.step([(i, a[i], b[i]) for i in group], carry, carry_name, out)
            carry_name = out
        return self.ieee_add(carry, c_bits) if knobs.c_last else carry

    def operand(self, place: str, name: str, bits: int) -> Number:
        """Decode an operand the way the knobs say."""
        if name == "tf32" and self.knobs.round_tf32 and bits & 0x7FFFFFFF < 0x7F800000:
            bits = cut(bits, 13, 1, "nearest") << 13
        number = decode(name, bits)
        fraction_bits = LAYOUTS[name][1]
        if number.kind == "num" and number.magnitude < 1 << fraction_bits:
            if place in self.knobs.flush:
                return Number(kind="num", sign=number.sign)
            if self.knobs.normalise_subnormals and place != "c" and number.magnitude:
                leading = number.magnitude.bit_length() - 1 + number.lsb
                return Number(
                    kind="num",
                    sign=number.sign,
                    magnitude=number.magnitude,
                    exponent=leading,
                    lsb=number.lsb,
                )
        return number

    def step(self, products: list[tuple[int, int, int]], c: int, c_name: str, out: str) -> int:
        """Run one step of NUMERICS section 1."""
        knobs, nan = self.knobs, (1 << (LAYOUTS[out][4] - 1)) - 1
        x_c = self.operand("c", c_name, c)
        terms = [(-1, x_c.sign, x_c.magnitude, x_c.exponent, x_c.lsb)]
        infinities = {x_c.sign} if x_c.kind == "inf" else set()
        if x_c.kind == "nan":
            return x_c.bits if knobs.payload else nan
        for place, a_bits, b_bits in products:
            x = self.operand("a", self.instruction.a, a_bits)
            y = self.operand("b", self.instruction.b, b_bits)
            kinds = {x.kind, y.kind}
            zero = any(n.kind == "num" and n.magnitude == 0 for n in (x, y))
            if "nan" in kinds or ("inf" in kinds and zero):
                return nan
            if "inf" in kinds:
                infinities.add(x.sign * y.sign)
                continue
            magnitude, lsb = x.magnitude * y.magnitude, x.lsb + y.lsb
            exponent = x.exponent + y.exponent
            if knobs.normalise_products:
                exponent = magnitude.bit_length() - 1 + lsb
            terms.append((place, x.sign * y.sign, magnitude, exponent, lsb))
        if len(infinities) == 2:
            return nan
        if infinities:
            return decode_infinity(out, infinities.pop())
        emax = max([knobs.e_zero, *(e for _, _, m, e, _ in terms if m)])
        most = max([0, *(knobs.extra_bits or {}).values()])
        unit, total = emax - knobs.F - most, 0
        for place, sign, magnitude, _, lsb in terms:
            extra = (knobs.extra_bits or {}).get(place, 0)
            grid = emax - knobs.F - extra
            total += sign * cut(magnitude, grid - lsb, sign, knobs.align) << (grid - unit)
        if knobs.wrap_bits:
            half = 1 << (knobs.wrap_bits - 1)
            total = (total + half) % (2 * half) - half
        how = "truncate" if out != self.instruction.accumulator else knobs.end
        precision = 24 if out != self.instruction.accumulator else knobs.precision
        bits = pack(out, total, unit, precision, how, knobs.saturate)
        if "result" in knobs.flush and decode(out, bits).magnitude < 1 << LAYOUTS[out][1]:
            return bits if decode(out, bits).kind == "inf" else 0
        if knobs.negative_zero and all(s < 0 and m == 0 for _, s, m, _, _ in terms):
            return 1 << (LAYOUTS[out][4] - 1)
        return bits

    def ieee_add(self, x_bits: int, y_bits: int) -> int:
        """Add two accumulators, ties to even."""
        name = self.instruction.accumulator
        x, y = decode(name, x_bits), decode(name, y_bits)
        if "nan" in {x.kind, y.kind} or (x.kind == y.kind == "inf" and x.sign != y.sign):
            return (1 << (LAYOUTS[name][4] - 1)) - 1
        for number in (x, y):
            if number.kind == "inf":
                return decode_infinity(name, number.sign)
        low = min(x.lsb, y.lsb)
        total = sum(n.sign * n.magnitude << (n.lsb - low) for n in (x, y))
        if x_bits == y_bits and not x.magnitude:
            return x_bits
        return pack(name, total, low, LAYOUTS[name][1] + 1, "nearest")


def decode_infinity(name: str, sign: int) -> int:
    exponent_bits, fraction_bits, _, _, width = LAYOUTS[name]
    bits = ((1 << exponent_bits) - 1) << fraction_bits
    return bits | (1 << (width - 1) if sign < 0 else 0)


class PairwiseDevice(StepDevice):
    """Products added by a balanced tree of f32 additions, then c."""

    def one(self, a: list[int], b: list[int], c_bits: int) -> int:
        """Return one result's bits."""
        values = [self.step([(i, a[i], b[i])], 0, "f32", "f32") for i in range(len(a))]
        while len(values) > 1:
            values = [self.ieee_add(x, y) for x, y in zip(values[::2], values[1::2], strict=True)]
        return self.ieee_add(values[0], c_bits)


class FmaDevice:
    """FP64: multiply-adds in ascending order, fused or not."""

    def __init__(self, k: int, *, fused: bool = True) -> None:
        self.instruction = Instruction(a="f64", b="f64", accumulator="f64", k=k)
        self.name, self.fused = "test fma", fused

    def mma(self, a: Any, b: Any, c: Any) -> Any:
        """Return d = c + sum of a * b as bits."""
        add = StepDevice(self.instruction, Knobs(F=2200, L=1, e_zero=-4000, precision=53))
        out = []
        for xs, ys, bits in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
            for x, y in zip(xs, ys, strict=True):
                bits = self.fma(add, x, y, bits)  # noqa: PLW2901
            out.append(bits)
        return np.array(out, dtype=c.dtype)

    def fma(self, add: StepDevice, x_bits: int, y_bits: int, c_bits: int) -> int:
        """Return x * y + c as bits."""
        x, y, c = (decode("f64", bits) for bits in (x_bits, y_bits, c_bits))
        if {x.kind, y.kind, c.kind} != {"num"}:
            return add.step([(0, x_bits, y_bits)], c_bits, "f64", "f64")
        magnitude, lsb, sign = x.magnitude * y.magnitude, x.lsb + y.lsb, x.sign * y.sign
        if not self.fused:
            rounded = decode("f64", pack("f64", sign * magnitude, lsb, 53, "nearest"))
            if rounded.kind == "inf":
                return add.ieee_add(rounded.bits, c_bits)
            magnitude, lsb = rounded.magnitude, rounded.lsb
        if magnitude == 0 and c.magnitude == 0:
            return 1 << 63 if sign < 0 and c.sign < 0 else 0
        low = min(lsb, c.lsb)
        total = (sign * magnitude << (lsb - low)) + (c.sign * c.magnitude << (c.lsb - low))
        return pack("f64", total, low, 53, "nearest")


class IntegerDevice:
    """Bytes into int32, wrapping or saturating."""

    def __init__(self, a: str, b: str, k: int, *, saturate: bool = False) -> None:
        self.instruction = Instruction(a=a, b=b, accumulator="s32", k=k)
        self.name, self.saturate = "test integer", saturate

    def mma(self, a: Any, b: Any, c: Any) -> Any:
        """Return d = c + sum of a * b as bits."""

        def signed(value: int, name: str) -> int:
            return value - 256 if name == "s8" and value > 127 else value

        out = []
        for xs, ys, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
            total = z - (1 << 32) if z >> 31 else z
            for x, y in zip(xs, ys, strict=True):
                total += signed(x, self.instruction.a) * signed(y, self.instruction.b)
            if self.saturate:
                total = max(-(1 << 31), min((1 << 31) - 1, total))
            out.append(total % (1 << 32))
        return np.array(out, dtype=np.uint32)


class Through:
    """Another device whose answers pass through a function of the bits."""

    def __init__(self, inner: Any, change: Callable[[Any, Any, Any, Any], Any]) -> None:
        self.inner, self.change = inner, change
        self.instruction, self.name = inner.instruction, "altered device"

    def mma(self, a: Any, b: Any, c: Any) -> Any:
        """Return d = c + sum of a * b as bits."""
        return self.change(a, b, c, self.inner.mma(a, b, c))
