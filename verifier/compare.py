"""Comparing what was committed with what is computed again, bit by bit, where it happens.

A `Comparer` is the executor's sink: it gets each value as the operator made it, and hands back
the committed one, so that a later operator is judged on the inputs that it really had. One
wrong operator is then found where it is, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emulator_ext import pinned
from trainer.graph import Node, StepGraph, Value
from transcript.layout import Layout
from verifier.bits import Array, FirstDifference, differing, element_bits, first_difference
from verifier.step_report import MAX_DIFFERENCES, Difference

ALL_REDUCE = "bitwitness::all_reduce"

# Names how well the arithmetic behind one element is known: recorded, modelled or exact.
Evidence = Callable[[Node, tuple[int, ...]], str]
# Whether hardware could have given the first number where the model gives the second.
Plausible = Callable[[Node, tuple[int, ...], float, float], bool]

DECISIVE = frozenset({"exact", "recorded", "implausible"})
# Of a value whose first difference decides nothing: the greatest, and as many evenly spaced.
_LOOKED_AT = 512


class Comparer:
    """The sink of one rank's replay.

    Args:
        graph: the step graph, derived by the auditor.
        arena: the committed bytes, whose root has been checked.
        rank: whose they are.
        evidence: how well an operator's numerics are known.
        plausible: judges differences that `evidence` calls modelled; all are by default.

    """

    def __init__(
        self,
        graph: StepGraph,
        arena: NDArray[np.uint8],
        rank: int,
        evidence: Evidence,
        plausible: Plausible | None = None,
    ) -> None:
        self.graph, self._arena, self._rank = graph, arena, rank
        self._evidence, self._plausible = evidence, plausible
        self._decisive: list[Difference] = []
        self._others: list[Difference] = []
        self.values = self.elements = self.differing = 0

    @property
    def differences(self) -> list[Difference]:
        """The first few values that differ, in execution order: those that decide go first.

        So nobody can hide a false value behind others about which nothing is known.
        """
        return [*self._decisive, *self._others][:MAX_DIFFERENCES]

    def __call__(self, value: Value, tensor: Tensor) -> Tensor:
        """Compare one value and return the committed one."""
        committed = self.graph.arena.unpack(self._arena, value.name)
        self.values += 1
        self.elements += committed.size
        self.note(value, committed, tensor.numpy())
        return torch.from_numpy(committed)

    def note(self, value: Value, committed: Array, recomputed: Array) -> FirstDifference | None:
        """Count the difference between two versions of a value, if any, and keep the first few."""
        found = first_difference(committed, recomputed)
        if found is None:
            return None
        self.differing += found.differing
        if len(self._decisive) < MAX_DIFFERENCES:
            self._keep(self._judge(value, found, committed, recomputed))
        return found

    def _keep(self, difference: Difference) -> None:
        if difference.evidence in DECISIVE:
            self._decisive.append(difference)
        elif len(self._others) < MAX_DIFFERENCES:
            self._others.append(difference)

    def _judge(
        self, value: Value, found: FirstDifference, committed: Array, recomputed: Array
    ) -> Difference:
        """Return the first element that decides, if the very first does not; else that one."""
        first = self._locate(value, found, committed, recomputed)
        if first.evidence in DECISIVE or found.differing == 1:
            return first
        for index in _worth_a_look(committed, recomputed):
            bits = (element_bits(array, index) for array in (committed, recomputed))
            committed_bits, recomputed_bits = bits
            here = FirstDifference(
                index=index,
                committed_bits=committed_bits,
                recomputed_bits=recomputed_bits,
                differing=found.differing,
            )
            other = self._locate(value, here, committed, recomputed)
            if other.evidence in DECISIVE:
                return other
        return first

    def _locate(
        self, value: Value, found: FirstDifference, committed: Array, recomputed: Array
    ) -> Difference:
        index = self.graph.producers[value.id]
        node = self.graph.nodes[index]
        reads = dict.fromkeys(self.graph.values[ref.value].name for ref in node.refs())
        evidence = self._evidence(node, found.index)
        if evidence == "modelled" and self._plausible is not None:
            pair = (float(array[found.index]) for array in (committed, recomputed))
            if not self._plausible(node, found.index, *pair):
                evidence = "implausible"
        return Difference(
            rank=self._rank,
            node=index,
            op=node.op,
            value=value.name,
            index=found.index,
            committed_bits=found.committed_bits,
            recomputed_bits=found.recomputed_bits,
            differing=found.differing,
            elements=committed.size,
            reads=tuple(reads),
            evidence=evidence,
        )


def _worth_a_look(committed: Array, recomputed: Array) -> Iterator[tuple[int, ...]]:
    """Yield differing elements: those that differ most, then others from everywhere."""
    differs = differing(committed, recomputed)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(committed.astype(np.float64) - recomputed.astype(np.float64))
    apart = np.nan_to_num(apart.reshape(-1)[differs], nan=np.inf)
    most = differs[np.argsort(-apart, kind="stable")[:_LOOKED_AT]]
    spaced = differs[:: max(len(differs) // _LOOKED_AT, 1)][:_LOOKED_AT]
    for position in dict.fromkeys([*most.tolist(), *spaced.tolist()]):
        yield tuple(int(i) for i in np.unravel_index(position, committed.shape))


def compare_states(
    comparer: Comparer, layout: Layout, committed: NDArray[np.uint8], recomputed: NDArray[np.uint8]
) -> str:
    """Find which tensors of two packed states differ, and which operators made them.

    Returns:
        The first such tensor and element, in words; empty if none differs.

    """
    graph, first = comparer.graph, ""
    for entry, made in zip(layout.entries, graph.state_after, strict=True):
        a, b = (layout.unpack(packed, entry.name) for packed in (committed, recomputed))
        found = comparer.note(graph.values[made], a, b)
        if found is not None and not first:
            first = f"{entry.name}{list(found.index)}: {a[found.index]}, not {b[found.index]}"
    return first


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
