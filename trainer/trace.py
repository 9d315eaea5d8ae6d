"""Derive the step graph by running the step on fake tensors under a dispatch mode.

Every operator that torch dispatches, forward and backward, passes through the mode. Pinned
operators (namespace `bitwitness`) and a short list of bit-safe torch operators become
nodes; views are folded into the references of the nodes that read them; everything else is
refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.config import RunConfig
from trainer.constants import SCALAR_NAMES, step_constants
from trainer.errors import GraphError
from trainer.graph import (
    F32,
    GEMM,
    PRODUCTS,
    Argument,
    DType,
    Kind,
    Node,
    Ref,
    StepGraph,
    Value,
)
from trainer.step import batch_shapes, state_shapes, training_step

_aten = torch.ops.aten

# Same storage, other strides, or a question about metadata: no arithmetic, so no node.
VIEWS = frozenset({
    torch.ops.prim.device.default,
    _aten.alias.default, _aten.detach.default, _aten.expand.default, _aten.permute.default,
    _aten.select.int, _aten.slice.Tensor, _aten.squeeze.dim, _aten.t.default,
    _aten.transpose.int, _aten.unbind.int, _aten.unsqueeze.default, _aten.view.default,
    _aten._unsafe_view.default,
})  # fmt: skip

# torch's own kernels whose every output bit IEEE 754 or copying fixes (NUMERICS 3).
BIT_SAFE: Mapping[str, Callable[..., Tensor]] = {
    "aten::add": torch.add,
    "aten::mul": torch.mul,
    "aten::cat": torch.cat,
    "aten::stack": torch.stack,
    "aten::clone": torch.clone,
}

DTYPES: Mapping[DType, torch.dtype] = {
    "f32": torch.float32,
    "i32": torch.int32,
    "u16": torch.uint16,
    "u8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Tensors = Mapping[str, Tensor]
Declared = Mapping[str, tuple[DType, Sequence[int]]]
# Takes state, batch, constants and scalars by name; returns the state after and the metrics.
Step = Callable[[Tensors, Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]


def derive_graph(config: RunConfig) -> StepGraph:
    """Return the step graph of a configuration; needs no data and allocates none.

    Raises:
        GraphError: the step uses an operator outside the pinned and the bit-safe set.

    """
    constants = step_constants(config.model, config.train.world)
    return trace_step(
        lambda state, batch, fixed, scalars: training_step(
            config, state, batch, fixed, scalars["scalars"]
        ),
        state={name: ("f32", shape) for name, shape in state_shapes(config).items()},
        batch={name: ("i32", shape) for name, shape in batch_shapes(config).items()},
        constants={name: ("f32", array.shape) for name, array in constants.items()},
        scalars={"scalars": ("f32", (len(SCALAR_NAMES),))},
        world=config.train.world,
    )


def trace_step(
    step: Step,
    *,
    state: Declared,
    batch: Declared,
    constants: Declared,
    scalars: Declared,
    world: int = 1,
) -> StepGraph:
    """Return the graph of any step over inputs of given dtypes and shapes.

    Raises:
        GraphError: the step uses an operator outside the pinned and the bit-safe set.

    """
    with FakeTensorMode():
        tracer = _Tracer()
        inputs = [
            tracer.inputs("state", state),
            tracer.inputs("batch", batch),
            tracer.inputs("constant", constants),
            tracer.inputs("scalars", scalars),
        ]
        with tracer:
            after, metrics = step(*inputs)
        return tracer.finish(list(after.values()), metrics, world)


class _Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Records each dispatched operator against the storages it reads and writes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._values: list[Value] = []
        self._nodes: list[Node] = []
        self._by_storage: dict[int, int] = {}
        # Keeps storages alive: a freed one could lend its address to another value.
        self._alive: list[Tensor] = []

    def inputs(self, kind: Kind, declared: Declared) -> dict[str, Tensor]:
        """Declare inputs of one kind as fake tensors."""
        tensors = {
            name: torch.empty(tuple(shape), dtype=DTYPES[dtype])
            for name, (dtype, shape) in declared.items()
        }
        for name, tensor in tensors.items():
            self._declare(tensor, name, kind)
        return tensors

    def finish(
        self, state_after: Sequence[Tensor], metrics: Mapping[str, Tensor], world: int
    ) -> StepGraph:
        """Close the trace: choose what the arena holds and return the graph."""
        named = {name: self._whole(tensor) for name, tensor in metrics.items()}
        after = tuple(self._whole(tensor) for tensor in state_after)
        shapes = _gemm_shapes(self._values, self._nodes)
        return StepGraph(
            values=tuple(replace(v, shape=shapes.get(v.id, v.shape)) for v in self._values),
            nodes=tuple(self._nodes),
            state_after=after,
            metrics=named,
            committed=_committed(self._values, self._nodes, {*after}, named, world),
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one operator on fake tensors and record it."""
        result = func(*args, **(kwargs or {}))
        if func in VIEWS:
            return result
        name = func._schema.name
        if func.namespace != "bitwitness" and not _bit_safe(func, args, kwargs or {}):
            msg = f"operator {func} is outside the pinned set and the bit-safe list"
            raise GraphError(msg)
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        arguments = tuple(self._argument(name, a) for a in args)
        first = len(self._values)
        index, short = len(self._nodes), name.split("::")[1]
        for position, tensor in enumerate(outputs):
            suffix = f".{position}" if len(outputs) > 1 else ""
            self._declare(tensor, f"{index:04d}.{short}{suffix}", "computed")
        ids = tuple(range(first, len(self._values)))
        self._nodes.append(Node(op=name, arguments=arguments, outputs=ids))
        return result

    def _declare(self, tensor: Tensor, name: str, kind: Kind) -> None:
        storage = tensor.untyped_storage()._cdata
        if storage in self._by_storage or not tensor.is_contiguous() or tensor.storage_offset():
            msg = f"value {name} is not a fresh contiguous tensor"
            raise GraphError(msg)
        self._by_storage[storage] = len(self._values)
        self._alive.append(tensor)
        self._values.append(
            Value(
                id=len(self._values),
                name=name,
                dtype=_NAMES[tensor.dtype],
                shape=tuple(tensor.shape),
                kind=kind,
            )
        )

    def _ref(self, op: str, tensor: Tensor) -> Ref:
        value = self._by_storage.get(tensor.untyped_storage()._cdata)
        if value is None:
            msg = f"operator {op} reads a tensor that no operator or input of the step produced"
            raise GraphError(msg)
        return Ref(
            value=value,
            shape=tuple(tensor.shape),
            stride=tuple(tensor.stride()),
            offset=int(tensor.storage_offset()),
        )

    def _whole(self, tensor: Tensor) -> int:
        ref = self._ref("output", tensor)
        if ref.shape != self._values[ref.value].shape or ref.offset:
            msg = f"output {self._values[ref.value].name} is a part of a value, not a value"
            raise GraphError(msg)
        return ref.value

    def _argument(self, op: str, argument: Any) -> Argument:
        match argument:
            case Tensor():
                return self._ref(op, argument)
            case list() | tuple():
                return tuple(self._ref(op, tensor) for tensor in argument)
            case float():
                return F32.of(argument)
            case bool() | int() | str() | None:
                return argument
            case _:
                msg = f"operator {op}: argument {argument!r} has no place in a graph"
                raise GraphError(msg)


