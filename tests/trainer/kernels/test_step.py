"""A whole training step by the kernels, against the same step on the emulated device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import trainer.executor
from tests.conftest import tiny_document
from tests.trainer.kernels.conftest import GuardedRuntime
from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.executor import execute
from trainer.graph import StepGraph, Value
from trainer.kernels.leaves import LeafHasher
from trainer.kernels.operators import IMPLEMENTATIONS
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript.leaves import arena_root

OnHost = Callable[..., GuardedRuntime]


def tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}


def run(config: RunConfig, graph: StepGraph, steps: int) -> tuple[dict[str, Tensor], list[Any]]:
    """Execute steps from the initial state; return the state after and every committed value."""
    state, committed = tensors(initial_state(config)), []
    rng = np.random.default_rng(0)
    shape = (config.train.batch, config.model.context)

    def sink(value: Value, tensor: Tensor) -> Tensor:
        committed.append((value.name, tensor))
        return tensor

    for step in range(steps):
        tokens = rng.integers(0, config.model.vocab, (2, *shape), np.int32)
        state = execute(
            graph,
            state=state,
            batch=tensors({"tokens": tokens[0], "targets": tokens[1]}),
            constants=tensors(step_constants(config.model, config.train.world)),
            scalars=torch.from_numpy(step_scalars(config.optim, config.train.steps, step)),
            sink=sink,
        ).state
    return state, committed


def use_kernels(monkeypatch: pytest.MonkeyPatch, rt: GuardedRuntime) -> None:
    """Let the executor run pinned operators through the kernels."""
    plain = trainer.executor._callable

    def choose(op: str) -> Callable[..., Any]:
        name = op.removeprefix("bitwitness::")
        if name == op:
            return plain(op)
        return functools.partial(IMPLEMENTATIONS[name], rt)

    monkeypatch.setattr(trainer.executor, "_callable", choose)


@pytest.mark.parametrize(
    ("arch", "profile"),
    [("hopper", "heal"), ("ampere", "heal"), ("ada", "bf16"), ("hopper", "fp32")],
)
def test_two_steps_have_the_emulated_device_s_bits(
    on_host: OnHost, monkeypatch: pytest.MonkeyPatch, arch: str, profile: str
) -> None:
    """Every committed value, the arena's root and the state after two steps are equal."""
    numerics = {"arch": arch, "profile": profile}
    config = RunConfig.from_document(tiny_document(numerics=numerics, model={"layers": 1}))
    graph = derive_graph(config)
    expected_state, expected = run(config, graph, steps=2)
    rt = on_host(arch)
    use_kernels(monkeypatch, rt)
    state, committed = run(config, graph, steps=2)
    for (name, ours), (theirs_name, theirs) in zip(committed, expected, strict=True):
        assert name == theirs_name
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32)), name
    for name, tensor in expected_state.items():
        assert torch.equal(state[name].view(torch.int32), tensor.view(torch.int32)), name
    layout = graph.arena
    hasher = LeafHasher(rt, layout)
    buffer = hasher.new_buffer()
    last = dict(committed[len(committed) // 2 :])
    for name, tensor in last.items():
        hasher.pack_into(buffer, name, tensor)
    packed = layout.pack({name: tensor.numpy() for name, tensor in last.items()})
    assert hasher.root(buffer) == arena_root(packed, layout)
    rt.require_margins()
