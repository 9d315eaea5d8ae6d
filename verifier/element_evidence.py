"""How well the arithmetic behind one element of a replayed step is known (see `evidence`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.config import NumericsConfig
from trainer.executor import run_node, view_of
from trainer.graph import GEMM, Node, Ref, StepGraph
from verifier.evidence import level, reaches_e_zero, table_row
from verifier.plausible import allowance, plausible
from verifier.tile import own_shape


class ElementEvidence:
    """Evidence level by operator and element of its output.

    Args:
        graph: the step graph.
        numerics: of the run.
        arena: the committed bytes of the rank, in the graph's arena layout.
        inputs: state before, batch, constants and scalars, by name.

    """

    def __init__(
        self,
        graph: StepGraph,
        numerics: NumericsConfig,
        arena: NDArray[np.uint8],
        inputs: Mapping[str, Tensor],
    ) -> None:
        self._graph, self._numerics = graph, numerics
        self._arena, self._inputs = arena, inputs
        self._unpacked: dict[str, Tensor] = {}

    def __call__(self, node: Node, index: tuple[int, ...]) -> str:
        """Return the level for one element of the node's output."""
        if node.op != GEMM:
            return "exact"
        found = level(self._numerics)
        if found != "recorded" or self._numerics.profile != "bf16":
            return found
        row = table_row(self._numerics)
        if row is not None and reaches_e_zero(*self._vectors(node, index), row):
            return "modelled"
        return found

    def plausible(
        self, node: Node, index: tuple[int, ...], committed: float, recomputed: float
    ) -> bool:
        """Whether hardware that differs from the model could have given a modelled element."""
        row = table_row(self._numerics)
        if row is None:
            return False
        a_K, b_K = self._vectors(node, index)
        allowed = allowance(a_K, b_K, self._numerics.profile, row)
        return plausible(committed, recomputed, allowed)

    def _vectors(
        self, node: Node, index: tuple[int, ...]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the row and the column, f32 [K], that one element of a product is made of."""
        left, right, *_ = node.refs()
        # a value may be declared in another shape than the product makes: the next reader's
        shape = self._graph.values[node.outputs[0]].shape
        flat = np.ravel_multi_index(index, shape)
        *batch, row, column = (int(i) for i in np.unravel_index(flat, own_shape(left, right)))
        a_MK, b_KN = self._matrix(left, batch), self._matrix(right, batch)
        return a_MK[row], b_KN[:, column]

    def _matrix(self, ref: Ref, batch: Iterable[int]) -> NDArray[np.float32]:
        """Return one matrix of a GEMM operand, f32 [rows, columns]."""
        matrix = view_of(ref, self._value(ref.value))
        for i in batch:
            matrix = matrix[i]
        array: NDArray[np.float32] = matrix.numpy()
        return array

    def _value(self, index: int) -> Tensor:
        """Return a value as committed, or else computed from what was committed."""
        value = self._graph.values[index]
        if value.name in self._graph.arena:
            return self._committed(value.name)
        if value.kind != "computed":
            return self._inputs[value.name]
        node = self._graph.nodes[self._graph.producers[index]]
        made = run_node(node, {ref.value: self._value(ref.value) for ref in node.refs()})
        return made[node.outputs.index(index)].view(value.shape)

    def _committed(self, name: str) -> Tensor:
        if name not in self._unpacked:
            if len(self._unpacked) > 1:  # one product's operands: its elements are asked in turn
                self._unpacked.clear()
            self._unpacked[name] = torch.from_numpy(self._graph.arena.unpack(self._arena, name))
        return self._unpacked[name]
