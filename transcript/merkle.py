"""Merkle trees of RFC 9162, section 2.1, over SHA-256.

A leaf is hashed as SHA-256(0x00 || leaf) and a node as SHA-256(0x01 || left || right), so that
neither can pass for the other; a tree of n leaves splits at the largest power of two below n and
never duplicates a node. Proofs are lists of 32-byte hashes; their length follows from the leaf's
index and the tree's size, and a proof of any other length is refused.

`Tree` is the append-only form: it keeps every complete subtree, so that a root or a proof for any
size up to the present one takes O(log^2 n) look-ups and O(log n) hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from transcript.errors import ContractError, ProofError

LEAF_PREFIX: Final = b"\x00"
NODE_PREFIX: Final = b"\x01"
HASH_BYTES: Final = 32
EMPTY_ROOT: Final = sha256(b"").digest()


def leaf_hash(data: bytes | memoryview) -> bytes:
    """Return MTH({data}): the hash of one leaf."""
    state = sha256(LEAF_PREFIX)
    state.update(data)
    return state.digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an interior node over its two children."""
    return sha256(NODE_PREFIX + left + right).digest()


def root_of(hashes: Sequence[bytes]) -> bytes:
    """Return the tree's root from its leaf hashes in order.

    Pairing level by level and promoting an odd last node gives RFC 9162's tree: its left
    subtrees are the complete ones.
    """
    if not hashes:
        return EMPTY_ROOT
    level = list(hashes)
    while len(level) > 1:
        odd = level[-1:] if len(level) % 2 else []
        nodes = iter(level)
        pairs = zip(nodes, nodes, strict=False)
        # inlined: a call of node_hash would take as long as the hash itself
        level = [sha256(b"\x01" + left + right).digest() for left, right in pairs] + odd
    return level[0]


class Tree:
    """An append-only tree over leaf hashes, with proofs for its present and all earlier sizes."""

    __slots__ = ("_levels",)

    def __init__(self, hashes: Iterable[bytes] = ()) -> None:
        # _levels[k][i] is the root of the complete subtree over leaves [i * 2^k, (i + 1) * 2^k)
        self._levels: list[list[bytes]] = [[]]
        for digest in hashes:
            self.append(digest)

    def __len__(self) -> int:
        return len(self._levels[0])

    def append(self, digest: bytes) -> int:
        """Append one leaf hash (32 bytes) and return its index."""
        if len(digest) != HASH_BYTES:
            raise ContractError(f"a leaf hash has {HASH_BYTES} bytes, not {len(digest)}")
        index = len(self)
        self._levels[0].append(digest)
        level = 0
        while len(self._levels[level]) % 2 == 0:
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._levels[level + 1].append(node_hash(*self._levels[level][-2:]))
            level += 1
        return index

    def leaf(self, index: int) -> bytes:
        """Return the hash of leaf `index`."""
        self._check(index < len(self) and index >= 0, f"leaf {index}")
        return self._levels[0][index]

    def root(self, size: int | None = None) -> bytes:
        """Return the root over the first `size` leaves, all of them by default."""
        size = len(self) if size is None else size
        self._check(0 <= size <= len(self), f"size {size}")
        return self._subtree(0, size) if size else EMPTY_ROOT

    def inclusion_proof(self, index: int, size: int) -> list[bytes]:
        """Return PATH(index, D[size]), RFC 9162 2.1.3.1."""
        self._check(0 <= index < size <= len(self), f"leaf {index} in a tree of {size}")
        start, end, proof = 0, size, []
        while end - start > 1:
            middle = start + _split(end - start)
            if index < middle:
                proof.append(self._subtree(middle, end))
                end = middle
            else:
                proof.append(self._subtree(start, middle))
                start = middle
        return proof[::-1]

    def consistency_proof(self, first: int, second: int) -> list[bytes]:
        """Return PROOF(first, D[second]), RFC 9162 2.1.4.1."""
        self._check(0 < first <= second <= len(self), f"sizes {first} and {second}")
        start, end, proof = 0, second, []
        while first != end:
            middle = start + _split(end - start)
            if first <= middle:
                proof.append(self._subtree(middle, end))
                end = middle
            else:
                proof.append(self._subtree(start, middle))
                start = middle
        # the verifier knows the first root itself, so only another subtree is told
        return ([] if start == 0 else [self._subtree(start, end)]) + proof[::-1]

    def _subtree(self, start: int, end: int) -> bytes:
        """Return the root over leaves [start, end), where start is aligned to the split above."""
        size = end - start
        if size & (size - 1) == 0:
            return self._levels[size.bit_length() - 1][start // size]
        middle = start + _split(size)
        return node_hash(self._subtree(start, middle), self._subtree(middle, end))

    def _check(self, ok: bool, what: str) -> None:  # noqa: FBT001 - a private assertion
        if not ok:
            raise ContractError(f"no {what} in a tree of {len(self)} leaves")


def verify_inclusion(
    digest: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> None:
    """Check that the leaf hash stands at `index` of the tree of `size` with `root`.

    Raises:
        ProofError: it does not, or the proof's length does not follow from index and size.

    """
    if not 0 <= index < size:
        raise ProofError(f"no leaf {index} in a tree of {size} leaves")
    _check_hashes([digest, root, *proof])
    node, last, computed, rest = index, size - 1, digest, list(proof)
    while last > 0:
        # an even node that is also the last one has no sibling: it is promoted
        if node % 2 or node < last:
            sibling = _take(rest)
            computed = node_hash(sibling, computed) if node % 2 else node_hash(computed, sibling)
        node, last = node // 2, last // 2
    _expect(computed, root, rest, f"leaf {index} of {size}")


def verify_consistency(
    first: int, second: int, first_root: bytes, second_root: bytes, proof: Sequence[bytes]
) -> None:
    """Check that the tree of `first` leaves is a prefix of the tree of `second` (RFC 9162 2.1.4.2).

    Raises:
        ProofError: it is not, or the proof's length does not follow from the sizes.

    """
    if not 0 < first <= second:
        raise ProofError(f"sizes {first} and {second} cannot be proved consistent")
    _check_hashes([first_root, second_root, *proof])
    rest = list(proof)
    if first == second:
        _expect(first_root, second_root, rest, f"consistency of {first} with itself")
        return
    node, last = first - 1, second - 1
    while node % 2:
        node, last = node // 2, last // 2
    # a first tree that is one complete subtree is its own starting point
    old = new = first_root if node == 0 else _take(rest)
    while last > 0:
        if node % 2:
            sibling = _take(rest)
            old, new = node_hash(sibling, old), node_hash(sibling, new)
        elif node < last:
            new = node_hash(new, _take(rest))
        node, last = node // 2, last // 2
    _expect(old, first_root, rest, f"consistency of {first} with {second}: first root")
    _expect(new, second_root, rest, f"consistency of {first} with {second}: second root")


def _split(size: int) -> int:
    """Return the largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def _check_hashes(hashes: Sequence[bytes]) -> None:
    if any(len(item) != HASH_BYTES for item in hashes):
        raise ProofError(f"a proof holds hashes of {HASH_BYTES} bytes only")


def _take(rest: list[bytes]) -> bytes:
    if not rest:
        raise ProofError("the proof is too short for its index and size")
    return rest.pop(0)


def _expect(computed: bytes, root: bytes, rest: Sequence[bytes], what: str) -> None:
    if rest:
        raise ProofError(f"the proof is {len(rest)} hashes too long for its index and size")
    if computed != root:
        raise ProofError(
            f"{what}: the proof leads to another root",
            evidence={"computed": computed.hex(), "expected": root.hex()},
        )
