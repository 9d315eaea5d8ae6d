"""Differential tests against MMA-Sim, an independent published model of the tensor cores."""

from __future__ import annotations

import numpy as np
import pytest

from emulator_ext import isa
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


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[2].split('.', 1)[1]}")
def test_products_agree_with_mmasim_on_every_path(nv_ptx, case):
    """What vector kernels make of whole products, c included, are MMA-Sim's bits."""
    rng = np.random.default_rng([SEED, 1, CASES.index(case)])
    assert mma_mmasim.compare_products(nv_ptx, case, rng, 11, 37) > 0


def test_all_that_mmasim_models_is_compared():
    """The cases are all rows of the table but f64, integers and FP8 through mma.sync (1.3)."""
    compared = {(arch, instruction, a, acc) for arch, instruction, _, (a, _), acc, _ in CASES}
    rows = {(arch, *row.split()) for arch in isa.ARCHITECTURES for row in isa.existing(arch)}
    left = {(arch, a, acc) for arch, _, a, acc in rows - compared if a not in ("f64", "s8", "u8")}
    assert left == {
        (arch, a, acc)
        for arch in ("hopper", "blackwell")
        for a in ("e4m3", "e5m2")
        for acc in ("f32", "f16")
    }
