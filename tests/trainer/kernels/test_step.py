"""Whole steps by the kernels, of training and of decoding, against the emulated device's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
from trainer.generate.config import GenerationConfig
from trainer.generate.step import batch_of, constants_of, derive_decode_graph
from trainer.generate.step import initial_state as decoding_state
from trainer.graph import StepGraph, Value
from trainer.kernels.step import DeviceStep
from trainer.model import as_parameters
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript.leaves import arena_root

OnHost = Callable[..., GuardedRuntime]
UseKernels = Callable[[GuardedRuntime], None]
Arrays = Mapping[str, np.ndarray]
# What a step is given: its batch and scalars.
Inputs = Sequence[tuple[Arrays, np.ndarray]]
STEPS = 2


def tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}


def config_of(arch: str, profile: str, attention: str = "f32") -> RunConfig:
    numerics = {"arch": arch, "profile": profile}
    model = {"layers": 1, "attention": attention}
    return RunConfig.from_document(tiny_document(numerics=numerics, model=model))


def batches(config: RunConfig) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    shape = (STEPS, 2, config.train.batch, config.model.context)
    drawn = rng.integers(0, config.model.vocab, shape, np.int32)
    return [{"tokens": tokens, "targets": targets} for tokens, targets in drawn]


def scalars(config: RunConfig, step: int) -> np.ndarray:
    return step_scalars(config.optim, config.train.steps, step)


def emulated(
    graph: StepGraph, constants: Arrays, state: Arrays, inputs: Inputs
) -> list[tuple[bytes, bytes]]:
    """Return each step's arena and state root, by the CPU operators and `transcript`."""
    held, roots = tensors(state), []
    layout = graph.layout("state")
    for batch, scalars in inputs:
        arena = np.zeros(graph.arena.bytes, np.uint8)

        def sink(value: Value, tensor: Tensor, arena: np.ndarray = arena) -> Tensor:
            graph.arena.pack_into(arena, value.name, tensor.numpy())
            return tensor

        held = execute(
            graph,
            state=held,
            batch=tensors(batch),
            constants=tensors(constants),
            scalars=torch.from_numpy(scalars),
            sink=sink,
        ).state
        packed = layout.pack({name: tensor.numpy() for name, tensor in held.items()})
        roots.append((arena_root(arena, graph.arena), arena_root(packed, layout)))
    return roots


def require_roots(
    rt: GuardedRuntime,
    graph: StepGraph,
    constants: Arrays,
    state: Arrays,
    inputs: Inputs,
    expected: Sequence[tuple[bytes, bytes]],
) -> Mapping[str, Tensor]:
    """Run steps by kernels and compare every root; return the state after."""
    device = DeviceStep(rt, graph, constants)
    held: Mapping[str, Tensor] = device.to_device(state)
    for (batch, scalars), roots in zip(inputs, expected, strict=True):
        result = device.run(held, batch, scalars)
        assert (result.arena_root, result.state_root) == roots
        kept = arena_root(device.packed_state.numpy(), graph.layout("state"))
        assert kept == result.state_root
        held = result.state
    rt.require_margins()
    return held


@pytest.mark.parametrize(
    ("arch", "profile", "attention"),
    [
        ("hopper", "heal", "f32"),
        ("ampere", "heal", "f32"),
        ("ada", "bf16", "f32"),
        ("hopper", "fp32", "f32"),
        ("ampere", "exact", "f32"),
        ("hopper", "heal", "int16"),
        ("ampere", "exact", "int16"),
    ],
)
def test_steps_have_the_emulated_device_s_roots(
    on_host: OnHost, use_kernels: UseKernels, arch: str, profile: str, attention: str
) -> None:
    """Arena and state roots of two steps, computed by kernels alone, equal the CPU's."""
    config = config_of(arch, profile, attention)
    graph, constants = derive_graph(config), step_constants(config.model, config.train.world)
    inputs = [(batch, scalars(config, step)) for step, batch in enumerate(batches(config))]
    state = initial_state(config)
    expected = emulated(graph, constants, state, inputs)
    rt = on_host(arch)
    use_kernels(rt)
    require_roots(rt, graph, constants, state, inputs, expected)
    launched = set(rt.device.launched)
    assert {"adamw", "causal_softmax_backward", "embedding_backward", "leaf_hashes"} <= launched
    int16 = {"int16_hold", "gemm_int16_scores", "gemm_int16_mix"}
    assert int16 & launched == (int16 if attention == "int16" else set())


def generation_of(arch: str, profile: str, cache: str) -> GenerationConfig:
    document = {
        "run": "tiny", "commitment": "0" * 64, "cache": cache, "batch": 2, "prompt": 3, "tokens": 3,
        "numerics": {"arch": arch, "profile": profile},
        "model": config_of(arch, profile).model,
    }  # fmt: skip
    return GenerationConfig.from_document(document)


@pytest.mark.parametrize(
    ("arch", "profile", "cache"),
    [("hopper", "heal", "int16"), ("ampere", "exact", "int16"), ("ada", "bf16", "f32")],
)
def test_decoding_has_the_emulated_device_s_roots(
    on_host: OnHost, use_kernels: UseKernels, arch: str, profile: str, cache: str
) -> None:
    """Every step of a generation with either cache commits the CPU's roots, and its tokens."""
    config = generation_of(arch, profile, cache)
    graph = derive_decode_graph(config)
    parameters = as_parameters(initial_state(config_of(arch, profile)))
    constants = constants_of(config, parameters)
    prompts = np.frombuffer(b"abcxyz", np.uint8).reshape(2, 3)
    state = decoding_state(config, prompts)
    inputs = [(batch_of(step), np.zeros(0, np.float32)) for step in range(config.steps)]
    expected = emulated(graph, constants, state, inputs)
    rt = on_host(arch, seed=1)
    use_kernels(rt)
    after = require_roots(rt, graph, constants, state, inputs, expected)
    assert bool((after["tokens"][:, : config.steps + 1] >= 0).all())
    launched = set(rt.device.launched)
    assert {"prefix_softmax", "cache_write", "token_at", "greedy"} <= launched
    assert ("gemm_int16_mix" in launched) == (cache == "int16")


def test_a_step_that_meets_nan_is_not_committed(on_host: OnHost, use_kernels: UseKernels) -> None:
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