def _bit_safe(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call of a torch operator has bits that IEEE 754 or copying fixes."""
    if func in {_aten.add.Tensor, _aten.mul.Tensor}:
        a, b = args[0], args[1]
        plain = isinstance(b, Tensor) and len(args) == 2 and not kwargs
        return plain and a.dtype == b.dtype == torch.float32 and a.shape == b.shape
    if func is _aten.clone.default:
        return set(kwargs) <= {"memory_format"}
    return func in {_aten.cat.default, _aten.stack.default} and not kwargs


def _gemm_shapes(values: Sequence[Value], nodes: Sequence[Node]) -> dict[int, tuple[int, ...]]:
    """Return the shape in which a GEMM first reads each computed value as a whole.

    A value's shape decides its leaves. An operand that was computed as [B, T, H, K] and is read
    as a [B*T, H*K] matrix is declared as that matrix, so that its tiles are the GEMM's tiles.
    """
    shapes: dict[int, tuple[int, ...]] = {}
    for ref in (ref for node in nodes if node.op == GEMM for ref in node.refs()):
        whole = prod(ref.shape) == prod(values[ref.value].shape)
        if values[ref.value].kind != "computed" or not whole or ref.value in shapes:
            continue
        rows, columns = ref.shape[-2:]
        if ref.stride == _row_major(ref.shape):
            shapes[ref.value] = ref.shape
        elif ref.stride[:-2] + ref.stride[:-3:-1] == _row_major((*ref.shape[:-2], columns, rows)):
            shapes[ref.value] = (*ref.shape[:-2], columns, rows)
    return shapes


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _committed(
    values: Sequence[Value],
    nodes: Sequence[Node],
    after: set[int],
    metrics: Mapping[str, int],
    world: int,
) -> tuple[int, ...]:
    """Choose the arena's values: what a product reads (unless an input), then what it writes.

    A reduction over ranks is treated like a product: with more than one rank each rank's
    addend is an operand, so that the tree can be replayed. What the root of the state after
    binds already has no second place in the arena.
    """
    products = [node for node in nodes if node.op in PRODUCTS]
    reductions = [node for node in nodes if node.op == "bitwitness::all_reduce"]
    outputs = [out for node in products for out in node.outputs]
    readers = products + (reductions if world > 1 else [])
    operands = [ref.value for node in readers for ref in node.refs()]
    elsewhere = {*outputs, *after}
    computed = [v for v in operands if values[v].kind == "computed" and v not in elsewhere]
    reduced = [out for node in reductions for out in node.outputs]
    return tuple(dict.fromkeys([*computed, *outputs, *reduced, *metrics.values()]))
