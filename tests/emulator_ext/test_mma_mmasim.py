"""Differential tests against MMA-Sim, an independent published model of the tensor cores."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator_ext import mma_mmasim
from tests.emulator_ext.mma_mmasim import CASES
from tests.emulator_ext.mma_operands import KINDS

SEED = 20250729


@pytest.fixture(scope="module")
def nv_ptx():
    return mma_mmasim.load()


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[2].split('.', 1)[1]}")
def test_random_patterns_agree_with_mmasim(nv_ptx, case):
    """Random bits, specials, subnormals, zeros and near-overflow give MMA-Sim's bits."""
    patterns = case[-1]
    rng = np.random.default_rng([SEED, CASES.index(case)])
    checked = mma_mmasim.compare(nv_ptx, case, rng, patterns // (2 * len(KINDS)) + 1)
    assert checked >= patterns
