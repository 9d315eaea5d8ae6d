"""How a whole GEMM kernel splits K: plain chains, promotion, split-K.

A tensor core only chains steps. What a kernel does around it, in ordinary f32 arithmetic, is its
schedule; where a kernel's schedule is known, its GEMMs can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from emulator_ext.errors import OperandError

Partials = Literal["f32", "f16", "bf16"]

_PARTIAL_DTYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}

# DeepSeek's and CUTLASS's FP8 GEMMs on Hopper leave the 14-bit accumulator every 128 products.
HOPPER_FP8_PROMOTION = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How K is cut, and how the pieces meet again.

    promotion: products per chain from +0; each chain's result is added to an f32 sum in ascending
    order (None: one chain per slice). slices: products per split-K slice, in order, summing to K
    (empty: no split). partials: the format a slice's result is rounded to (to nearest even)
    before the slices are merged forward, ((p0 + p1) + p2) ..., in f32.

    c is where the first slice starts. The default is one plain chain.
    """

    promotion: int | None = None
    slices: tuple[int, ...] = ()
    partials: Partials = "f32"

    def __post_init__(self) -> None:
        if self.promotion is not None and self.promotion < 1:
            raise OperandError(f"promotion must be at least 1 product, got {self.promotion}")
        if any(n < 1 for n in self.slices):
            raise OperandError(f"every slice must hold a product, got {self.slices}")
        if self.partials != "f32" and self.partials not in _PARTIAL_DTYPES:
            raise OperandError(f"partials must be f32, f16 or bf16, got {self.partials!r}")

    @property
    def is_plain(self) -> bool:
        """Whether this is the bare instruction, one chain along all of K."""
        return self == Schedule()

    def bounds(self, depth: int) -> tuple[tuple[int, int], ...]:
        """Half-open ranges of K, one per slice. Raises OperandError if they do not fill it."""
        if not self.slices:
            return ((0, depth),)
        ends = np.cumsum((0, *self.slices)).tolist()
        if ends[-1] != depth:
            raise OperandError(f"slices {self.slices} hold {ends[-1]} products, K is {depth}")
        return tuple(pairwise(ends))

    def merge(self, partials: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        """Round each slice's [M, N] result as the schedule says, and add them forward."""
        dtype = _PARTIAL_DTYPES.get(self.partials)
        if dtype is not None and len(partials) > 1:
            partials = [p.astype(dtype).astype(np.float32) for p in partials]
        total = partials[0]
        for partial in partials[1:]:
            total = total + partial
        return total
