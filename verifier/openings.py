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
from transcript.layout import Layout
from transcript.leaves import leaf_hashes
from transcript.merkle import Tree, leaf_hash, verify_inclusion
from transcript.tiles import TILE, VECTOR_LEAF
from verifier.errors import ProofFileError

Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]


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


def places(layout: Layout, name: str, elements: Indices) -> tuple[Indices, Indices]:
    """Return in which leaf of a range elements of a tensor lie, and where inside of that leaf.

    Args:
        layout: of the byte range.
        name: the tensor.
        elements: positions in the tensor in C order, int64 of any shape.

    Returns:
        Leaf numbers and positions inside, both of the shape of `elements`.

    """
    entry = layout.entry(name)
    if len(entry.shape) < 2:
        leaf, inside = np.divmod(elements, VECTOR_LEAF)
        return leaf + entry.first_leaf, inside
    *_, rows, columns = entry.shape
    row, column = np.divmod(elements, columns)
    matrix, row = np.divmod(row, rows)
    *_, bands, tiles = entry.tiles
    leaf = (matrix * bands + row // TILE) * tiles + column // TILE
    width = np.minimum(columns - column // TILE * TILE, TILE)
    return leaf + entry.first_leaf, row % TILE * width + column % TILE


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


def gather(
    leaves: Mapping[int, bytes], layout: Layout, name: str, elements: Indices
) -> NDArray[np.float32]:
    """Return elements of an f32 tensor out of opened leaves, in the shape of `elements`.

    Raises:
        ProofError: a leaf that holds one of them was not opened.

    """
    leaf, inside = places(layout, name, elements)
    range_ = layout.leaf_range(name)
    opened = sorted(number for number in leaves if number in range_)
    numbers = np.array(opened, np.int64)
    position = np.searchsorted(numbers, leaf)
    missing = (position == len(numbers)) | (np.append(numbers, -1)[position] != leaf)
    if missing.any():
        number = int(leaf[missing].flat[0])
        raise ProofError(f"leaf {number} of {name} is needed and was not opened")
    data = [np.frombuffer(leaves[number], "<f4") for number in opened]
    starts = np.cumsum([0, *map(len, data[:-1])])
    found: NDArray[np.float32] = np.concatenate(data)[starts[position] + inside]
    return found
