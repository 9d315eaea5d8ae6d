"""Whole training steps by the kernels, against the same steps on the emulated device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from emulator_ext import NonFiniteError
from tests.conftest import tiny_document
from tests.trainer.kernels.conftest import GuardedRuntime
from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.executor import execute
from trainer.graph import StepGraph, Value
from trainer.kernels.step import DeviceStep
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript.leaves import arena_root

OnHost = Callable[..., GuardedRuntime]
STEPS = 2


def tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}


def config_of(arch: str, profile: str) -> RunConfig:
    numerics = {"arch": arch, "profile": profile}
    return RunConfig.from_document(tiny_document(numerics=numerics, model={"layers": 1}))


def batches(config: RunConfig) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    shape = (STEPS, 2, config.train.batch, config.model.context)
    drawn = rng.integers(0, config.model.vocab, shape, np.int32)
    return [{"tokens": tokens, "targets": targets} for tokens, targets in drawn]


def scalars(config: RunConfig, step: int) -> np.ndarray:
    return step_scalars(config.optim, config.train.steps, step)


def emulated(config: RunConfig, graph: StepGraph) -> list[tuple[bytes, bytes]]:
    """Return each step's arena and state root, by the CPU operators and `transcript`."""
    state, roots = tensors(initial_state(config)), []
    layout = graph.layout("state")
    constants = tensors(step_constants(config.model, config.train.world))
    for step, batch in enumerate(batches(config)):
        arena = np.zeros(graph.arena.bytes, np.uint8)

        def sink(value: Value, tensor: Tensor, arena: np.ndarray = arena) -> Tensor:
            graph.arena.pack_into(arena, value.name, tensor.numpy())
            return tensor

        state = execute(
            graph,
            state=state,
            batch=tensors(batch),
            constants=constants,
            scalars=torch.from_numpy(scalars(config, step)),
            sink=sink,
        ).state
        packed = layout.pack({name: tensor.numpy() for name, tensor in state.items()})
        roots.append((arena_root(arena, graph.arena), arena_root(packed, layout)))
    return roots


@pytest.mark.parametrize(
    ("arch", "profile"),
    [
        ("hopper", "heal"),
        ("ampere", "heal"),
        ("ada", "bf16"),
        ("hopper", "fp32"),
        ("ampere", "exact"),
    ],
)
def test_steps_have_the_emulated_device_s_roots(
    on_host: OnHost, use_kernels: Callable[[GuardedRuntime], None], arch: str, profile: str
) -> None:
    """Arena and state roots of two steps, computed by kernels alone, equal the CPU's."""
    config = config_of(arch, profile)
    graph = derive_graph(config)
    expected = emulated(config, graph)
    rt = on_host(arch)
    use_kernels(rt)
    device = DeviceStep(rt, graph, step_constants(config.model, config.train.world))
    state = device.to_device(initial_state(config))
    for step, batch in enumerate(batches(config)):
        result = device.run(state, batch, scalars(config, step))
        assert (result.arena_root, result.state_root) == expected[step]
        kept = arena_root(device.packed_state.numpy(), graph.layout("state"))
        assert kept == result.state_root
        state = result.state
    rt.require_margins()
    launched = set(rt.device.launched)
    assert {"adamw", "causal_softmax_backward", "embedding_backward", "leaf_hashes"} <= launched


def test_a_step_that_meets_nan_is_not_committed(
    on_host: OnHost, use_kernels: Callable[[GuardedRuntime], None]
) -> None:
    """The first operator that met the NaN is named, and no root is computed."""
    config = config_of("hopper", "heal")
    graph = derive_graph(config)
    rt = on_host()
    use_kernels(rt)
    device = DeviceStep(rt, graph, step_constants(config.model, config.train.world))
    state = device.to_device(initial_state(config))
    state["params/embedding"][:] = torch.nan
    with pytest.raises(NonFiniteError, match="embedding:"):
        device.run(state, batches(config)[0], scalars(config, 0))
    assert "leaf_hashes" not in rt.device.launched
