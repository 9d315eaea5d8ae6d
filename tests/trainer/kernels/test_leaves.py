"""Leaf order, leaf hashes and roots on the device against `transcript`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.kernels.conftest import GuardedRuntime
from trainer.kernels.errors import KernelError
from trainer.kernels.leaves import LeafHasher
from transcript.layout import Layout
from transcript.leaves import arena_root, leaf_hashes

OnHost = Callable[..., GuardedRuntime]

# Scalars, vectors beyond one leaf, whole and edge tiles, leading dimensions, nothing at all.
SHAPES = [(), (1,), (5000,), (64, 64), (65, 130), (3, 1, 70), (2, 2, 63, 64), (0, 4), (1, 1)]


def tensors(layout: Layout) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(layout.bytes)
    dtypes = {"f32": np.float32, "i32": np.int32}
    return {
        e.name: np.asarray(rng.integers(-(2**31), 2**31, e.shape), np.int32).view(dtypes[e.dtype])
        for e in layout.entries
    }


def packed(rt: GuardedRuntime, layout: Layout) -> tuple[LeafHasher, torch.Tensor, np.ndarray]:
    hasher, arrays = LeafHasher(rt, layout), tensors(layout)
    buffer = hasher.new_buffer()
    for name, array in arrays.items():
        hasher.pack_into(buffer, name, torch.from_numpy(array))
    return hasher, buffer, layout.pack(arrays)


def test_an_arena_has_the_transcript_s_bytes_and_root(on_host: OnHost) -> None:
    """Packing, every leaf hash and the root equal the CPU's for all kinds of tensors."""
    rt = on_host()
    layout = Layout.build((f"t{i}", ("f32", "i32")[i % 2], s) for i, s in enumerate(SHAPES))
    hasher, buffer, expected = packed(rt, layout)
    assert np.array_equal(buffer.numpy(), expected)
    hashes = [bytes(row) for row in hasher.leaf_hashes(buffer).numpy()]
    assert hashes == leaf_hashes(expected, layout)
    assert hasher.root(buffer) == arena_root(expected, layout)
    rt.require_margins()


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shapes=st.lists(st.lists(st.integers(0, 70), max_size=3), max_size=6))
def test_any_layout_has_the_transcript_s_root(on_host: OnHost, shapes: list[list[int]]) -> None:
    """Roots agree for any number of leaves of any size, none included."""
    layout = Layout.build((f"t{i}", "f32", shape) for i, shape in enumerate(shapes))
    hasher, buffer, expected = packed(on_host(), layout)
    assert hasher.root(buffer) == arena_root(expected, layout)


@pytest.mark.parametrize("leaves", [1, 2, 3, 5, 8, 33])
def test_trees_of_any_size_have_the_rfc_s_root(on_host: OnHost, leaves: int) -> None:
    """An odd node moves up on every level."""
    layout = Layout.build((f"t{i}", "i32", ()) for i in range(leaves))
    hasher, buffer, expected = packed(on_host(), layout)
    assert hasher.root(buffer) == arena_root(expected, layout)


# One leaf of n words: around the ends of SHA-256 blocks, with and without room for the length.
@pytest.mark.parametrize("words", [1, 13, 14, 15, 16, 17, 29, 30, 31, 4096])
def test_leaves_end_at_any_word(on_host: OnHost, words: int) -> None:
    """Padding is right wherever the last block ends."""
    hasher, buffer, expected = packed(on_host(), layout := Layout.build([("t", "f32", (words,))]))
    assert hasher.root(buffer) == arena_root(expected, layout)


def test_a_permuted_tensor_is_packed_by_its_values(on_host: OnHost) -> None:
    """Strides have no effect on bytes."""
    layout = Layout.build([("t", "f32", (66, 70))])
    hasher = LeafHasher(on_host(), layout)
    x = torch.arange(66 * 70, dtype=torch.float32).view(70, 66).T
    buffer = hasher.new_buffer()
    hasher.pack_into(buffer, "t", x)
    assert np.array_equal(buffer.numpy(), layout.pack({"t": x.numpy()}))


def test_what_cannot_be_packed_is_refused(on_host: OnHost) -> None:
    """Narrow elements, other shapes and other buffers are KernelErrors."""
    rt, layout = on_host(), Layout.build([("t", "f32", (3, 4))])
    with pytest.raises(KernelError, match="tokens does not"):
        LeafHasher(rt, Layout.build([("tokens", "u8", (4,))]))
    hasher = LeafHasher(rt, layout)
    with pytest.raises(KernelError, match=r"t needs f32 \[3, 4\]"):
        hasher.pack_into(hasher.new_buffer(), "t", torch.zeros(4, 3))
    with pytest.raises(KernelError, match="the layout uint8"):
        hasher.root(torch.zeros(4, dtype=torch.uint8))
