"""Roots over byte ranges in leaf order."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from tests.transcript.strategies import (
    leaf_blocks,
    random_array,
    reference_root,
    small_layout,
    tensors,
)
from transcript.errors import ContractError
from transcript.layout import Layout
from transcript.leaves import ALGORITHM, arena_root, leaf_hashes
from transcript.merkle import leaf_hash


@settings(deadline=None, max_examples=60)
@given(tensors)
def test_root_is_that_of_the_obvious_leaves(items):
    """The root over a packed range is RFC 9162's over the leaves cut one by one."""
    layout = Layout.build(items)
    arrays = {name: random_array(dtype, shape) for name, dtype, shape in items}
    blocks = [leaf for array in arrays.values() for leaf in leaf_blocks(array)]
    assert arena_root(layout.pack(arrays), layout) == reference_root(blocks)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_do_not_change_a_hash(threads):
    """Any number of threads gives the same hashes in the same order."""
    layout = Layout.build(
        [("a", "f32", (1000, 1000)), ("b", "f32", ()), ("c", "f32", (9, 300_000))]
    )
    buffer = np.random.default_rng(1).integers(0, 256, layout.bytes, np.uint8)
    bounds = layout.leaf_bounds().tolist()
    expected = [leaf_hash(buffer[a:b].tobytes()) for a, b in pairwise(bounds)]
    assert leaf_hashes(buffer, layout, threads) == expected


def test_one_flipped_bit_changes_one_leaf():
    """A flipped bit changes the leaf that holds it, no other, and the root."""
    layout = small_layout()
    buffer = bytearray(layout.bytes)
    before = leaf_hashes(buffer, layout)
    for leaf in range(layout.leaf_count):
        changed = buffer.copy()
        changed[layout.locate(leaf).offset] ^= 0x80
        after = leaf_hashes(changed, layout)
        assert [i for i in range(len(after)) if after[i] != before[i]] == [leaf]
        assert arena_root(changed, layout) != arena_root(buffer, layout)


def test_negative_zero_is_another_value():
    """What is hashed is bytes: 0 and -0 have different roots although they compare equal."""
    layout = Layout.build([("a", "f32", (2,))])
    roots = {arena_root(np.array([0.0, x], "<f4").view(np.uint8), layout) for x in (0.0, -0.0)}
    assert len(roots) == 2


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, "u1")])
def test_any_contiguous_buffer_will_do(kind):
    """bytes, bytearray, memoryview and numpy hash alike."""
    layout = small_layout()
    data = bytes(range(256)) * (layout.bytes // 256) + bytes(layout.bytes % 256)
    assert arena_root(kind(data), layout) == arena_root(data, layout)


def test_wrong_lengths_are_refused():
    """A buffer that is not the layout's is never padded or cut."""
    layout = small_layout()
    for size in (0, layout.bytes - 1, layout.bytes + 1):
        with pytest.raises(ContractError, match=str(size)):
            arena_root(bytes(size), layout)


def test_the_name_carries_the_parameters():
    """The algorithm's name is what statements record; changing a parameter must change it."""
    assert ALGORITHM == "sha256-rfc9162-tile64-v1"
