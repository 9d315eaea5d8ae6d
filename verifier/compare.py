"""Comparing what was committed with what is computed again, bit by bit, where it happens.

A `Comparer` is the executor's sink: it gets each value as the operator made it, and hands back
the committed one, so that a later operator is judged on the inputs that it really had. One
wrong operator is then found where it is, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emulator_ext import pinned
from trainer.graph import Node, StepGraph, Value
from transcript.layout import Layout
from verifier.bits import Array, FirstDifference, first_difference
from verifier.step_report import MAX_DIFFERENCES, Difference

ALL_REDUCE = "bitwitness::all_reduce"

# Names how well the arithmetic behind one element is known: recorded, modelled or exact.
Evidence = Callable[[Node, tuple[int, ...]], str]


class Comparer:
    """The sink of one rank's replay.

    Args:
        graph: the step graph, derived by the auditor.
        arena: the committed bytes, whose root has been checked.
        rank: whose they are.
        evidence: how well an operator's numerics are known.

    """

    def __init__(
        self, graph: StepGraph, arena: NDArray[np.uint8], rank: int, evidence: Evidence
    ) -> None:
        self.graph, self._arena, self._rank = graph, arena, rank
        self._evidence = evidence
        self.differences: list[Difference] = []
        self.values = self.elements = self.differing = 0

    def __call__(self, value: Value, tensor: Tensor) -> Tensor:
        """Compare one value and return the committed one."""
        committed = self.graph.arena.unpack(self._arena, value.name)
        self.values += 1
        self.elements += committed.size
        self.note(value, committed, tensor.numpy())
        return torch.from_numpy(committed)

    def note(self, value: Value, committed: Array, recomputed: Array) -> None:
        """Count the difference between two versions of a value, and keep the first few."""
        found = first_difference(committed, recomputed)
        if found is None:
            return
        self.differing += found.differing
        if len(self.differences) < MAX_DIFFERENCES:
            self.differences.append(self._locate(value, found, committed.size))

    def _locate(self, value: Value, found: FirstDifference, elements: int) -> Difference:
        index = self.graph.producers[value.id]
        node = self.graph.nodes[index]
        reads = dict.fromkeys(self.graph.values[ref.value].name for ref in node.refs())
        return Difference(
            rank=self._rank,
            node=index,
            op=node.op,
            value=value.name,
            index=found.index,
            committed_bits=found.committed_bits,
            recomputed_bits=found.recomputed_bits,
            differing=found.differing,
            elements=elements,
            reads=tuple(reads),
            evidence=self._evidence(node, found.index),
        )


def compare_states(
    comparer: Comparer, layout: Layout, committed: NDArray[np.uint8], recomputed: NDArray[np.uint8]
) -> None:
    """Find which tensors of two packed states differ, and which operators made them."""
    graph = comparer.graph
    for entry, made in zip(layout.entries, graph.state_after, strict=True):
        value = graph.values[made]
        comparer.note(
            value, layout.unpack(committed, entry.name), layout.unpack(recomputed, entry.name)
        )


class CommittedSums:
    """The communicator of a replay: the pinned sum over what every rank committed.

    A rank's own addend is compared when its `Comparer` sees it; the others' are taken as
    committed here, and compared when those ranks are replayed.
    """

    def __init__(self, graph: StepGraph, arenas: Sequence[NDArray[np.uint8]]) -> None:
        self._graph, self._arenas = graph, arenas
        self._addends = [
            graph.values[next(node.refs()).value].name
            for node in graph.nodes
            if node.op == ALL_REDUCE
        ]
        self._next = 0

    def all_reduce(self, flat: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the sum over all ranks, f32 [n]; calls come in the graph's order."""
        if len(self._arenas) == 1:
            return flat
        name = self._addends[self._next]
        self._next += 1
        shards = [self._graph.arena.unpack(arena, name).reshape(-1) for arena in self._arenas]
        return pinned.tree_sum(np.stack(shards))
