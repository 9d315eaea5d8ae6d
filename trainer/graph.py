"""The step graph: operators in order, and through which view each reads which value.

The graph depends on nothing but the configuration. Its document is canonical JSON (RFC 8785
rules, no floats: an f32 attribute is its bit pattern) and its digest, SHA-256 of that
document, is what a registration commits and every step leaf binds. Format:
docs/formats/graph.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from transcript import canonical
from transcript.layout import Layout

FORMAT = "bitwitness/step-graph/v1"
GEMM = "bitwitness::gemm"

# Operators whose f32 operands and results the arena holds: all products that attention and
# projections are made of.
PRODUCTS = frozenset({
    GEMM,
    *(f"bitwitness::int16_{name}" for name in ("scores", "mix", "dot", "blend")),
})  # fmt: skip

Kind = Literal["state", "batch", "constant", "scalars", "computed"]
DType = Literal["f32", "i32", "u16", "u8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One tensor of the step: contiguous, of a fixed shape, written once."""

    id: int
    name: str
    dtype: DType
    shape: tuple[int, ...]
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A view of a value, in elements: what an operator reads."""

    value: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class F32:
    """An f32 attribute by its bits, so that a document carries no float."""

    bits: int

    @classmethod
    def of(cls, value: float) -> F32:
        """Round to f32, once."""
        return cls(int(np.float32(value).view(np.uint32)))

    @property
    def value(self) -> float:
        """The exact value of the bits."""
        return float(np.uint32(self.bits).view(np.float32))


Argument = Ref | tuple[Ref, ...] | F32 | int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator call: `op` is a name of the pinned set or of the bit-safe list."""

    op: str
    arguments: tuple[Argument, ...]
    outputs: tuple[int, ...]

    def refs(self) -> Iterator[Ref]:
        """Yield every view that this node reads, in argument order."""
        for argument in self.arguments:
            if isinstance(argument, Ref):
                yield argument
            elif isinstance(argument, tuple):
                yield from argument


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """Values, nodes, and the roles of values.

    Attributes:
        values: by id.
        nodes: in execution order.
        state_after: value id of each state tensor after the step, in state order.
        metrics: metric name to value id.
        committed: ids of the values in the arena, in arena order: GEMM operands, GEMM
            outputs, reduced gradients, metrics.

    """

    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    state_after: tuple[int, ...]
    metrics: Mapping[str, int]
    committed: tuple[int, ...]

    def inputs(self, kind: Kind) -> list[Value]:
        """Return the input values of one kind, in committed order."""
        return [value for value in self.values if value.kind == kind]

    def layout(self, kind: Kind) -> Layout:
        """Return the layout of all inputs of one kind: state, batch or constant."""
        return Layout.build([(v.name, v.dtype, v.shape) for v in self.inputs(kind)])

    @cached_property
    def arena(self) -> Layout:
        """The layout of one rank's arena of one step."""
        chosen = [self.values[i] for i in self.committed]
        return Layout.build([(v.name, v.dtype, v.shape) for v in chosen])

    @cached_property
    def producers(self) -> dict[int, int]:
        """Value id to the index of the node that produces it."""
        return {out: index for index, node in enumerate(self.nodes) for out in node.outputs}

    @cached_property
    def last_use(self) -> dict[int, int]:
        """Value id to the index of the last node that reads it; absent if never read."""
        return {ref.value: index for index, node in enumerate(self.nodes) for ref in node.refs()}

    def document(self) -> dict[str, Any]:
        """Return the JSON document of docs/formats/graph.md."""
        return {
            "format": FORMAT,
            "values": [
                {"name": v.name, "dtype": v.dtype, "shape": list(v.shape), "kind": v.kind}
                for v in self.values
            ],
            "nodes": [
                {
                    "op": node.op,
                    "arguments": [_argument_document(a) for a in node.arguments],
                    "outputs": list(node.outputs),
                }
                for node in self.nodes
            ],
            "state_after": list(self.state_after),
            "metrics": dict(self.metrics),
            "committed": list(self.committed),
            "arena": self.arena.document(),
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical document, lower-case hex."""
        return hashlib.sha256(canonical.dumps(self.document())).hexdigest()


def _argument_document(argument: Argument) -> Any:
    match argument:
        case Ref():
            return {
                "value": argument.value,
                "shape": list(argument.shape),
                "stride": list(argument.stride),
                "offset": argument.offset,
            }
        case F32():
            return {"f32": f"{argument.bits:08x}"}
        case tuple():
            return [_argument_document(item) for item in argument]
        case _:
            return argument
