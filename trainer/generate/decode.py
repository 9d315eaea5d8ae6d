"""Decode without committing: the same graph, run by the same executor, with nothing recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.errors import ConfigError
from trainer.executor import Sink, execute
from trainer.generate.config import GenerationConfig
from trainer.generate.step import batch_of, constants_of, derive_decode_graph, initial_state
from trainer.graph import StepGraph, Value
from trainer.ops import threads as op_threads

CPU = torch.device("cpu")


def _unchanged(value: Value, tensor: Tensor) -> Tensor:
    del value
    return tensor


def decode(
    config: GenerationConfig,
    parameters: Mapping[str, NDArray[np.float32]],
    prompts: Sequence[bytes],
    *,
    threads: int | None = None,
    sink: Sink = _unchanged,
) -> NDArray[np.uint8]:
    """Return prompts and what follows them, u8 [batch, prompt + tokens].

    `sink` sees every value that a committed generation would commit, where the device has it.

    Raises:
        ConfigError: the prompts are not what the configuration says.
        trainer.kernels.errors.EnvironmentMissingError: `device: cuda` without CuPy or a GPU.
        emulator_ext.errors.NonFiniteError: NaN or Inf in a step.

    """
    from trainer.engine import require_device  # with it come the store and its packages

    graph = derive_decode_graph(config)
    runtime = require_device(config.numerics)
    where = CPU if runtime is None else runtime.torch_device
    constants = tensors(constants_of(config, parameters), where)
    state = tensors(initial_state(config, prompt_array(config, prompts)), where)
    with op_threads.use(threads):
        for step in range(config.steps):
            state = run_step(graph, state, constants, step, sink)
    return text_of(config, state["tokens"].cpu().numpy())


def run_step(
    graph: StepGraph,
    state: Mapping[str, Tensor],
    constants: Mapping[str, Tensor],
    step: int,
    sink: Sink,
) -> dict[str, Tensor]:
    """Execute one step where the state is; errors as `trainer.executor.execute`."""
    batch = tensors(batch_of(step), state["tokens"].device)
    return execute(
        graph, state=state, batch=batch, constants=constants, scalars=torch.empty(0), sink=sink
    ).state


def prompt_array(config: GenerationConfig, prompts: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return prompts as u8 [batch, prompt].

    Raises:
        ConfigError: another number, another length, or a byte outside the vocabulary.

    """
    if len(prompts) != config.batch or {len(p) for p in prompts} != {config.prompt}:
        raise ConfigError(f"expected {config.batch} prompts of {config.prompt} bytes each")
    array = np.frombuffer(b"".join(prompts), np.uint8).reshape(config.batch, config.prompt)
    if array.max() >= config.model.vocab:
        raise ConfigError(f"the prompt has bytes outside the vocabulary of {config.model.vocab}")
    return array


def text_of(config: GenerationConfig, tokens: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Return the decided part of state tensor `tokens`, u8 [batch, prompt + tokens]."""
    return tokens[:, : config.steps + 1].astype(np.uint8)


def tensors(
    arrays: Mapping[str, NDArray[np.generic]], where: torch.device = CPU
) -> dict[str, Tensor]:
    """Wrap arrays by name, or copy them to a device."""
    return {name: torch.from_numpy(array).to(where) for name, array in arrays.items()}
