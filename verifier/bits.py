"""Comparing two arrays as bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where two arrays of one shape first differ, in C order, and how often they do."""

    index: tuple[int, ...]
    committed_bits: str
    recomputed_bits: str
    differing: int


def first_difference(committed: Array, recomputed: Array) -> FirstDifference | None:
    """Compare two arrays of one dtype as bits: -0 is not 0, and every NaN is its own."""
    a, b = _bits(committed), _bits(recomputed)
    digits = 2 * a.itemsize
    differs = a != b
    count = int(np.count_nonzero(differs))
    if not count:
        return None
    first = int(np.argmax(differs))
    return FirstDifference(
        index=tuple(int(i) for i in np.unravel_index(first, committed.shape)),
        committed_bits=f"{int(a[first]):0{digits}x}",
        recomputed_bits=f"{int(b[first]):0{digits}x}",
        differing=count,
    )


def differing(committed: Array, recomputed: Array) -> NDArray[np.int64]:
    """Return the positions in C order at which two arrays differ as bits, int64 [n]."""
    return np.flatnonzero(_bits(committed) != _bits(recomputed)).astype(np.int64)


def element_bits(array: Array, index: tuple[int, ...]) -> str:
    """Return the bits of one element, two hexadecimal digits a byte."""
    position = int(np.ravel_multi_index(index, array.shape))
    return f"{int(_bits(array)[position]):0{2 * array.itemsize}x}"


def _bits(array: Array) -> NDArray[np.unsignedinteger]:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.dtype(f"u{flat.itemsize}"))
