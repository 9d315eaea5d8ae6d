"""Hypothesis strategies and independent models that the transcript's tests share."""

from __future__ import annotations

from hashlib import sha256
from itertools import product

import numpy as np
from hypothesis import strategies as st

from transcript.layout import DTYPES, Layout
from transcript.step import StepLeaf

HEX = "0123456789abcdef" * 4

# around the tile edge on purpose: 1, a little below, exactly, a little above, two tiles and an edge
dims = st.sampled_from([0, 1, 2, 3, 63, 64, 65, 128, 130])
shapes = st.one_of(
    st.just(()),
    st.tuples(st.sampled_from([0, 1, 5, 4095, 4096, 4097, 9000])),
    st.tuples(dims, dims),
    st.tuples(st.integers(0, 3), dims, dims),
    st.tuples(st.integers(1, 2), st.integers(0, 3), dims, dims),
)
tensors = st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=5).map(
    lambda items: [(f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(items)]
)
hashes = st.lists(st.binary(min_size=32, max_size=32), max_size=40)


def random_array(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Draw arbitrary bit patterns, NaN payloads and subnormals included."""
    size = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize
    raw = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return raw.view(DTYPES[dtype]).reshape(shape)


def leaf_blocks(array: np.ndarray) -> list[bytes]:
    """Cut an array into leaves the slow and obvious way, by the words of the format."""
    if array.ndim < 2:
        flat = array.reshape(-1)
        return [flat[i : i + 4096].tobytes() for i in range(0, flat.size, 4096)]
    if array.size == 0:
        return []
    rows, columns = array.shape[-2:]
    return [
        array[index][i : i + 64, j : j + 64].tobytes()
        for index in product(*map(range, array.shape[:-2]))
        for i in range(0, rows, 64)
        for j in range(0, columns, 64)
    ]


def reference_root(leaves: list[bytes]) -> bytes:
    """RFC 9162, 2.1.1, transcribed as its recursion."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return sha256(b"\x01" + reference_root(leaves[:k]) + reference_root(leaves[k:])).digest()


def small_layout() -> Layout:
    """Lay out one tensor of each kind: matrix with edges, batch of matrices, vector, scalar."""
    return Layout.build(
        [
            ("x", "f32", (70, 130)),
            ("heads", "f32", (2, 3, 64, 16)),
            ("gain", "f32", (4100,)),
            ("loss", "f32", ()),
            ("tokens", "i32", (4, 16)),
            ("bits", "u16", (3,)),
            ("mask", "u8", (5, 7)),
        ]
    )


def step_leaf(step: int, **changes: object) -> StepLeaf:
    """Make a step leaf of run demo-1 whose roots depend on the step."""
    digest = sha256(str(step).encode()).hexdigest()
    fields: dict[str, object] = {
        "run_id": "demo-1", "registration": HEX, "step": step, "graph_digest": HEX[::-1],
        "state_before": digest, "state_after": sha256(str(step + 1).encode()).hexdigest(),
        "batches": [digest], "scalars": ["3a83126f", "3f800000"], "arenas": [HEX],
        "metrics": {"loss": "40b15c29", "grad_norm": "3f800000"},
    }  # fmt: skip
    return StepLeaf.check({**fields, **changes})
