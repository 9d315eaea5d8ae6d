"""One tile of a matrix product: what it reads, and whether it is what the product gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator_ext import gemm
from trainer.config import NumericsConfig
from trainer.graph import Node, Ref, StepGraph
from transcript.layout import Layout
from transcript.tiles import TILE
from verifier.compare import FirstDifference, first_difference
from verifier.cost import GEMM
from verifier.errors import ProofFileError
from verifier.evidence import level, reaches_e_zero, table_row
from verifier.openings import Array, assemble, leaves_of

# Opened leaves of both byte ranges, "arena" and "state", by their number.
Opened = dict[str, dict[int, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A leaf of the arena that is a tile of a product's output; `slices` is its place there."""

    graph: StepGraph
    node: Node
    leaf: int
    output: str
    slices: tuple[slice, ...]

    @classmethod
    def of_leaf(cls, graph: StepGraph, leaf: int) -> Tile:
        """Return the tile that is one leaf of the arena.

        Raises:
            ProofFileError: there is no such leaf, or no product made it.

        """
        if not 0 <= leaf < graph.arena.leaf_count:
            raise ProofFileError(f"the arena has no leaf {leaf}")
        place = graph.arena.locate(leaf)
        for node in graph.nodes:
            if node.op == GEMM and graph.values[node.outputs[0]].name == place.name:
                return cls(
                    graph=graph, node=node, leaf=leaf, output=place.name, slices=place.slices
                )
        raise ProofFileError(f"{place.name} is not the output of a matrix product")

    @classmethod
    def of_element(cls, graph: StepGraph, name: str, index: tuple[int, ...]) -> Tile:
        """Return the tile that holds one element of a product's output."""
        place = (*index[:-2], index[-2] // TILE, index[-1] // TILE)
        return cls.of_leaf(graph, graph.arena.leaf_of(name, place))

    def element(self, found: FirstDifference) -> tuple[int, ...]:
        """Return the index in the whole output of an element of this tile."""
        inside = (*[0] * (len(self.slices) - 2), *found.index)
        return tuple(part.start + i for part, i in zip(self.slices, inside, strict=True))

    def leaves(self) -> dict[str, list[int]]:
        """Return what has to be opened, by byte range: both panels and the tile itself."""
        wanted: dict[str, set[int]] = {"arena": {self.leaf}, "state": set()}
        for side, ref in enumerate(self._operands()):
            where, layout, name = self._place(ref)
            wanted[where] |= {*leaves_of(layout, name, self._mask(ref, side))}
        return {where: sorted(leaves) for where, leaves in wanted.items()}

    def judge(self, numerics: NumericsConfig, opened: Opened) -> FirstDifference:
        """Multiply the panels and return where the committed tile first differs.

        Raises:
            ProofFileError: it does not, or the arithmetic is only modelled there.
            ProofError: a leaf that is needed was not opened.
            EmulatorError: the product cannot be made of these operands.

        """
        a_MK, b_KN = (self._panel(ref, side, opened) for side, ref in enumerate(self._operands()))
        product = gemm(a_MK, b_KN, profile=numerics.profile, arch=numerics.arch, threads=1)
        found = first_difference(self._committed(opened), product)
        if found is None:
            raise ProofFileError("the product has the committed bits: nothing is proved")
        if not _known(numerics, a_MK[found.index[0]], b_KN[:, found.index[1]]):
            raise ProofFileError("this arithmetic is known from a model only: nothing is proved")
        return found

    def _operands(self) -> tuple[Ref, Ref]:
        left, right, *_ = self.node.refs()
        return left, right

    def _place(self, ref: Ref) -> tuple[str, Layout, str]:
        """Return which byte range holds an operand, its layout, and the name there."""
        name = self.graph.values[ref.value].name
        if name in self.graph.arena:
            return "arena", self.graph.arena, name
        return "state", self.graph.layout("state"), name

    def _part(self, side: int) -> tuple[slice, ...]:
        """Return what this tile reads of the left (0) or right (1) operand: rows or columns."""
        *batch, rows, columns = self.slices
        return (*batch, rows, slice(None)) if side == 0 else (*batch, slice(None), columns)

    def _mask(self, ref: Ref, side: int) -> NDArray[np.bool_]:
        """Return which elements of the operand's value are read, in the value's shape."""
        mask = np.zeros(self.graph.values[ref.value].shape, np.bool_)
        _view(ref, mask)[self._part(side)] = True
        return mask

    def _panel(self, ref: Ref, side: int, opened: Opened) -> NDArray[np.float32]:
        where, layout, name = self._place(ref)
        base = assemble(opened[where], layout, name, self._mask(ref, side))
        panel = _view(ref, base)[self._part(side)]
        return np.ascontiguousarray(panel.reshape(panel.shape[-2:]), np.float32)

    def _committed(self, opened: Opened) -> Array:
        mask = np.zeros(self.graph.values[self.node.outputs[0]].shape, np.bool_)
        mask[self.slices] = True
        tile = assemble(opened["arena"], self.graph.arena, self.output, mask)[self.slices]
        return tile.reshape(tile.shape[-2:])


def _known(numerics: NumericsConfig, a_K: NDArray[np.float32], b_K: NDArray[np.float32]) -> bool:
    row = table_row(numerics)
    floor = numerics.profile == "bf16" and row is not None and reaches_e_zero(a_K, b_K, row)
    return level(numerics) in {"recorded", "exact"} and not floor


def _view(ref: Ref, base: Array) -> Array:
    flat = base.reshape(-1)[ref.offset :]
    strides = tuple(step * flat.itemsize for step in ref.stride)
    return np.lib.stride_tricks.as_strided(flat, ref.shape, strides)
