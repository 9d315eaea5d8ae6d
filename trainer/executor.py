"""Run a step graph, node by node: the one engine of trainer and auditor.

A value that has a place in the arena passes through the sink as soon as it is computed,
and what the sink returns is what later nodes read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import trainer.ops  # registers torch.ops.bitwitness
from trainer.errors import GraphError
from trainer.graph import F32, Argument, Node, Ref, StepGraph, Value
from trainer.trace import BIT_SAFE, DTYPES

Sink = Callable[[Value, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step leaves: the state after by name, and the metrics, f32 [] each."""

    state: dict[str, Tensor]
    metrics: dict[str, Tensor]


def execute(
    graph: StepGraph,
    *,
    state: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    constants: Mapping[str, Tensor],
    scalars: Tensor,
    sink: Sink,
) -> StepResult:
    """Run the graph on contiguous tensors of the declared shapes.

    Raises:
        GraphError: an input is missing or has another shape or dtype than declared.
        emulator_ext.errors.NonFiniteError: an operator met or made NaN or Inf.

    """
    tensors = _bind(graph, {**state, **batch, **constants, "scalars": scalars})
    committed = set(graph.committed)
    keep = {*graph.state_after, *graph.metrics.values()}
    with torch.no_grad():
        for index, node in enumerate(graph.nodes):
            for value_id, tensor in zip(node.outputs, run_node(node, tensors), strict=True):
                shaped = tensor.view(graph.values[value_id].shape)
                kept = value_id in committed
                tensors[value_id] = sink(graph.values[value_id], shaped) if kept else shaped
            _release(graph, node, index, tensors, keep)
    names = [value.name for value in graph.inputs("state")]
    return StepResult(
        state={n: tensors[i] for n, i in zip(names, graph.state_after, strict=True)},
        metrics={name: tensors[i] for name, i in graph.metrics.items()},
    )


def run_node(node: Node, tensors: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
    """Run one node over the values it reads; return its outputs in order."""
    arguments = [_materialise(argument, tensors) for argument in node.arguments]
    result = _callable(node.op)(*arguments)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def view_of(ref: Ref, base: Tensor) -> Tensor:
    """Return the view of a contiguous base tensor that a reference describes."""
    return base.as_strided(ref.shape, ref.stride, ref.offset)


def _materialise(argument: Argument, tensors: Mapping[int, Tensor]) -> Any:
    match argument:
        case Ref():
            return view_of(argument, tensors[argument.value])
        case F32():
            return argument.value
        case tuple():
            return [view_of(ref, tensors[ref.value]) for ref in argument]
        case _:
            return argument


def _contiguous_clone(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _callable(op: str) -> Callable[..., Any]:
    if op == "aten::clone":
        return _contiguous_clone
    if op in BIT_SAFE:
        return BIT_SAFE[op]
    namespace, _, name = op.partition("::")
    if namespace == "bitwitness" and name in trainer.ops.PINNED:
        packet = getattr(torch.ops.bitwitness, name)
        return packet.default  # type: ignore[no-any-return]  # torch.ops is untyped
    msg = f"operator {op} is outside the pinned set and the bit-safe list"
    raise GraphError(msg)


def _bind(graph: StepGraph, named: Mapping[str, Tensor]) -> dict[int, Tensor]:
    tensors = {}
    for value in graph.values:
        if value.kind == "computed":
            continue
        tensor = named.get(value.name)
        dtype = DTYPES[value.dtype]
        if tensor is None or tuple(tensor.shape) != value.shape or tensor.dtype != dtype:
            found = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
            msg = f"input {value.name}: expected {value.dtype} {value.shape}, got {found}"
            raise GraphError(msg)
        tensors[value.id] = tensor.detach().contiguous()
    return tensors


def _release(
    graph: StepGraph, node: Node, index: int, tensors: dict[int, Tensor], keep: set[int]
) -> None:
    """Drop what no later node reads, so that a step holds few activations at once."""
    for value in {*(ref.value for ref in node.refs()), *node.outputs} - keep:
        if graph.last_use.get(value, -1) <= index:
            del tensors[value]
