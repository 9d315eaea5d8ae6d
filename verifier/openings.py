"""Opened leaves: some tiles of a committed byte range, each with its Merkle path.

An opening shows what stands in a part of an arena or a state without the rest of it. Which
leaves have to be opened is computed by whoever checks, from the graph's layout, never taken
from the proof.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transcript.errors import ProofError
from transcript.layout import DTYPES, Layout
from transcript.leaves import leaf_hashes
from transcript.merkle import Tree, leaf_hash, verify_inclusion
from verifier.errors import ProofFileError

Bytes = NDArray[np.uint8]
Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """One leaf: its bytes and its inclusion proof, base64 and hex."""

    leaf: int
    data: str
    path: tuple[str, ...]


def open_leaves(buffer: Bytes, layout: Layout, leaves: Iterable[int]) -> tuple[Opening, ...]:
    """Open leaves of a byte range whose every leaf is at hand."""
    tree = Tree(leaf_hashes(buffer, layout))
    return tuple(_open(buffer, layout, tree, leaf) for leaf in leaves)


def _open(buffer: Bytes, layout: Layout, tree: Tree, leaf: int) -> Opening:
    place = layout.locate(leaf)
    data = buffer[place.offset : place.offset + place.bytes].tobytes()
    return Opening(
        leaf=leaf,
        data=base64.b64encode(data).decode(),
        path=tuple(item.hex() for item in tree.inclusion_proof(leaf, len(tree))),
    )


def leaves_of(layout: Layout, name: str, elements: NDArray[np.bool_]) -> list[int]:
    """Return the leaves that hold the chosen elements of a tensor, ascending.

    Args:
        layout: of the byte range.
        name: the tensor.
        elements: of the tensor's shape, true where an element is needed.

    """
    return [leaf for leaf in layout.leaf_range(name) if elements[layout.locate(leaf).slices].any()]


def checked_leaves(openings: Iterable[Opening], layout: Layout, root: str) -> dict[int, bytes]:
    """Return the bytes of opened leaves by number, each proved to be under the root.

    Raises:
        ProofFileError: a leaf twice, of a wrong size, or not in base64 and hex.
        ProofError: a leaf is not under the root.

    """
    found: dict[int, bytes] = {}
    for opening in openings:
        if opening.leaf in found or not 0 <= opening.leaf < layout.leaf_count:
            raise ProofFileError(f"leaf {opening.leaf} is opened twice, or does not exist")
        try:
            data = base64.b64decode(opening.data, validate=True)
            path = [bytes.fromhex(item) for item in opening.path]
        except (binascii.Error, ValueError):
            raise ProofFileError(f"leaf {opening.leaf} is not base64 with a path in hex") from None
        if len(data) != layout.locate(opening.leaf).bytes:
            raise ProofFileError(f"leaf {opening.leaf} has {len(data)} bytes")
        verify_inclusion(
            leaf_hash(data), opening.leaf, layout.leaf_count, path, bytes.fromhex(root)
        )
        found[opening.leaf] = data
    return found


def assemble(
    leaves: Mapping[int, bytes], layout: Layout, name: str, needed: NDArray[np.bool_]
) -> Array:
    """Return a tensor of which only the opened leaves are filled in, the rest zero.

    Raises:
        ProofError: a leaf that holds a needed element was not opened.

    """
    entry = layout.entry(name)
    array = np.zeros(entry.shape, DTYPES[entry.dtype])
    for leaf in leaves_of(layout, name, needed):
        if leaf not in leaves:
            raise ProofError(f"leaf {leaf} of {name} is needed and was not opened")
        place = layout.locate(leaf).slices
        data = np.frombuffer(leaves[leaf], DTYPES[entry.dtype])
        array[place] = data.reshape(array[place].shape)
    return array
