"""RFC 9162 trees, against the RFC's own recursion and published vectors."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.transcript.strategies import reference_root
from transcript.errors import ContractError, ProofError
from transcript.merkle import (
    EMPTY_ROOT,
    Tree,
    leaf_hash,
    node_hash,
    root_of,
    verify_consistency,
    verify_inclusion,
)

laws = settings(deadline=None, max_examples=100)
leaves = st.lists(st.binary(max_size=8), min_size=1, max_size=40)

# The leaves and roots that the Certificate Transparency implementations share as test vectors.
CT_LEAVES = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
CT_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def tree_of(items):
    """Hash leaves and build their tree."""
    return Tree(leaf_hash(item) for item in items)


def test_published_vectors():
    """The roots of the Certificate Transparency test leaves are the published ones."""
    tree = tree_of(CT_LEAVES)
    assert [tree.root(n).hex() for n in range(1, 9)] == CT_ROOTS
    assert EMPTY_ROOT.hex().startswith("e3b0c44298fc1c14")
    assert tree.root(0) == root_of([]) == EMPTY_ROOT


@laws
@given(leaves)
def test_roots_are_the_recursion_of_the_rfc(items):
    """Level-by-level, incremental and recursive roots agree for every size."""
    tree = tree_of(items)
    for size in range(len(items) + 1):
        root = reference_root(items[:size])
        assert tree.root(size) == root == root_of([leaf_hash(item) for item in items[:size]])


@laws
@given(leaves)
def test_every_inclusion_proof_verifies_only_where_it_belongs(items):
    """A proof verifies for its own leaf, index and size, and for no other index."""
    tree = tree_of(items)
    size = len(items)
    for index in range(size):
        proof = tree.inclusion_proof(index, size)
        verify_inclusion(tree.leaf(index), index, size, proof, tree.root())
        for other in range(size):
            if other != index and items[other] != items[index]:
                with pytest.raises(ProofError):
                    verify_inclusion(tree.leaf(index), other, size, proof, tree.root())


@laws
@given(leaves, st.data())
def test_every_consistency_proof_verifies(items, data):
    """A prefix is proved to be one; a changed prefix is not."""
    tree = tree_of(items)
    second = len(items)
    first = data.draw(st.integers(1, second))
    proof = tree.consistency_proof(first, second)
    verify_consistency(first, second, tree.root(first), tree.root(second), proof)
    with pytest.raises(ProofError):
        verify_consistency(first, second, leaf_hash(b"another"), tree.root(second), proof)


@laws
@given(leaves, st.data())
def test_damaged_proofs_are_refused(items, data):
    """One flipped bit, one hash more, one less, or a hash of another length: refused."""
    tree, size = tree_of(items), len(items)
    index = data.draw(st.integers(0, size - 1))
    proof = tree.inclusion_proof(index, size)
    damaged = [[*proof, bytes(32)], [bytes(32), *proof], [*proof, b"short"]]
    if proof:
        position = data.draw(st.integers(0, len(proof) - 1))
        flipped = bytes([proof[position][0] ^ 1]) + proof[position][1:]
        damaged += [proof[:-1], proof[1:], [*proof[:position], flipped, *proof[position + 1 :]]]
    for wrong in damaged:
        with pytest.raises(ProofError):
            verify_inclusion(tree.leaf(index), index, size, wrong, tree.root())


@laws
@given(leaves, st.data())
def test_damaged_consistency_proofs_are_refused(items, data):
    """The same for consistency proofs."""
    tree, second = tree_of(items), len(items)
    first = data.draw(st.integers(1, second))
    assume(first < second)
    proof = tree.consistency_proof(first, second)
    position = data.draw(st.integers(0, len(proof) - 1))
    flipped = bytes([proof[position][0] ^ 1]) + proof[position][1:]
    for wrong in (
        [*proof, bytes(32)], proof[:-1], proof[1:],
        [*proof[:position], flipped, *proof[position + 1 :]],
    ):  # fmt: skip
        with pytest.raises(ProofError):
            verify_consistency(first, second, tree.root(first), tree.root(), wrong)


def test_a_node_cannot_pass_for_a_leaf():
    """The concatenation of two hashes, taken as a leaf, does not hash to their parent."""
    left, right = leaf_hash(b"a"), leaf_hash(b"b")
    assert leaf_hash(left + right) != node_hash(left, right)
    with pytest.raises(ProofError):
        verify_inclusion(leaf_hash(left + right), 0, 1, [], node_hash(left, right))


def test_the_last_node_is_not_duplicated():
    """Three leaves and the same three with the last one twice have different roots."""
    three = [leaf_hash(x) for x in (b"a", b"b", b"c")]
    assert root_of(three) != root_of([*three, three[-1]])


@pytest.mark.parametrize(("index", "size"), [(-1, 1), (1, 1), (0, 0)])
def test_positions_outside_the_tree(index, size):
    """An index outside the size is refused before any hashing."""
    with pytest.raises(ProofError):
        verify_inclusion(leaf_hash(b""), index, size, [], leaf_hash(b""))


@pytest.mark.parametrize(("first", "second"), [(0, 1), (2, 1), (-1, 1)])
def test_sizes_that_prove_nothing(first, second):
    """The empty tree is a prefix of anything: a proof from it says nothing and is refused."""
    with pytest.raises(ProofError):
        verify_consistency(first, second, EMPTY_ROOT, EMPTY_ROOT, [])


def test_asking_a_tree_for_what_it_has_not():
    """Roots and proofs beyond the tree, and hashes of another length, break the contract."""
    tree = tree_of([b"a"])
    for ask in (
        lambda: tree.root(2), lambda: tree.leaf(1), lambda: tree.inclusion_proof(1, 1),
        lambda: tree.consistency_proof(0, 1), lambda: tree.append(b"short"),
    ):  # fmt: skip
        with pytest.raises(ContractError):
            ask()
