"""Designed inputs: exact products and accumulators, with the words that explain them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Final

import numpy as np

from emulator_ext.probe.device import Instruction
from emulator_ext.probe.errors import ProbeError
from emulator_ext.probe.exact import decode
from emulator_ext.probe.formats import FORMATS, Bits, Format, register_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One pair of operands and what their product means."""

    a_bits: int
    b_bits: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """A value of c."""

    bits: int
    text: str


ZERO: Final = Accumulator(bits=0, text="0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input: products by index (all others 0 * 0) and c."""

    products: dict[int, Product] = field(default_factory=dict)
    c: Accumulator = ZERO

    @property
    def text(self) -> str:
        """One line, for example `p0 = 2^30, p1 = -2^30, p2 = 2^5, c = 0`."""
        parts: list[str] = []
        runs = groupby(enumerate(sorted(self.products)), key=self._run)
        for _, run in runs:
            places = [place for _, place in run]
            span = f"p{places[0]}" if len(places) == 1 else f"p{places[0]}-p{places[-1]}"
            parts.append(f"{span} = {self.products[places[0]].text}")
        return ", ".join([*parts, f"c = {self.c.text}"])

    def _run(self, entry: tuple[int, int]) -> tuple[int, str]:
        """Key under which neighbours with equal products fall together."""
        rank, place = entry
        return place - rank, self.products[place].text


def stack(instruction: Instruction, cases: Sequence[Case]) -> tuple[Bits, Bits, Bits]:
    """Return the register bits of all cases: a, b [n, K], c [n]."""
    shape = (len(cases), instruction.k)
    a = np.zeros(shape, register_dtype(instruction.a))
    b = np.zeros(shape, register_dtype(instruction.b))
    c = np.zeros(len(cases), register_dtype(instruction.accumulator))
    for row, case in enumerate(cases):
        for index, term in case.products.items():
            a[row, index], b[row, index] = term.a_bits, term.b_bits
        c[row] = case.c.bits
    return a, b, c


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Builds operands of one instruction and knows how far its formats reach."""

    instruction: Instruction

    @property
    def a(self) -> Format:
        """Format of a."""
        return FORMATS[self.instruction.a]

    @property
    def b(self) -> Format:
        """Format of b."""
        return FORMATS[self.instruction.b]

    @property
    def accumulator(self) -> Format:
        """Format of c and of the result."""
        return FORMATS[self.instruction.accumulator]

    @property
    def top(self) -> int:
        """Exponent of the largest power of two among products (capped: enough is enough)."""
        return min(self.a.emax + self.b.emax, 60)

    @property
    def normal_floor(self) -> int:
        """Exponent of the smallest product of two normal powers of two."""
        return self.a.emin + self.b.emin

    def product(self, significand: int, exponent: int) -> Product:
        """Return operands whose product is exactly significand * 2^exponent.

        Both are normal where the formats allow it; a carries the significand.

        Raises:
            ProbeError: no pair of operands has that product.

        """
        return _product(self.a, self.b, significand, exponent)

    def pair(self, x: tuple[int, int], y: tuple[int, int]) -> Product:
        """Return the product of two values, each (significand, exponent), as given."""
        text = f"({value_text(*x)}) * ({value_text(*y)})"
        return Product(a_bits=self.a.encode(*x), b_bits=self.b.encode(*y), text=text)

    def raw(self, a_bits: int, b_bits: int, text: str) -> Product:
        """Return a product of two bit patterns."""
        return Product(a_bits=a_bits, b_bits=b_bits, text=text)

    def c(self, significand: int, exponent: int) -> Accumulator:
        """Return c = significand * 2^exponent.

        Raises:
            ProbeError: the accumulator has no such value.

        """
        bits = self.accumulator.encode(significand, exponent)
        return Accumulator(bits=bits, text=value_text(significand, exponent))

    def filler(self, significand: int, exponent: int) -> list[Product]:
        """Return few products that add up to significand * 2^exponent, top bits first."""
        chunk = self.a.fraction_bits + 1
        parts: list[Product] = []
        rest, sign = abs(significand), 1 if significand > 0 else -1
        while rest:
            drop = max(rest.bit_length() - chunk, 0)
            part = rest >> drop
            parts.append(self.product(sign * part, exponent + drop))
            rest -= part << drop
        return parts


@lru_cache(maxsize=1 << 12)  # an experiment asks for the same few values at many places
def _product(a: Format, b: Format, significand: int, exponent: int) -> Product:
    leading = exponent + abs(significand).bit_length() - 1
    middle = (leading - a.emin + b.emin) // 2
    b_exponent = min(max(middle, b.emin, leading - a.emax), b.emax)
    if leading - b_exponent < a.emin:
        b_exponent = max(b.tiny, min(b_exponent, leading - a.emin))
    a_bits = a.encode(significand, exponent - b_exponent)
    b_bits = b.encode(1, b_exponent)
    return Product(a_bits=a_bits, b_bits=b_bits, text=value_text(significand, exponent))


def reachable(builders: Iterable[Callable[[], Case]]) -> list[Case]:
    """Build the cases that the formats can express; leave the others out."""
    cases = []
    for build in builders:
        try:
            cases.append(build())
        except ProbeError:
            continue
    return cases


def value_text(significand: int, exponent: int) -> str:
    """Return `2^e`, `-3*2^e` or `0`."""
    if significand == 0:
        return "0"
    sign = "-" if significand < 0 else ""
    magnitude = abs(significand)
    twos = (magnitude & -magnitude).bit_length() - 1
    magnitude, exponent = magnitude >> twos, exponent + twos
    power = f"2^{exponent}"
    return f"{sign}{power}" if magnitude == 1 else f"{sign}{magnitude}*{power}"


def bits_text(name: str, bits: int) -> str:
    """Return a result as hexadecimal and as an exact value."""
    if name not in FORMATS:
        return str(bits - (1 << 32) if bits >> 31 else bits)
    fmt = FORMATS[name]
    value = decode(fmt, bits)
    digits = f"0x{bits:0{fmt.width // 4}x}"
    if value.nan:
        return f"{digits} (NaN)"
    if value.infinite:
        return f"{digits} ({'-' if value.negative else '+'}Inf)"
    if value.zero:
        return f"{digits} ({'-' if value.negative else '+'}0)"
    significand = -value.significand if value.negative else value.significand
    return f"{digits} ({value_text(significand, value.exponent)})"
