"""Steps of `gpu_check`: the same run and the same generation on both devices, root by root."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.data import batch_at, load_corpus
from trainer.executor import execute
from trainer.generate.config import Cache, GenerationConfig
from trainer.generate.step import batch_of, constants_of, derive_decode_graph
from trainer.generate.step import initial_state as decoding_state
from trainer.graph import StepGraph, Value
from trainer.kernels.device import Runtime
from trainer.kernels.step import DeviceStep
from trainer.model import as_parameters
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript.layout import Layout
from transcript.leaves import arena_root

Attention = Literal["f32", "int16"]
Arrays = Mapping[str, NDArray[Any]]

CACHES: Final[tuple[Cache, ...]] = ("int16", "f32")
PROMPT: Final = b"de"
MOST_STEPS: Final = 16


def with_attention(config: RunConfig, attention: Attention) -> RunConfig:
    """Return a run with another way of multiplying queries, keys and values."""
    return config.model_copy(
        update={"model": config.model.model_copy(update={"attention": attention})}
    )


def check_training(rt: Runtime, arch: str, config: RunConfig, profile: str, steps: int) -> bool:
    """Train on both devices from one state; print the roots and say whether all are equal."""
    numerics = config.numerics.model_copy(update={"arch": arch, "profile": profile})
    config = config.model_copy(update={"numerics": numerics})
    tokens = load_corpus(config.data)
    root = arena_root(tokens, Layout.build([("tokens", "u8", (len(tokens),))])).hex()
    inputs = (
        (
            batch_at(tokens, root, config, step, 0),
            step_scalars(config.optim, config.train.steps, step),
        )
        for step in range(steps)
    )
    what = f"training {config.name} with {profile} on {arch}, {config.model.attention} attention"
    constants = step_constants(config.model, config.train.world)
    return _compare(rt, what, derive_graph(config), constants, initial_state(config), inputs)


def check_generation(rt: Runtime, arch: str, config: RunConfig, cache: Cache) -> bool:
    """Decode on both devices with a run's initial parameters; roots as `check_training`."""
    generation = GenerationConfig.from_document(
        {
            "run": config.name,
            "commitment": "0" * 64,
            "numerics": config.numerics.model_copy(update={"arch": arch}),
            "model": config.model,
            "cache": cache,
            "prompt": len(PROMPT),
            "tokens": min(MOST_STEPS, config.model.context) - len(PROMPT) + 1,
        },
        name="generation",
    )
    constants = constants_of(generation, as_parameters(initial_state(config)))
    state = decoding_state(generation, np.frombuffer(PROMPT, np.uint8)[None])
    inputs = ((batch_of(step), np.zeros(0, np.float32)) for step in range(generation.steps))
    what = f"generating with {config.name} on {arch}, {cache} cache"
    return _compare(rt, what, derive_decode_graph(generation), constants, state, inputs)


def _compare(
    rt: Runtime,
    what: str,
    graph: StepGraph,
    constants: Arrays,
    state: Arrays,
    inputs: Iterable[tuple[Arrays, NDArray[np.float32]]],
) -> bool:
    print(f"{what}: arena and state roots", flush=True)
    device = DeviceStep(rt, graph, constants)
    on_device, on_host = device.to_device(state), _tensors(state)
    same = True
    for step, (batch, scalars) in enumerate(inputs):
        started = time.perf_counter()
        result = device.run(on_device, batch, scalars)
        seconds = time.perf_counter() - started
        on_device = result.state
        on_host, arena, after = emulated_step(graph, on_host, batch, constants, scalars)
        equal = (result.arena_root, result.state_root) == (arena, after)
        same = same and equal
        metrics = "".join(f"{name} {float(x):.5f}, " for name, x in result.metrics.items())
        print(f"  step {step}: {metrics}{seconds * 1e3:.1f} ms on the device")
        print(f"    cuda     {result.arena_root.hex()} {result.state_root.hex()}")
        verdict = "equal" if equal else "DIFFER"
        print(f"    emulated {arena.hex()} {after.hex()}  {verdict}", flush=True)
    return same


def emulated_step(
    graph: StepGraph,
    state: Mapping[str, Tensor],
    batch: Mapping[str, Any],
    constants: Mapping[str, Any],
    scalars: Any,
) -> tuple[dict[str, Tensor], bytes, bytes]:
    """Run one step on the emulated device; return the state after, the arena and state roots."""
    arena = np.zeros(graph.arena.bytes, np.uint8)

    def record(value: Value, tensor: Tensor) -> Tensor:
        graph.arena.pack_into(arena, value.name, tensor.numpy())
        return tensor

    result = execute(
        graph,
        state=state,
        batch=_tensors(batch),
        constants=_tensors(constants),
        scalars=torch.from_numpy(scalars),
        sink=record,
    )
    layout = graph.layout("state")
    packed = layout.pack({name: tensor.numpy() for name, tensor in result.state.items()})
    return result.state, arena_root(arena, graph.arena), arena_root(packed, layout)


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}
