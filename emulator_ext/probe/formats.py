"""Number formats as the probe sees them: bit patterns, significands, exponents.

Independent of the C++ core on purpose: the probe judges that core as a black box too. The
formats are those of NUMERICS section 1; a subnormal keeps the exponent emin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from emulator_ext.probe.errors import ProbeError

Bits = npt.NDArray[np.unsignedinteger]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary floating format in its register.

    Attributes:
        dropped_bits: low register bits below the fraction (13 for tf32 in an f32 register).
        has_infinity: false for e4m3, whose one special pattern is all ones.

    """

    name: str
    width: int
    exponent_bits: int
    fraction_bits: int
    dropped_bits: int = 0
    has_infinity: bool = True

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Unsigned numpy type of the register."""
        return np.dtype(f"uint{self.width}")

    @property
    def bias(self) -> int:
        """Exponent bias."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        return self.bias if self.has_infinity else self.bias + 1

    @property
    def tiny(self) -> int:
        """Exponent of the smallest subnormal number."""
        return self.emin - self.fraction_bits

    @property
    def sign_bit(self) -> int:
        """The register's sign bit."""
        return 1 << (self.width - 1)

    @property
    def infinity_bits(self) -> int:
        """Bits of +Inf, or of NaN where the format has no infinity."""
        field = (1 << self.exponent_bits) - 1
        fraction = 0 if self.has_infinity else (1 << self.fraction_bits) - 1
        return ((field << self.fraction_bits) | fraction) << self.dropped_bits

    @property
    def nan_bits(self) -> int:
        """Bits of the NaN with all fraction bits set, sign clear."""
        return self.sign_bit - 1

    @property
    def largest_bits(self) -> int:
        """Bits of the largest finite number."""
        return self.infinity_bits - (1 << self.dropped_bits)

    def encode(self, significand: int, exponent: int) -> int:
        """Return the bits of exactly significand * 2^exponent.

        Raises:
            ProbeError: the value is not a number of this format.

        """
        sign = self.sign_bit if significand < 0 else 0
        magnitude = abs(significand)
        if magnitude == 0:
            return 0
        leading = magnitude.bit_length() - 1 + exponent
        grid = max(leading, self.emin) - self.fraction_bits
        scaled = _exact_shift(magnitude, exponent - grid)
        if scaled is None or leading > self.emax:
            msg = f"{significand} * 2^{exponent} is not a number of {self.name}"
            raise ProbeError(msg)
        # A normal number's hidden bit adds the one that its exponent field lacks.
        bits = scaled + ((grid - self.tiny) << self.fraction_bits)
        return sign | (bits << self.dropped_bits)


def _exact_shift(magnitude: int, shift: int) -> int | None:
    if shift >= 0:
        return magnitude << shift
    return None if magnitude & ((1 << -shift) - 1) else magnitude >> -shift


F16: Final = Format(name="f16", width=16, exponent_bits=5, fraction_bits=10)
BF16: Final = Format(name="bf16", width=16, exponent_bits=8, fraction_bits=7)
TF32: Final = Format(name="tf32", width=32, exponent_bits=8, fraction_bits=10, dropped_bits=13)
E4M3: Final = Format(name="e4m3", width=8, exponent_bits=4, fraction_bits=3, has_infinity=False)
E5M2: Final = Format(name="e5m2", width=8, exponent_bits=5, fraction_bits=2)
F32: Final = Format(name="f32", width=32, exponent_bits=8, fraction_bits=23)
F64: Final = Format(name="f64", width=64, exponent_bits=11, fraction_bits=52)

FORMATS: Final = {f.name: f for f in (F16, BF16, TF32, E4M3, E5M2, F32, F64)}
INTEGERS: Final[dict[str, np.dtype[np.unsignedinteger]]] = {
    "s8": np.dtype(np.uint8),
    "u8": np.dtype(np.uint8),
    "s32": np.dtype(np.uint32),
}


def register_dtype(name: str) -> np.dtype[np.unsignedinteger]:
    """Return the unsigned dtype in which a format's bits travel.

    Raises:
        ProbeError: no such format.

    """
    if name in FORMATS:
        return FORMATS[name].dtype
    if name in INTEGERS:
        return INTEGERS[name]
    msg = f"no format {name!r}; there are {', '.join([*FORMATS, *INTEGERS])}"
    raise ProbeError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """Decoded bits: value = significand * 2^lsb; all arrays have one shape.

    Attributes:
        significand: magnitude, hidden bit included; 0 for zeros and specials.
        exponent: weight of the hidden bit's place; emin for subnormals.
        lsb: weight of the significand's last bit.

    """

    negative: Bools
    significand: Ints
    exponent: Ints
    lsb: Ints
    infinite: Bools
    nan: Bools


def unpack(fmt: Format, bits: Bits) -> Unpacked:
    """Decode the bits of a format of at most 32 bits."""
    raw = bits.astype(np.int64)
    raw_field = raw >> fmt.dropped_bits
    fraction = raw_field & ((1 << fmt.fraction_bits) - 1)
    top = (1 << fmt.exponent_bits) - 1
    field = (raw_field >> fmt.fraction_bits) & top
    special = field == top
    if fmt.has_infinity:
        infinite, nan = special & (fraction == 0), special & (fraction != 0)
    else:
        nan = special & (fraction == (1 << fmt.fraction_bits) - 1)
        infinite = np.zeros_like(nan)
    significand = np.where(field > 0, fraction | (1 << fmt.fraction_bits), fraction)
    exponent = np.maximum(field, 1) - fmt.bias
    return Unpacked(
        negative=(raw & fmt.sign_bit) != 0,
        significand=np.where(infinite | nan, 0, significand),
        exponent=exponent,
        lsb=exponent - fmt.fraction_bits,
        infinite=infinite,
        nan=nan,
    )
