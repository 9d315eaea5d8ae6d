"""The reductions that all operators share, against a plain model of docs/formats/operators.md."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from tests.trainer.kernels.shim.host import HostDevice, build
from trainer.kernels.device import Runtime

SOURCE = """
#include "reduce.cuh"

KERNEL(kLanes, sum_and_maximum)(const float* x, i64 n, float* sum, i32* key) {
    __shared__ float lanes[kLanes];
    __shared__ i32 keys[kLanes];
    const float total = tree(n, lanes, [=](i64 i) { return x[i]; });
    const i32 largest = largest_key(n, keys, [=](i64 i) { return bitwitness::order_key(x[i]); });
    sum[lane_number()] = total;
    key[lane_number()] = largest;
}
"""
LANES = 256


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("reduce")
    source = folder / "reduce.cu"
    source.write_text(SOURCE, encoding="ascii")
    build(folder, folder / "reduce.so", [source])
    return ctypes.CDLL(str(folder / "reduce.so"))


def tree(x: np.ndarray) -> np.float32:
    """TREE, lane by lane and fold by fold."""
    lanes = np.zeros(LANES, np.float32)
    for start in range(0, len(x), LANES):
        part = x[start : start + LANES]
        lanes[: len(part)] += part
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [1, 31, 32, 33, 255, 256, 257, 1000])
def test_every_thread_gets_the_tree_s_sum_and_the_maximum(
    library: ctypes.CDLL, n: int, seed: int
) -> None:
    """Sum and largest key are exact in every thread, for any order of threads."""
    rng = np.random.default_rng((n, seed))
    x = (rng.standard_normal(n) * np.exp2(rng.integers(-9, 9, n)) - 5).astype(np.float32)
    rt = Runtime(HostDevice(library, seed=seed))
    sums, keys = rt.zeros(LANES), rt.zeros(LANES, dtype=torch.int32)
    rt.launch("sum_and_maximum", (1, 1, 1), LANES, torch.from_numpy(x), np.int64(n), sums, keys)
    assert np.all(sums.numpy().view(np.uint32) == tree(x).view(np.uint32))
    bits = x.view(np.int32)
    ordered = np.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    assert np.all(keys.numpy() == ordered.max())
