"""How far honest hardware can be from a product that is known from a model only: `step.numerics`.

Where arithmetic is modelled (NUMERICS 1.4) a differing product accuses nobody, because hardware may
differ from the model. But not by any amount. A liar who drives a product there, or registers an
architecture that is modelled altogether, would otherwise be free to commit anything. So a
difference is inconclusive only within an allowance that no tensor core can leave:

* Aligning L + 1 terms to the greatest exponent e and rounding once loses less than (L + 2) units of
  2^(e - F), and 2^e is at most B, the sum of the magnitudes of all products. Two machines that
  agree on the operands are then apart by at most twice that, each step.
* On a recorded row F and L are known, and only what happens below e_zero is not. 2^-19 B a step is
  more than thrice (L + 2) 2^-F for every row of the table.
* On a modelled row F is taken to be at least 20, three bits fewer than any 16-bit datapath that was
  ever recorded, and L to lie between 4 and 16: 2^-14 B for each 4 products.
* An operand so small that hardware might flush it may lose its whole product.
* Everything that happens below 2^-126 is smaller than a fixed 2^-120, and in `heal`, which scales
  its operands, smaller than 2^-145.

A share of differing elements, however large, convicts nobody: honest operands can be tiny all over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator_ext import Numerics
from verifier.step_report import Difference
from verifier.verdict import Check, Verdict

Vector = NDArray[np.float32]

_BF16_LEAST_NORMAL: Final = 2.0**-126
# Relative to the row's or column's greatest magnitude; below it the f16 parts can be subnormal.
_HEAL_FRAGILE: Final = 2.0**-16
_FLOOR: Final = {"bf16": 2.0**-120, "heal": 2.0**-145}


def allowance(a_K: Vector, b_K: Vector, profile: str, row: Numerics) -> float:
    """Return by how much an honest product of two vectors can differ from the emulator's.

    Args:
        a_K: a row of the left operand, f32 [K].
        b_K: a column of the right operand, f32 [K].
        profile: `heal` or `bf16`.
        row: the table row of its tensor cores.

    """
    a, b = (np.abs(x.astype(np.float64)) for x in (a_K, b_K))
    products = a * b
    lost = products[_fragile(a, profile) | _fragile(b, profile)].sum()
    if row.evidence == "recorded" and row.L is not None:
        steps, unit = -(-len(a) // row.L), 2.0**-19
    else:
        steps, unit = -(-len(a) // 4), 2.0**-14
    # rounding an operand to bf16 can double nothing: the half covers it
    return float(_FLOOR[profile] + 1.5 * (lost + steps * unit * products.sum()))


def plausible(committed: float, recomputed: float, allowed: float) -> bool:
    """Whether honest hardware could have given `committed`; NaN and infinity it never commits."""
    return bool(abs(committed - recomputed) <= allowed)


def judge_numerics(differences: Iterable[Difference]) -> list[Check]:
    """Return the check `step.numerics` if some difference is more than hardware could make."""
    far = [d for d in differences if d.evidence == "implausible"]
    if not far:
        return []
    first = far[0]
    detail = (
        f"element {list(first.index)} of {first.value} was committed as {first.committed_bits}, "
        f"{first.op} gives {first.recomputed_bits}: its arithmetic is known from a model only, but "
        "no tensor core is this far from it"
    )
    evidence = {
        "rank": str(first.rank),
        "value": first.value,
        "index": str(list(first.index)),
        "committed": first.committed_bits,
        "recomputed": first.recomputed_bits,
    }
    return [Check(name="step.numerics", verdict=Verdict.MISMATCH, detail=detail, evidence=evidence)]


def _fragile(x: NDArray[np.float64], profile: str) -> NDArray[np.bool_]:
    least = _BF16_LEAST_NORMAL
    if profile == "heal":
        least = _HEAL_FRAGILE * x.max(initial=0.0)
    return (x > 0) & (x <= least)
