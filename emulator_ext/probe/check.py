"""The last word: random inputs, model against device, bit by bit.

The designed experiments ask what somebody thought of; the random check asks the rest. Each
stratum draws another kind of bits, so that a mismatch already says where to look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from emulator_ext.probe.cases import bits_text
from emulator_ext.probe.device import Device, Instruction, ask
from emulator_ext.probe.formats import FORMATS, Bits, Format, register_dtype
from emulator_ext.probe.model import AnyModel
from emulator_ext.probe.predict import predict

_BATCH: Final = 1 << 14  # inputs a call; bounds memory, not the result
MAX_EXAMPLES: Final = 4

Generator = np.random.Generator
Inputs = tuple[Bits, Bits, Bits]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One input on which model and device differ, as register bits."""

    stratum: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: int
    predicted: str
    observed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """One kind of random input: how many were compared and how many differed."""

    name: str
    inputs: int
    mismatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The outcome of the random check."""

    seed: int
    strata: tuple[Stratum, ...]
    examples: tuple[Mismatch, ...]

    @property
    def inputs(self) -> int:
        """How many inputs were compared."""
        return sum(stratum.inputs for stratum in self.strata)

    @property
    def mismatches(self) -> int:
        """How many results differed."""
        return sum(stratum.mismatches for stratum in self.strata)


def run_check(device: Device, model: AnyModel, inputs: int, seed: int) -> Check:
    """Compare model and device on about `inputs` random inputs, split over the strata.

    The inputs depend on the seed, the formats and K alone.
    """
    strata: list[Stratum] = []
    examples: list[Mismatch] = []
    kinds = _kinds(device.instruction)
    share = -(-inputs // len(kinds))
    for number, (name, draw) in enumerate(kinds.items()):
        rng = np.random.default_rng([seed, number])
        wrong = 0
        for start in range(0, share, _BATCH):
            batch = draw(rng, device.instruction, min(_BATCH, share - start))
            observed = ask(device, *batch)
            predicted = predict(model, device.instruction, *batch)
            bad = np.flatnonzero(observed != predicted)
            wrong += len(bad)
            examples += [
                _mismatch(device, name, batch, int(row), predicted, observed)
                for row in bad[: max(MAX_EXAMPLES - len(examples), 0)]
            ]
        strata.append(Stratum(name=name, inputs=share, mismatches=wrong))
    return Check(seed=seed, strata=tuple(strata), examples=tuple(examples))


def _mismatch(
    device: Device, stratum: str, batch: Inputs, row: int, predicted: Bits, observed: Bits
) -> Mismatch:
    name = device.instruction.accumulator
    return Mismatch(
        stratum=stratum,
        a=tuple(int(x) for x in batch[0][row]),
        b=tuple(int(x) for x in batch[1][row]),
        c=int(batch[2][row]),
        predicted=bits_text(name, int(predicted[row])),
        observed=bits_text(name, int(observed[row])),
    )


def _kinds(instruction: Instruction) -> dict[str, Callable[[Generator, Instruction, int], Inputs]]:
    if instruction.accumulator == "s32":
        return {"random bits": _bits}
    return {
        "like numbers near 1": _near_one,
        "exponents of all sizes": _wide,
        "cancelling pairs": _cancelling,
        "near the smallest numbers": _tiny,
        "mostly zeros": _sparse,
        "random bits": _bits,
        "specials among numbers": _specials,
    }


def _random_bits(rng: Generator, name: str, shape: tuple[int, ...]) -> Bits:
    dtype = register_dtype(name)
    return rng.integers(0, 1 << (8 * dtype.itemsize), shape, dtype=dtype)


def _numbers(rng: Generator, fmt: Format, shape: tuple[int, ...], low: int, high: int) -> Bits:
    """Finite numbers of random sign and fraction, exponents low..high of the format's own.

    An exponent below emin stands for the subnormals.
    """
    low, high = max(low, fmt.emin - 1), min(high, fmt.emax - 1)
    low = min(low, high)
    field = rng.integers(low, high + 1, shape, dtype=np.int64) + fmt.bias
    place = fmt.fraction_bits + fmt.dropped_bits
    fraction = _random_bits(rng, fmt.name, shape).astype(np.uint64) & np.uint64((1 << place) - 1)
    # Short fractions make ties, which long random ones never do.
    short = rng.random(shape) < 0.25
    fraction = np.where(short, fraction & np.uint64(7 << max(place - 3, 0)), fraction)
    sign = rng.integers(0, 2, shape, dtype=np.uint64) << np.uint64(fmt.width - 1)
    bits: npt.NDArray[np.uint64] = (field.astype(np.uint64) << np.uint64(place)) | fraction | sign
    return bits.astype(fmt.dtype)


def _inputs(
    rng: Generator, instruction: Instruction, n: int, spread: tuple[int, int], c: tuple[int, int]
) -> Inputs:
    a_format, b_format = FORMATS[instruction.a], FORMATS[instruction.b]
    shape = (n, instruction.k)
    return (
        _numbers(rng, a_format, shape, *spread),
        _numbers(rng, b_format, shape, *spread),
        _numbers(rng, FORMATS[instruction.accumulator], (n,), *c),
    )


def _near_one(rng: Generator, instruction: Instruction, n: int) -> Inputs:
    return _inputs(rng, instruction, n, (-3, 1), (-4, 4))


def _wide(rng: Generator, instruction: Instruction, n: int) -> Inputs:
    return _inputs(rng, instruction, n, (-40, 14), (-30, 30))


def _cancelling(rng: Generator, instruction: Instruction, n: int) -> Inputs:
    """Large products beside their negatives; what is left is small."""
    a, b, c = _inputs(rng, instruction, n, (-8, 8), (-12, 8))
    half = instruction.k // 2
    fmt = FORMATS[instruction.a]
    order = rng.permutation(instruction.k)
    left, right = order[:half], order[half : 2 * half]
    cancels = rng.random((n, half)) < 0.8
    flipped = a[:, left] ^ fmt.dtype.type(fmt.sign_bit)
    a[:, right] = np.where(cancels, flipped, a[:, right])
    b[:, right] = np.where(cancels, b[:, left], b[:, right])
    return a, b, c


def _tiny(rng: Generator, instruction: Instruction, n: int) -> Inputs:
    """Products around the accumulator's smallest numbers, subnormal operands included."""
    accumulator = FORMATS[instruction.accumulator]
    middle = accumulator.emin // 2
    spread = (middle - accumulator.fraction_bits, middle + 3)
    return _inputs(rng, instruction, n, spread, (accumulator.emin - 1, accumulator.emin + 3))


