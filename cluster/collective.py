"""Sum gradients over ranks through Ray's object store, in an order that is pinned.

All-to-all of shards, ordered binary tree by rank (NUMERICS 3), all-gather: each rank sends and
receives what a ring all-reduce would, and the sum's bits do not depend on who was first. The
tree is elementwise, so cutting the vector into shards changes no bit either.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cluster.errors import ActorLostError
from emulator_ext import pinned

Shard = NDArray[np.float32]
# What a shard answers to: round of the exchange, and which half of it.
Slot = tuple[int, str]

# A rank that dies is noticed by the driver at once; this is for one that hangs.
EXCHANGE_TIMEOUT_S: Final = 600.0


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


class RayCommunicator:
    """The all-reduce of one trainer actor.

    Args:
        rank: this actor's rank.
        peers: the actor handles of all ranks, in rank order; its own is never called.
        mailbox: where this actor's `deliver` method puts what peers send.

    """

    def __init__(self, rank: int, peers: Sequence[Any], mailbox: Mailbox) -> None:
        self._rank = rank
        self._peers = peers
        self._mailbox = mailbox
        self._round = 0

    def all_reduce(self, flat: Shard) -> Shard:
        """Return the pinned sum of all ranks' f32 [n]; every rank calls it in the same order."""
        scatter, gather = (self._round, "scatter"), (self._round, "gather")
        self._round += 1
        cuts = shard_bounds(len(flat), len(self._peers))
        for peer, (start, stop) in enumerate(pairwise(cuts)):
            self._send(peer, scatter, flat[start:stop])
        total = pinned.tree_sum(np.stack(self._mailbox.collect(scatter)))
        self._broadcast(gather, total)
        return np.concatenate(self._mailbox.collect(gather))

    def _broadcast(self, slot: Slot, shard: Shard) -> None:
        import ray

        stored = ray.put(shard)
        for peer in range(len(self._peers)):
            self._send(peer, slot, shard if peer == self._rank else stored)

    def _send(self, peer: int, slot: Slot, shard: Any) -> None:
        if peer == self._rank:
            self._mailbox.deliver(slot, self._rank, shard)
            return
        handle = self._peers[peer].deliver.options(concurrency_group=EXCHANGE_GROUP)
        handle.remote(slot, self._rank, shard)


# Deliveries run beside the step that waits for them.
EXCHANGE_GROUP: Final = "exchange"
