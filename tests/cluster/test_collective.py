from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cluster.collective import Mailbox, Shard, ShardedSum, Slot, shard_bounds
from cluster.errors import ActorLostError
from emulator_ext import pinned


class Threads:
    """A transport between ranks that are threads of one process."""

    def __init__(self, mailboxes: list[Mailbox], rank: int) -> None:
        self._mailboxes = mailboxes
        self._rank = rank
        self.sent = 0

    def send(self, peers: Iterable[int], slot: Slot, shard: Shard) -> None:
        """Deliver at once, and count the bytes."""
        for peer in peers:
            self.sent += shard.nbytes
            self._mailboxes[peer].deliver(slot, self._rank, shard)


def all_reduce(vectors: list[list[NDArray[np.float32]]]) -> tuple[list[list[Shard]], list[int]]:
    """Sum vectors[round][rank] over ranks, every rank in a thread; return sums and bytes sent."""
    world = len(vectors[0])
    mailboxes = [Mailbox(world) for _ in range(world)]
    transports = [Threads(mailboxes, rank) for rank in range(world)]

    def rank_work(rank: int) -> list[Shard]:
        total = ShardedSum(rank, world, transports[rank], mailboxes[rank])
        return [total.all_reduce(of_round[rank]) for of_round in vectors]

    with ThreadPoolExecutor(world) as pool:
        sums = list(pool.map(rank_work, range(world)))
    return sums, [transport.sent for transport in transports]


@given(
    world=st.integers(1, 5),
    length=st.integers(1, 40),
    rounds=st.integers(1, 3),
    seed=st.integers(0),
)
def test_sharded_sum_is_the_pinned_tree(world: int, length: int, rounds: int, seed: int) -> None:
    """Every rank gets, bit for bit, the ordered binary tree over all ranks' vectors."""
    random = np.random.default_rng(seed)
    shape = (rounds, world, length)
    scale = 2.0 ** random.integers(-20, 20, shape)
    values = (random.standard_normal(shape) * scale).astype(np.float32)
    sums, _ = all_reduce([list(of_round) for of_round in values])
    for index, of_round in enumerate(values):
        expected = pinned.tree_sum(of_round).view(np.uint32)
        for rank in range(world):
            assert np.array_equal(sums[rank][index].view(np.uint32), expected)


def test_volume_is_a_rings() -> None:
    """Each rank sends 2 (W - 1) / W of the vector, as a ring all-reduce does."""
    world, length = 4, 4096
    values = [np.ones(length, np.float32) for _ in range(world)]
    _, sent = all_reduce([values])
    assert sent == [2 * (world - 1) * length // world * 4] * world


@given(length=st.integers(0, 10_000), world=st.integers(1, 64))
def test_shards_cover_the_vector(length: int, world: int) -> None:
    """The cuts go from 0 to the end, ascending, and no shard is longer than another by two."""
    cuts = shard_bounds(length, world)
    sizes = np.diff(cuts)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, length, world + 1)
    assert sizes.min() >= 0
    assert sizes.max() - sizes.min() <= 1


def test_silent_rank_is_named() -> None:
    """A rank that delivers nothing is an error that names it, not a wait for ever."""
    mailbox = Mailbox(3)
    mailbox.deliver((0, "scatter"), 1, np.zeros(2, np.float32))
    with pytest.raises(ActorLostError, match=r"ranks \[0, 2\]"):
        mailbox.collect((0, "scatter"), timeout=0.01)