def _sparse(rng: Generator, instruction: Instruction, n: int) -> Inputs:
    a, b, c = _wide(rng, instruction, n)
    keep = rng.random(a.shape) < 0.2
    sign = a & a.dtype.type(FORMATS[instruction.a].sign_bit)
    return np.where(keep, a, sign), b, np.where(rng.random(n) < 0.5, c, c & 0)


def _bits(rng: Generator, instruction: Instruction, n: int) -> Inputs:
    shape = (n, instruction.k)
    return (
        _random_bits(rng, instruction.a, shape),
        _random_bits(rng, instruction.b, shape),
        _random_bits(rng, instruction.accumulator, (n,)),
    )


def _specials(rng: Generator, instruction: Instruction, n: int) -> Inputs:
    """Numbers near 1 of which few are replaced by infinities, NaNs, zeros and largest numbers."""
    a, b, c = _near_one(rng, instruction, n)
    rate = 0.5 / instruction.k
    return (
        _salted(rng, FORMATS[instruction.a], a, rate),
        _salted(rng, FORMATS[instruction.b], b, rate),
        _salted(rng, FORMATS[instruction.accumulator], c, 0.2),
    )


def _salted(rng: Generator, fmt: Format, bits: Bits, rate: float) -> Bits:
    salt = np.array(
        [0, 1 << fmt.dropped_bits, fmt.infinity_bits, fmt.nan_bits, fmt.largest_bits], fmt.dtype
    )
    salt = np.concatenate([salt, salt | fmt.dtype.type(fmt.sign_bit)])
    return np.where(rng.random(bits.shape) < rate, rng.choice(salt, bits.shape), bits)
