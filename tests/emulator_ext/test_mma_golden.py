"""The emulator against outputs recorded from real GPUs (Khattak and Mikaitis)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import emulator_ext
from tests.emulator_ext.mma_model import DTYPES
from tests.emulator_ext.mma_operands import assert_same_bits

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
CELLS = json.loads((GOLDEN / "index.json").read_text()) if GOLDEN.is_dir() else []
ARCHITECTURES = {
    "V100": "volta",
    "A100": "ampere",
    "A2": "ampere",
    "Ada": "ada",
    "L40S": "ada",
    "H100": "hopper",
    "H200": "hopper",
    "B200": "blackwell",
}


@pytest.mark.skipif(not CELLS, reason=f"no recorded outputs at {GOLDEN}")
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell["file"].removesuffix(".npz"))
def test_every_recorded_output_is_reproduced(cell):
    """Each of a cell's recorded results comes out bit for bit, through a row called recorded."""
    arrays = np.load(GOLDEN / cell["file"])
    dtype, acc = DTYPES[cell["a_dtype"]], cell["acc_dtype"]
    arch = ARCHITECTURES[cell["gpu"]]
    instruction = "wgmma" if cell["instruction"] == "wgmma" else "mma"
    out = emulator_ext.dot(
        arrays["a"].view(dtype),
        arrays["b"].view(dtype),
        arrays["c"].view(DTYPES["f16"] if acc == "f16" else np.float32),
        arch=arch,
        acc=acc,
        instruction=instruction,
    )
    assert len(out) == cell["records"]
    assert_same_bits(out.view(arrays["d"].dtype), arrays["d"], cell["file"])
    assert emulator_ext.numerics(arch, dtype, acc, instruction).evidence == "recorded"


@pytest.mark.skipif(not CELLS, reason=f"no recorded outputs at {GOLDEN}")
def test_recorded_outputs_pass_through_the_matrix_product():
    """The vector paths give recorded results too: the diagonal of a product of all records."""
    for cell in CELLS:
        if cell["gpu"] != "H100" or cell["instruction"] == "mma.sync-fp8":
            continue
        arrays = np.load(GOLDEN / cell["file"])
        dtype, acc = DTYPES[cell["a_dtype"]], cell["acc_dtype"]
        n = 64
        c = np.zeros((n, n), np.float16 if acc == "f16" else np.float32)
        np.fill_diagonal(c, arrays["c"][:n].view(c.dtype))
        out = emulator_ext.matmul(
            arrays["a"][:n].view(dtype),
            arrays["b"][:n].view(dtype).T,
            c,
            arch="hopper",
            acc=acc,
            instruction="wgmma" if cell["instruction"] == "wgmma" else "mma",
        )
        assert_same_bits(np.diagonal(out).view(arrays["d"].dtype), arrays["d"][:n], cell["file"])
