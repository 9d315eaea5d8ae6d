"""How well the arithmetic behind one element is known (NUMERICS 1.4).

"exact": fixed by IEEE 754 and, in the profile of that name, by integer sums that every engine
holds. "recorded": a tensor-core step whose table row agrees with outputs recorded from hardware.
"modelled": known from a published model only; a difference there is inconclusive. "unknown":
there is no such instruction. "implausible": modelled, but no hardware could be as far from the
model (`verifier.plausible`). `heal` keeps all its operands in the recorded region; `bf16` can
leave it where every product of a step is as small as e_zero. Nothing here needs torch: a fraud
proof asks for these levels too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator_ext import Numerics, UnsupportedError, numerics
from trainer.config import NumericsConfig

_OPERAND = {"heal": "f16", "bf16": "bf16"}
# A bf16 subnormal keeps the exponent of the least normal number.
_BF16_EMIN = -126


def table_row(config: NumericsConfig) -> Numerics | None:
    """Return the tensor-core row that a run's GEMMs use; None if they use none.

    Raises:
        UnsupportedError: the architecture has no such instruction.

    """
    dtype = _OPERAND.get(config.profile)
    return numerics(config.arch, dtype) if dtype else None


def level(config: NumericsConfig) -> str:
    """Return the evidence level of a run's GEMMs."""
    try:
        row = table_row(config)
    except UnsupportedError:
        return "unknown"
    return row.evidence if row else "exact"


def reaches_e_zero(a_K: NDArray[np.float32], b_K: NDArray[np.float32], row: Numerics) -> bool:
    """Whether some step of L products has none above the floor e_zero, but one that is not 0.

    The accumulator may still lie above the floor, so this errs towards "modelled".
    """
    if row.L is None or row.e_zero is None:
        return False
    exponents = _bf16_exponents(a_K) + _bf16_exponents(b_K)
    nonzero = (a_K != 0) & (b_K != 0)
    pad = -len(exponents) % row.L
    blocks = np.pad(np.where(nonzero, exponents, -(1 << 20)), (0, pad), constant_values=-(1 << 20))
    greatest = blocks.reshape(-1, row.L).max(axis=1)
    return bool(np.any((greatest > -(1 << 19)) & (greatest <= row.e_zero)))


def _bf16_exponents(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each exponent after rounding to nearest bf16, from the bits."""
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.int64)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    exponents: NDArray[np.int64] = np.maximum((rounded >> 23 & 0xFF) - 127, _BF16_EMIN)
    return exponents
