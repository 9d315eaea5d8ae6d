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
from transcript.layout import DTYPES, Layout
from transcript.leaves import arena_root, leaf_hashes

OnHost = Callable[..., GuardedRuntime]

# Scalars, vectors beyond one leaf, whole and edge tiles, leading dimensions, nothing at all.
SHAPES = [(), (1,), (5000,), (64, 64), (65, 130), (3, 1, 70), (2, 2, 63, 64), (0, 4), (1, 1)]


def tensors(layout: Layout) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(layout.bytes)
    arrays = {}
    for entry in layout.entries:
        drawn = rng.integers(0, 256, entry.bytes, np.uint8)
        arrays[entry.name] = drawn.view(DTYPES[entry.dtype]).reshape(entry.shape)
    return arrays


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
    require_transcript_s(rt, layout)


def require_transcript_s(rt: GuardedRuntime, layout: Layout) -> None:
    hasher, buffer, expected = packed(rt, layout)
    assert np.array_equal(buffer.numpy(), expected)
    hashes = [bytes(row) for row in hasher.leaf_hashes(buffer).numpy()]
    assert hashes == leaf_hashes(expected, layout)
    assert hasher.root(buffer) == arena_root(expected, layout)
    rt.require_margins()


# A u8 scalar first puts everything after it at odd offsets, where leaves begin in mid-word.
@pytest.mark.parametrize("lead", [(), ("u8",), ("u8", "u8"), ("u16", "u8")], ids=str)
@pytest.mark.parametrize("dtype", ["u8", "u16", "i32", "i64"])
def test_elements_of_any_width_have_the_transcript_s_root(
    on_host: OnHost, dtype: str, lead: tuple[str, ...]
) -> None:
    """Bytes, leaf hashes and root are the CPU's for wider and narrower elements, at any offset."""
    tensors = [*((f"lead{i}", d, ()) for i, d in enumerate(lead))]
    tensors += [(f"t{i}", dtype, shape) for i, shape in enumerate(SHAPES)]
    rt = on_host()
    require_transcript_s(rt, Layout.build([*tensors, ("end", "u8", (3, 5))]))


def test_a_cache_has_the_transcript_s_root(on_host: OnHost) -> None:
    """Tokens, codes and scales, as a generation's state orders them, hash as on the CPU."""
    cache = (("i32", (1, 17)), ("u16", (1, 3, 70, 66)), ("u8", (1, 3, 70, 1)), ("u8", (1, 1, 7, 1)))
    layout = Layout.build((f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(cache))
    require_transcript_s(on_host(), layout)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tensors=st.lists(
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 70), max_size=3)),
        max_size=6,
    )
)
def test_any_layout_has_the_transcript_s_root(
    on_host: OnHost, tensors: list[tuple[str, list[int]]]
) -> None:
    """Roots agree for any number of leaves of any size and dtype, none included."""
    layout = Layout.build((f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(tensors))
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


@pytest.mark.parametrize("begin", range(5))
def test_leaves_begin_and_end_at_any_byte(on_host: OnHost, begin: int) -> None:
    """Leaves of 1 to 140 bytes, each behind the other, hash as on the CPU from any first byte."""
    sizes = [n for n in (begin, *range(1, 141)) if n]
    rt, layout = on_host(), Layout.build((f"t{i}", "u8", (n,)) for i, n in enumerate(sizes))
    hasher, buffer, expected = packed(rt, layout)
    hashes = [bytes(row) for row in hasher.leaf_hashes(buffer).numpy()]
    assert hashes == leaf_hashes(expected, layout)


def test_a_permuted_tensor_is_packed_by_its_values(on_host: OnHost) -> None:
    """Strides have no effect on bytes."""
    layout = Layout.build([("t", "f32", (66, 70))])
    hasher = LeafHasher(on_host(), layout)
    x = torch.arange(66 * 70, dtype=torch.float32).view(70, 66).T
    buffer = hasher.new_buffer()
    hasher.pack_into(buffer, "t", x)
    assert np.array_equal(buffer.numpy(), layout.pack({"t": x.numpy()}))


def test_what_cannot_be_packed_is_refused(on_host: OnHost) -> None:
    """Other element sizes, other shapes and other buffers are KernelErrors."""
    rt, layout = on_host(), Layout.build([("t", "f32", (3, 4))])
    hasher = LeafHasher(rt, layout)
    with pytest.raises(KernelError, match=r"t needs f32 \[3, 4\]"):
        hasher.pack_into(hasher.new_buffer(), "t", torch.zeros(4, 3))
    with pytest.raises(KernelError, match=r"t needs f32 \[3, 4\], not torch.uint8"):
        hasher.pack_into(hasher.new_buffer(), "t", torch.zeros(3, 4, dtype=torch.uint8))
    with pytest.raises(KernelError, match="the layout uint8"):
        hasher.root(torch.zeros(4, dtype=torch.uint8))
