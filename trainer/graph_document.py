"""Reading a step graph's document back, from whoever sent it and without torch.

What is accepted is exactly what `StepGraph.document` writes for a graph that could be executed:
canonical JSON; values that an earlier node or the step's input gave; views that stay inside
their values. So nobody who reads tensors through such a view reads beyond them. Whether the
graph is that of some configuration is not judged here: its digest is what a registration signs.
Format: docs/formats/graph.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer.errors import GraphError
from trainer.graph import F32, Argument, DType, Kind, Node, Ref, StepGraph, Value
from transcript import canonical
from transcript.errors import TranscriptError
from transcript.layout import MAX_BYTES, MAX_DIMS

# 2,048 layers take 20 MB; a graph of 16 layers takes a quarter of one.
MAX_GRAPH_BYTES: Final = 32 << 20

_Number = Annotated[int, Field(ge=0, le=MAX_BYTES)]
_Numbers = Annotated[tuple[_Number, ...], Field(max_length=MAX_DIMS, strict=False)]
_Text = Annotated[str, Field(min_length=1, max_length=200)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Value(_Section):
    name: _Text
    dtype: DType
    shape: _Numbers
    kind: Kind


class _Ref(_Section):
    value: _Number
    shape: _Numbers
    stride: _Numbers
    offset: _Number


class _F32(_Section):
    f32: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]


class _Node(_Section):
    op: _Text
    arguments: list[_Ref | list[_Ref] | _F32 | bool | int | str | None]
    outputs: list[_Number]


class _Document(_Section):
    format: Literal["bitwitness/step-graph/v1"]
    values: list[_Value]
    nodes: list[_Node]
    state_after: list[_Number]
    metrics: Mapping[_Text, _Number]
    committed: list[_Number]
    arena: dict[str, Any]


def parse_graph(data: bytes, digest: str, *, file: str = "") -> StepGraph:
    """Return the graph of a document.

    Args:
        data: the document.
        digest: SHA-256 that it must have, lower-case hex.
        file: its name, for messages.

    Raises:
        GraphError: another digest, too large, malformed, not canonical, or of a graph that
            could not be executed.

    """
    if len(data) > MAX_GRAPH_BYTES:
        raise _fault(f"larger than {MAX_GRAPH_BYTES} bytes", file)
    if hashlib.sha256(data).hexdigest() != digest:
        raise _fault(f"its digest is not {digest}", file)
    try:
        document = _Document.model_validate_json(data)
        graph = _graph(document)
        canonical_form = canonical.dumps(graph.document())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise _fault(f"{where}: {first['msg']}", file) from None
    except (GraphError, TranscriptError) as error:
        raise _fault(str(error), file) from None
    if canonical_form != data:
        raise _fault("not in canonical form, or its arena does not follow from its values", file)
    return graph


def _fault(message: str, file: str) -> GraphError:
    return GraphError(f"{file}: step graph: {message}" if file else f"step graph: {message}")


def _graph(document: _Document) -> StepGraph:
    values = tuple(
        Value(id=i, name=v.name, dtype=v.dtype, shape=v.shape, kind=v.kind)
        for i, v in enumerate(document.values)
    )
    graph = StepGraph(
        values=values,
        nodes=tuple(_node(node) for node in document.nodes),
        state_after=tuple(document.state_after),
        metrics=document.metrics,
        committed=tuple(document.committed),
    )
    _check(graph)
    return graph


def _node(node: _Node) -> Node:
    return Node(
        op=node.op,
        arguments=tuple(_argument(argument) for argument in node.arguments),
        outputs=tuple(node.outputs),
    )


def _argument(argument: object) -> Argument:
    match argument:
        case _Ref():
            return _ref(argument)
        case _F32():
            return F32(int(argument.f32, 16))
        case list():
            return tuple(_ref(item) for item in argument)
        case _:
            return argument  # type: ignore[return-value]  # what the model leaves is a scalar


def _ref(ref: _Ref) -> Ref:
    return Ref(value=ref.value, shape=ref.shape, stride=ref.stride, offset=ref.offset)


def _check(graph: StepGraph) -> None:
    """Check that names are unique and that each value is made once, before it is read."""
    if len({value.name for value in graph.values}) != len(graph.values):
        raise GraphError("two values have one name")
    made = {value.id for value in graph.values if value.kind != "computed"}
    for index, node in enumerate(graph.nodes):
        for ref in node.refs():
            if ref.value not in made:
                raise GraphError(f"node {index} reads value {ref.value}, which is not made yet")
            _check_view(ref, graph.values[ref.value], index)
        for out in node.outputs:
            if out in made or out >= len(graph.values):
                raise GraphError(f"node {index} makes value {out}, which it cannot")
            made.add(out)
    for out in (*graph.state_after, *graph.metrics.values(), *graph.committed):
        if out not in made:
            raise GraphError(f"value {out} is never made")


def _check_view(ref: Ref, value: Value, node: int) -> None:
    """Check that every element of a view is one of its value."""
    if len(ref.shape) != len(ref.stride):
        raise GraphError(f"node {node} reads {value.name} with a stride too many or too few")
    last = sum((n - 1) * step for n, step in zip(ref.shape, ref.stride, strict=True))
    if 0 not in ref.shape and ref.offset + last >= prod(value.shape):
        raise GraphError(f"node {node} reads {value.name} beyond its end")
