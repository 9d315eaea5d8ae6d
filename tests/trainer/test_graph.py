"""The step graph: what it depends on, what it refuses, and that running it is the step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import TINY, tiny_document
from trainer import trace
from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.errors import GraphError
from trainer.executor import execute
from trainer.graph import F32, StepGraph
from trainer.state import initial_state
from trainer.step import training_step
from trainer.trace import derive_graph
from transcript import canonical


@pytest.fixture(scope="module")
def graph() -> StepGraph:
    return derive_graph(RunConfig.from_document(TINY))


def inputs_of(config: RunConfig) -> dict[str, dict[str, torch.Tensor] | torch.Tensor]:
    rng = np.random.default_rng(3)
    shape = (config.train.batch, config.model.context)
    state = {name: torch.from_numpy(a) for name, a in initial_state(config).items()}
    state |= {n: torch.full_like(t, 1e-4) for n, t in state.items() if n.startswith("v/")}
    tables = step_constants(config.model, config.train.world)
    return {
        "state": state,
        "batch": {
            name: torch.from_numpy(rng.integers(0, 256, shape, dtype=np.int32))
            for name in ("tokens", "targets")
        },
        "constants": {name: torch.from_numpy(a) for name, a in tables.items()},
        "scalars": torch.from_numpy(step_scalars(config.optim, config.train.steps, 2)),
    }


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def test_deriving_twice_gives_one_digest(graph: StepGraph) -> None:
    """The graph is a function of the configuration."""
    again = derive_graph(RunConfig.from_document(TINY))
    assert again.digest == graph.digest
    assert canonical.dumps(again.document()) == canonical.dumps(graph.document())


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("model", {"layers": 1}),
        ("model", {"norm_eps": "0.000011"}),
        ("numerics", {"profile": "bf16"}),
        ("numerics", {"arch": "ampere"}),
        ("optim", {"beta2": "0.96"}),
        ("train", {"batch": 3}),
    ],
)
def test_digest_changes_with_what_is_computed(
    graph: StepGraph, section: str, values: dict[str, object]
) -> None:
    """Another model, arithmetic or optimiser is another graph."""
    other = RunConfig.from_document(tiny_document(**{section: values}))
    assert derive_graph(other).digest != graph.digest


def test_every_gemm_tensor_is_an_input_or_in_the_arena(graph: StepGraph) -> None:
    """Nothing a GEMM reads or writes escapes the commitment."""
    committed = set(graph.committed)
    gemms = [node for node in graph.nodes if node.op == "bitwitness::gemm"]
    assert len(gemms) == 3 * (2 * 6 + 1)  # forward and two gradients of 6 per layer and the head
    for node in gemms:
        for value in {*node.outputs, *(ref.value for ref in node.refs())}:
            assert value in committed or graph.values[value].kind == "state"
    assert set(graph.metrics.values()) <= committed


def test_running_the_graph_is_the_eager_step(graph: StepGraph) -> None:
    """The executor gives the bits of torch's own autograd over the step function."""
    config = RunConfig.from_document(TINY)
    inputs = inputs_of(config)
    seen: dict[str, int] = {}

    def sink(value, tensor):
        seen[value.name] = seen.get(value.name, 0) + 1
        return tensor

    result = execute(graph, **inputs, sink=sink)
    inputs["state"] = {name: t.clone() for name, t in inputs["state"].items()}
    after, metrics = training_step(config, *inputs.values())
    assert {n: bits(t) for n, t in result.state.items()} == {n: bits(t) for n, t in after.items()}
    assert bits(result.metrics["loss"]) == bits(metrics["loss"])
    assert seen == {entry.name: 1 for entry in graph.arena.entries}


def test_what_the_sink_returns_is_used_downstream(graph: StepGraph) -> None:
    """A substituted value reaches everything that reads it."""
    config = RunConfig.from_document(TINY)
    target = graph.arena.entries[0].name
    plain = execute(graph, **inputs_of(config), sink=lambda _, tensor: tensor)
    bent = execute(
        graph,
        **inputs_of(config),
        sink=lambda value, t: t * 1.5 if value.name == target else t,
    )
    assert bits(plain.metrics["loss"]) != bits(bent.metrics["loss"])


def test_unpinned_operator_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that uses a torch operator of unpromised bits has no graph."""
    original = trace.training_step

    def step(*arguments):
        after, metrics = original(*arguments)
        return after, {**metrics, "loss": torch.exp(metrics["loss"])}

    monkeypatch.setattr(trace, "training_step", step)
    with pytest.raises(GraphError, match=r"aten\.exp\.default"):
        derive_graph(RunConfig.from_document(TINY))


def test_scalar_addition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding a Python number is not on the bit-safe list: its rounding is torch's choice."""
    original = trace.training_step

    def step(*arguments):
        after, metrics = original(*arguments)
        return after, {**metrics, "loss": metrics["loss"] + 0.1}

    monkeypatch.setattr(trace, "training_step", step)
    with pytest.raises(GraphError, match=r"aten\.add"):
        derive_graph(RunConfig.from_document(TINY))


def test_missing_or_misshapen_input_is_named(graph: StepGraph) -> None:
    """The executor says which input does not fit, before it computes anything."""
    inputs = inputs_of(RunConfig.from_document(TINY))
    del inputs["state"]["m/head"]
    with pytest.raises(GraphError, match=r"m/head.*got nothing"):
        execute(graph, **inputs, sink=lambda _, tensor: tensor)


@given(st.floats(width=32, allow_nan=False))
def test_f32_attribute_keeps_its_bits(value: float) -> None:
    """An f32 attribute is its bit pattern, -0 and subnormals included."""
    attribute = F32.of(value)
    assert np.float32(attribute.value).view(np.uint32) == np.float32(value).view(np.uint32)
