"""A rank's own re-check of a step, before anything of it is committed.

A processor can compute wrongly without any other sign ("silent data corruption"). So a few
blocks of a step's matrix products, drawn anew for every step, are computed a second time by
another route and compared bit for bit with what is about to be committed. What is read is the
arena itself, so a flip on the way into it counts too.

The draw depends on run, step and rank alone: a step that is executed again is looked at in the
same places. It is no defence against a trainer who lies, and is not meant to be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import emulator_ext
from emulator_ext.paths import paths, select_path
from trainer.config import NumericsConfig
from trainer.graph import Node, Ref, StepGraph
from transcript import canonical
from transcript.tiles import leaf_order

GEMM: Final = "bitwitness::gemm"
# Rows and columns of a block: the scalar path is the most independent and the slowest.
EDGE: Final = 8
_DOMAIN: Final = "bitwitness/recheck/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of one product's output: `rows` and `columns` of matrix number `matrix`."""

    node: int
    matrix: int
    rows: range
    columns: range


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongElement:
    """An element of the arena that its operator does not give when it is computed again."""

    node: int
    operator: str
    value: str
    index: tuple[int, ...]
    arena_bits: str
    recomputed_bits: str

    def evidence(self) -> dict[str, str]:
        """Return it as texts by name."""
        return {
            "node": str(self.node),
            "operator": self.operator,
            "value": self.value,
            "index": str(list(self.index)),
            "arena_bits": self.arena_bits,
            "recomputed_bits": self.recomputed_bits,
        }


class Recheck:
    """Draws and re-computes blocks of one rank's products.

    Args:
        graph: the step graph.
        numerics: of the run.
        products: how many blocks a step.
        run_id: the run.
        rank: whose arena.

    """

    def __init__(
        self, graph: StepGraph, numerics: NumericsConfig, *, products: int, run_id: str, rank: int
    ) -> None:
        self._graph, self._numerics = graph, numerics
        self._products, self._run_id, self._rank = products, run_id, rank
        self._nodes = [i for i, node in enumerate(graph.nodes) if node.op == GEMM]
        sizes = [_blocks(graph.values[graph.nodes[i].outputs[0]].shape) for i in self._nodes]
        self._ends = np.cumsum(sizes)
        # On the emulated device another code path than the one that the step ran on.
        self._path = paths()[0] if select_path(None) != select_path(paths()[0]) else paths()[-1]
        if numerics.device != "emulated":
            self._path = paths()[-1]

    def draw(self, step: int) -> list[Block]:
        """Return the blocks of a step; some may coincide."""
        total = int(self._ends[-1]) if len(self._ends) else 0
        if not total:
            return []
        return [self._block(number % total) for number in self._numbers(step)]

    def first_wrong(
        self, step: int, arena: Tensor, state: Mapping[str, Tensor]
    ) -> WrongElement | None:
        """Compute a step's blocks again.

        Args:
            step: which.
            arena: uint8 [arena bytes], where the device keeps it.
            state: before the step, f32 by name.

        """
        for block in self.draw(step):
            found = self._compare(block, arena, state)
            if found is not None:
                return found
        return None

    def _numbers(self, step: int) -> Iterator[int]:
        seed = canonical.dumps([_DOMAIN, self._run_id, step, self._rank])
        stream = hashlib.shake_256(seed).digest(16 * self._products)
        for start in range(0, len(stream), 16):
            yield int.from_bytes(stream[start : start + 16], "little")

    def _block(self, number: int) -> Block:
        place = int(np.searchsorted(self._ends, number, side="right"))
        node = self._nodes[place]
        inside = number - (int(self._ends[place - 1]) if place else 0)
        *_, rows, columns = self._graph.values[self._graph.nodes[node].outputs[0]].shape
        across = -(-columns // EDGE)
        matrix, inside = divmod(inside, -(-rows // EDGE) * across)
        top, left = (EDGE * i for i in divmod(inside, across))
        return Block(
            node=node,
            matrix=matrix,
            rows=range(top, min(top + EDGE, rows)),
            columns=range(left, min(left + EDGE, columns)),
        )

    def _compare(
        self, block: Block, arena: Tensor, state: Mapping[str, Tensor]
    ) -> WrongElement | None:
        node = self._graph.nodes[block.node]
        output = self._graph.values[node.outputs[0]]
        positions = _output_positions(output.shape, block)
        found = self._elements(output.id, positions, arena, state)
        try:
            again = self._product(node, block, arena, state)
        except emulator_ext.NonFiniteError:
            # the step met no NaN or infinity, so what now reads as one was flipped on its way here
            again = np.full(found.shape, np.nan, np.float32)
        differs = found.view(np.uint32) != again.view(np.uint32)
        if not differs.any():
            return None
        first = tuple(int(i) for i in np.argwhere(differs)[0])
        index = np.unravel_index(positions[first], output.shape)
        return WrongElement(
            node=block.node,
            operator=node.op,
            value=output.name,
            index=tuple(int(i) for i in index),
            arena_bits=f"{int(found.view(np.uint32)[first]):08x}",
            recomputed_bits=f"{int(again.view(np.uint32)[first]):08x}",
        )

    def _product(
        self, node: Node, block: Block, arena: Tensor, state: Mapping[str, Tensor]
    ) -> NDArray[np.float32]:
        left, right = list(node.refs())[:2]
        inner = range(left.shape[-1])
        a_MK, b_KN = (
            self._elements(ref.value, _view_positions(ref, block.matrix, *sides), arena, state)
            for ref, sides in ((left, (block.rows, inner)), (right, (inner, block.columns)))
        )
        numerics = self._numerics
        product: NDArray[np.float32] = emulator_ext.gemm(
            a_MK, b_KN, profile=numerics.profile, arch=numerics.arch, threads=1, path=self._path
        )
        return product

    def _elements(
        self,
        value: int,
        positions: NDArray[np.int64],
        arena: Tensor,
        state: Mapping[str, Tensor],
    ) -> NDArray[np.float32]:
        """Return elements of a value, given their positions in C order: f32, of their shape."""
        name, layout = self._graph.values[value].name, self._graph.arena
        if name in layout:
            entry = layout.entry(name)
            flat = arena[entry.offset : entry.offset + entry.bytes].view(torch.float32)
            positions = leaf_order(entry.shape, positions)
        else:
            flat = state[name].reshape(-1)
        where = torch.from_numpy(positions).to(flat.device)
        taken: NDArray[np.float32] = torch.take(flat, where).cpu().numpy()
        return taken


def _blocks(shape: tuple[int, ...]) -> int:
    """Return the number of blocks of a product's output."""
    *leading, rows, columns = shape
    return prod(leading) * -(-rows // EDGE) * -(-columns // EDGE)


def _output_positions(shape: tuple[int, ...], block: Block) -> NDArray[np.int64]:
    *_, rows, columns = shape
    row, column = np.ix_(block.rows, block.columns)
    positions: NDArray[np.int64] = (block.matrix * rows + row) * columns + column
    return positions


def _view_positions(ref: Ref, matrix: int, rows: range, columns: range) -> NDArray[np.int64]:
    """Return the positions in the base value, C order, of a block of one matrix of a view."""
    leading = np.unravel_index(matrix, ref.shape[:-2]) if ref.shape[:-2] else ()
    start = ref.offset + sum(int(i) * s for i, s in zip(leading, ref.stride, strict=False))
    row, column = np.ix_(rows, columns)
    positions: NDArray[np.int64] = start + row * ref.stride[-2] + column * ref.stride[-1]
    return positions
