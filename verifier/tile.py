"""One tile of a matrix product: what it reads, and whether it is what the product gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator_ext import gemm
from trainer.config import NumericsConfig
from trainer.graph import GEMM, Kind, Node, Ref, StepGraph, Value
from transcript.errors import ProofError
from transcript.layout import Layout
from transcript.tiles import TILE
from verifier.bits import FirstDifference, first_difference
from verifier.errors import ProofFileError
from verifier.evidence import level, reaches_e_zero, table_row
from verifier.openings import Indices, gather, places

# Two panels of this many columns and rows no longer fit into a proof file.
MAX_INNER: Final = 1 << 16

# Opened leaves by their number, of each byte range that an operand can lie in.
Opened = dict[str, dict[int, bytes]]
RANGES: Final = ("arena", "state", "state_after", "constants")


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
            made = [graph.values[out] for out in node.outputs]
            if node.op != GEMM or [value.name for value in made] != [place.name]:
                continue
            if made[0].dtype == "f32" and len(made[0].shape) >= 2:
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
        wanted: dict[str, set[int]] = {name: set() for name in RANGES}
        wanted["arena"].add(self.leaf)
        for panel in (panel for part in self._parts() for panel in (part.left, part.right)):
            leaves, _ = places(panel.layout, panel.name, panel.elements)
            wanted[panel.where] |= {*np.unique(leaves).tolist()}
        return {where: sorted(leaves) for where, leaves in wanted.items()}

    def judge(self, numerics: NumericsConfig, opened: Opened) -> FirstDifference:
        """Multiply the panels and return where the committed tile first differs.

        Raises:
            ProofFileError: it does not, or the arithmetic is only modelled there.
            ProofError: a leaf that is needed was not opened.
            EmulatorError: the product cannot be made of these operands.

        """
        if self.node.arguments[2:] != (numerics.profile, numerics.arch):
            raise ProofFileError("the product is not in the registered arithmetic")
        committed = self._committed(opened)
        product, parts = np.empty_like(committed), self._parts()
        for part in parts:
            a_MK, b_KN = part.left.read(opened), part.right.read(opened)
            product[part.rows, part.columns] = gemm(
                a_MK, b_KN, profile=numerics.profile, arch=numerics.arch, threads=1
            )
        found = first_difference(committed, product)
        if found is None:
            raise ProofFileError("the product has the committed bits: nothing is proved")
        part = next(part for part in parts if part.holds(found.index))
        if not _known(numerics, *part.vectors(found.index, opened)):
            raise ProofFileError("this arithmetic is known from a model only: nothing is proved")
        return found

    def _parts(self) -> list[_Part]:
        """Return the blocks of the product that this tile is made of."""
        left, right = _operands(self.graph, self.node)
        return [
            _Part(
                rows=rows,
                columns=columns,
                left=_Panel.of(self.graph, left, (*batch, row, slice(None))),
                right=_Panel.of(self.graph, right, (*batch, slice(None), column)),
            )
            for rows, columns, (*batch, row, column) in self._blocks(own_shape(left, right))
        ]

    def _blocks(self, own: tuple[int, ...]) -> Iterator[tuple[slice, slice, tuple[slice, ...]]]:
        """Yield rows and columns inside the tile, and which part of the product they are.

        Where a later product reads this one as another matrix, such as all heads side by side,
        it is committed as that one, and a row of the tile is cut where the product's rows end.
        """
        shape = self.graph.values[self.node.outputs[0]].shape
        rows, columns = self.slices[-2:]
        if own == shape:
            height, width = rows.stop - rows.start, columns.stop - columns.start
            yield slice(0, height), slice(0, width), self.slices
            return
        for line in range(rows.stop - rows.start):
            at = (*(part.start for part in self.slices[:-2]), rows.start + line, columns.start)
            first, done = int(np.ravel_multi_index(at, shape)), 0
            while done < columns.stop - columns.start:
                index = [int(i) for i in np.unravel_index(first + done, own)]
                count = min(own[-1] - index[-1], columns.stop - columns.start - done)
                block = (
                    *(slice(i, i + 1) for i in index[:-1]),
                    slice(index[-1], index[-1] + count),
                )
                yield slice(line, line + 1), slice(done, done + count), block
                done += count

    def _committed(self, opened: Opened) -> NDArray[np.float32]:
        place = self.graph.arena.locate(self.leaf)
        if self.leaf not in opened["arena"]:
            raise ProofError(f"leaf {self.leaf} of {place.name} is needed and was not opened")
        rows, columns = (part.stop - part.start for part in self.slices[-2:])
        return np.frombuffer(opened["arena"][self.leaf], "<f4").reshape(rows, columns)


def own_shape(left: Ref, right: Ref) -> tuple[int, ...]:
    """Return the shape in which a product of two views makes its output."""
    return (*left.shape[:-1], right.shape[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Rows and columns of a tile that are one block of a product, and what they are made of."""

    rows: slice
    columns: slice
    left: _Panel
    right: _Panel

    def holds(self, index: tuple[int, ...]) -> bool:
        """Whether an element of the tile lies in this block."""
        row, column = index
        rows, columns = (range(part.start, part.stop) for part in (self.rows, self.columns))
        return row in rows and column in columns

    def vectors(
        self, index: tuple[int, ...], opened: Opened
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the row and the column, f32 [K], of an element of the tile."""
        row, column = index[0] - self.rows.start, index[1] - self.columns.start
        return self.left.read(opened)[row], self.right.read(opened)[:, column]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """Rows or columns of one operand: elements `elements` of tensor `name` of a byte range."""

    where: str
    layout: Layout
    name: str
    elements: Indices

    @classmethod
    def of(cls, graph: StepGraph, ref: Ref, part: tuple[slice, ...]) -> _Panel:
        """Return a part of an operand, whose leading axes are cut to one element each."""
        where, layout, name = _place(graph, graph.values[ref.value])
        elements = np.full((1,) * len(part), ref.offset, np.int64)
        for axis, (cut, step) in enumerate(zip(part, ref.stride, strict=True)):
            along = np.arange(ref.shape[axis], dtype=np.int64)[cut] * step
            elements = elements + along.reshape(-1, *(1,) * (len(part) - axis - 1))
        return cls(
            where=where,
            layout=layout,
            name=name,
            elements=elements.reshape(elements.shape[-2:]),
        )

    def read(self, opened: Opened) -> NDArray[np.float32]:
        """Return the panel out of opened leaves, f32 [rows, columns]."""
        return gather(opened[self.where], self.layout, self.name, self.elements)


def _place(graph: StepGraph, value: Value) -> tuple[str, Layout, str]:
    """Return the byte range of a committed value, its layout, and the value's name there.

    Raises:
        ProofFileError: it is in none, or is not f32.

    """
    kinds: dict[Kind, str] = {"state": "state", "constant": "constants"}
    if value.name in graph.arena:
        where, layout, name = "arena", graph.arena, value.name
    elif value.kind in kinds:
        where, layout, name = kinds[value.kind], graph.layout(value.kind), value.name
    elif value.id in graph.state_after:
        where, layout = "state_after", graph.layout("state")
        name = layout.entries[graph.state_after.index(value.id)].name
    else:
        raise ProofFileError(f"the operand {value.name} is not committed")
    if layout.entry(name).dtype != "f32":
        raise ProofFileError(f"the operand {value.name} is not committed as f32")
    return where, layout, name


def _operands(graph: StepGraph, node: Node) -> tuple[Ref, Ref]:
    """Return a product's operands; ProofFileError if they are none of its output's size."""
    match node.arguments:
        case (Ref() as left, Ref() as right, str(), str()) if (
            min(len(left.shape), len(right.shape)) >= 2
        ):
            inner, elements = left.shape[-1], prod(graph.values[node.outputs[0]].shape)
            fits = right.shape[:-1] == (*left.shape[:-2], inner)
            if fits and prod(own_shape(left, right)) == elements and inner <= MAX_INNER:
                return left, right
    raise ProofFileError("the operands of this product do not fit its output")


def _known(numerics: NumericsConfig, a_K: NDArray[np.float32], b_K: NDArray[np.float32]) -> bool:
    row = table_row(numerics)
    floor = numerics.profile == "bf16" and row is not None and reaches_e_zero(a_K, b_K, row)
    return level(numerics) in {"recorded", "exact"} and not floor
