"""The shim itself: it must see what a GPU would only sometimes show."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.kernels.shim.host import HostDevice, build
from trainer.kernels.device import Runtime

SOURCE = """
#include "device.cuh"

constexpr int kThreads = 64;

// Each thread passes its number to the one on the left, with or without waiting for it.
KERNEL(kThreads, rotate)(i32 wait, i32* out) {
    __shared__ i32 cells[kThreads];
    const int t = static_cast<int>(threadIdx.x);
    cells[t] = t;
    if (wait != 0) __syncthreads();
    out[t] = cells[(t + 1) % kThreads];
}

KERNEL(kThreads, stuck)(i32* out) {
    if (threadIdx.x != 5) __syncthreads();
    out[threadIdx.x] = 1;
}

KERNEL(kThreads, copy)(i32 wait, const i32* in, i32* out) {
    DYNAMIC_SHARED(shared);
    i32* cells = reinterpret_cast<i32*>(shared);
    const int t = static_cast<int>(threadIdx.x);
    if (t % 4 == 0) cp_async_16(cells + t, in + t);
    cp_async_commit();
    if (wait != 0) cp_async_wait<0>();
    __syncthreads();
    out[t] = cells[t];
}

KERNEL(kThreads, exchange)(i32* out) {
    const i32 lane = static_cast<i32>(threadIdx.x % 32);
    out[threadIdx.x] = 100 * __shfl_xor_sync(kAllLanes, lane, 3U) +
                       __shfl_down_sync(kAllLanes, lane, 4U);
}
"""
THREADS = 64


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("shim")
    source = folder / "faulty.cu"
    source.write_text(SOURCE, encoding="ascii")
    build(folder, folder / "faulty.so", [source])
    return ctypes.CDLL(str(folder / "faulty.so"))


def run(library: ctypes.CDLL, kernel: str, *args: object, seed: int = 0) -> list[int]:
    rt = Runtime(HostDevice(library, seed=seed))
    out = rt.zeros(THREADS, dtype=torch.int32)
    rt.launch(kernel, (1, 1, 1), THREADS, *args, out, shared=4 * THREADS)
    return out.tolist()


def test_a_missing_barrier_shows(library: ctypes.CDLL) -> None:
    """Without the barrier some order of threads reads a neighbour's cell before it is written."""
    rotated = [(t + 1) % THREADS for t in range(THREADS)]
    for seed in range(3):
        assert run(library, "rotate", np.int32(1), seed=seed) == rotated
        assert run(library, "rotate", np.int32(0), seed=seed) != rotated


def test_the_order_of_threads_follows_the_seed(library: ctypes.CDLL) -> None:
    """Equal seeds repeat a race's outcome, other seeds change it."""
    once, again, other = (run(library, "rotate", np.int32(0), seed=s) for s in (1, 1, 2))
    assert once == again
    assert once != other


def test_a_barrier_that_one_thread_skips_ends_the_launch(library: ctypes.CDLL) -> None:
    """A block that can never go on is an error, with counts, not a hang."""
    with pytest.raises(RuntimeError, match="1 of 64 threads finished, 63 wait at a barrier"):
        run(library, "stuck")


def test_an_asynchronous_copy_arrives_only_when_waited_for(library: ctypes.CDLL) -> None:
    """Shared memory holds poison until the copy's group has been waited for."""
    values = torch.arange(THREADS, dtype=torch.int32)
    assert run(library, "copy", np.int32(1), values) == values.tolist()
    assert run(library, "copy", np.int32(0), values) == [-1] * THREADS


def test_shuffles_exchange_within_a_warp(library: ctypes.CDLL) -> None:
    """The xor and down shuffles read the lanes that CUDA names; past the end down keeps its own."""
    lanes = [t % 32 for t in range(THREADS)]
    down = [lane + 4 if lane + 4 < 32 else lane for lane in lanes]
    expected = [100 * (lane ^ 3) + other for lane, other in zip(lanes, down, strict=True)]
    assert run(library, "exchange") == expected


def test_an_unknown_kernel_is_refused(library: ctypes.CDLL) -> None:
    """A name that no source defines is an error."""
    with pytest.raises(RuntimeError, match="no kernel of that name"):
        run(library, "absent")
