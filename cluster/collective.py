"""Sum gradients over ranks through Ray's object store, in an order that is pinned.

All-to-all of shards, ordered binary tree by rank (NUMERICS 3), all-gather: each rank sends and
receives what a ring all-reduce would, and the sum's bits do not depend on who was first. The
tree is elementwise, so cutting the vector into shards changes no bit either.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cluster.errors import ActorLostError
from emulator_ext import pinned

Shard = NDArray[np.float32]
# What a shard answers to: round of the exchange, and which half of it.
Slot = tuple[int, str]

# A rank that dies is noticed by the driver at once; this is for one that hangs.
EXCHANGE_TIMEOUT_S: Final = 600.0
# The concurrency group of `deliver`: it runs beside the step that waits for it.
EXCHANGE_GROUP: Final = "exchange"


class Mailbox:
    """Shards that peers have delivered and nobody has collected yet."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._shards: dict[Slot, dict[int, Shard]] = {}
        self._arrived = threading.Condition()

    def deliver(self, slot: Slot, source: int, shard: Shard) -> None:
        """Keep a shard for `collect`, and wake it."""
        with self._arrived:
            self._shards.setdefault(slot, {})[source] = shard
            self._arrived.notify_all()

    def collect(self, slot: Slot, timeout: float = EXCHANGE_TIMEOUT_S) -> list[Shard]:
        """Wait for every rank's shard of a slot and return them in rank order.

        Raises:
            ActorLostError: some rank stayed silent.

        """
        with self._arrived:
            complete = self._arrived.wait_for(
                lambda: len(self._shards.get(slot, ())) == self._world, timeout
            )
            found = self._shards.pop(slot, {})
        if not complete:
            silent = sorted(set(range(self._world)) - found.keys())
            msg = f"ranks {silent} did not deliver their gradients within {timeout:.0f} s"
            raise ActorLostError(msg)
        return [found[rank] for rank in range(self._world)]


def shard_bounds(length: int, world: int) -> list[int]:
    """Return the world + 1 cuts of a vector into nearly equal shards."""
    return [length * rank // world for rank in range(world + 1)]


class Transport(Protocol):
    """Carries shards to the mailboxes of other ranks."""

    def send(self, peers: Iterable[int], slot: Slot, shard: Shard) -> None:
        """Deliver one shard to each of some other ranks."""


class ShardedSum:
    """The all-reduce of one rank.

    Args:
        rank: of this process.
        world: number of ranks.
        transport: reaches the others.
        mailbox: where what others send arrives.

    """

    def __init__(self, rank: int, world: int, transport: Transport, mailbox: Mailbox) -> None:
        self._rank = rank
        self._world = world
        self._others = [peer for peer in range(world) if peer != rank]
        self._transport = transport
        self._mailbox = mailbox
        self._round = 0

    def all_reduce(self, flat: Shard) -> Shard:
        """Return the pinned sum of all ranks' f32 [n]; every rank calls it in the same order."""
        scatter, gather = (self._round, "scatter"), (self._round, "gather")
        self._round += 1
        shards = [
            flat[start:stop] for start, stop in pairwise(shard_bounds(len(flat), self._world))
        ]
        for peer in self._others:
            self._transport.send([peer], scatter, shards[peer])
        parts = np.stack(self._exchange(scatter, shards[self._rank]))
        # With fewer elements than ranks some shards are empty.
        total = pinned.tree_sum(parts) if parts.size else parts[0]
        self._transport.send(self._others, gather, total)
        return np.concatenate(self._exchange(gather, total))

    def _exchange(self, slot: Slot, own: Shard) -> list[Shard]:
        self._mailbox.deliver(slot, self._rank, own)
        return self._mailbox.collect(slot)


class RayTransport:
    """Delivers by calling `deliver` of the other ranks' actors; large shards go by object store."""

    def __init__(self, actors: Sequence[Any], rank: int) -> None:
        self._actors = actors
        self._rank = rank

    def send(self, peers: Iterable[int], slot: Slot, shard: Shard) -> None:
        """See `Transport.send`; the shard is stored once for all."""
        import ray

        stored = ray.put(shard)
        for peer in peers:
            handle = self._actors[peer].deliver.options(concurrency_group=EXCHANGE_GROUP)
            handle.remote(slot, self._rank, stored)
