"""`python -m trainer.kernels.gpu_check`: every kernel on this machine's GPU against its CPU.

Needs CuPy, a GPU and the two compiled modules; neither Ray nor Zarr. It compares at least 10^8
outputs bit for bit, then trains a configuration for a few steps on both devices and prints their
roots, which must be equal. Exit codes: 0 all equal, 1 a bit differs, 2 bad input, 3 no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import yaml
from torch import Tensor

from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.data import batch_at, load_corpus
from trainer.errors import ConfigError, TrainerError
from trainer.executor import execute
from trainer.graph import StepGraph, Value
from trainer.kernels.check_cases import (
    GEMM_SHAPES,
    PROFILES,
    Shape,
    Tally,
    check_leaves,
    check_operators,
    check_products,
    profiles_of,
)
from trainer.kernels.device import Runtime
from trainer.kernels.errors import EnvironmentMissingError
from trainer.kernels.register import architecture, require
from trainer.kernels.step import DeviceStep
from trainer.kernels.tiles import WGMMA_CAPABILITY, taking
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript.layout import Layout
from transcript.leaves import arena_root

LEAST_OUTPUTS: Final = 100_000_000
ROWS: Final = 2000
DEFAULT_CONFIG: Final = Path("configs/demo.yaml")
DEFAULT_STEPS: Final = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return the exit code."""
    parser = argparse.ArgumentParser(prog="gpu_check", description="Compare the GPU with the CPU.")
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="a run to train")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="steps on each device")
    options = parser.parse_args(arguments)
    try:
        config = read_config(options.config)
        rt = require()
        arch = architecture(torch.cuda.current_device())
        print(f"{torch.cuda.get_device_name()}, arch {arch}, torch {torch.__version__}")
        return 0 if check(rt, arch, config, options.steps) else 1
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, EnvironmentMissingError) else 2


def check(
    rt: Runtime,
    arch: str,
    config: RunConfig,
    steps: int,
    *,
    least_outputs: int = LEAST_OUTPUTS,
    shapes: Sequence[Shape] = GEMM_SHAPES,
    rows: int = ROWS,
) -> bool:
    """Compare kernels, then train with each profile; True if every bit and root is equal.

    What fails is reported, and the rest goes on. Hopper's own route comes last, since a fault of
    its kernels might leave nothing of the device to others.
    """
    tally = Tally()

    def train(profile: str) -> None:
        if not check_training(rt, arch, config, profile, steps):
            raise TrainerError("roots differ")

    check_products(tally, rt, arch, shapes)
    with tally.guard("leaves"):
        check_leaves(tally, rt, rows)
    check_operators(tally, rt, rows)
    while tally.outputs < least_outputs and not tally.failed:
        rows *= 2
        check_operators(tally, rt, rows)
    for profile in PROFILES:
        with tally.guard(f"training with {profile}"):
            train(profile)
    if rt.device.capability == WGMMA_CAPABILITY:
        print("by wgmma", flush=True)
        check_products(tally, rt, arch, shapes, "wgmma")
        for profile in profiles_of("wgmma"):
            with tally.guard(f"training with {profile} by wgmma"), taking("wgmma"):
                train(profile)
    print(f"{tally.outputs:,} outputs compared, {tally.different:,} differ, {tally.failed} failed")
    return tally.different == 0 and tally.failed == 0


def read_config(path: Path) -> RunConfig:
    """Read a run's YAML without its `cluster` section; scalars stay the strings that they are.

    Raises:
        ConfigError: the file cannot be read or is no run.

    """
    try:
        text = path.read_text(encoding="utf-8")
        document = yaml.load(text, yaml.BaseLoader)  # noqa: S506  # makes nothing but strings
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not a mapping")
    document.pop("cluster", None)
    return RunConfig.from_document(document, name=str(path))


def check_training(rt: Runtime, arch: str, config: RunConfig, profile: str, steps: int) -> bool:
    """Train on both devices from one state; print the roots and say whether all are equal."""
    numerics = config.numerics.model_copy(update={"arch": arch, "profile": profile})
    config = config.model_copy(update={"numerics": numerics})
    graph, tokens = derive_graph(config), load_corpus(config.data)
    root = arena_root(tokens, Layout.build([("tokens", "u8", (len(tokens),))])).hex()
    constants = step_constants(config.model, config.train.world)
    device = DeviceStep(rt, graph, constants)
    on_device = device.to_device(initial_state(config))
    on_host = _tensors(initial_state(config))
    print(f"training {config.name} with {profile} on {arch}: arena and state roots", flush=True)
    same = True
    for step in range(steps):
        batch = batch_at(tokens, root, config, step, 0)
        scalars = step_scalars(config.optim, config.train.steps, step)
        started = time.perf_counter()
        result = device.run(on_device, batch, scalars)
        seconds = time.perf_counter() - started
        on_device = result.state
        on_host, arena, state = emulated_step(graph, on_host, batch, constants, scalars)
        equal = (result.arena_root, result.state_root) == (arena, state)
        same = same and equal
        loss = float(result.metrics["loss"])
        print(f"  step {step}: loss {loss:.5f}, {seconds * 1e3:.1f} ms on the device", flush=True)
        print(f"    cuda     {result.arena_root.hex()} {result.state_root.hex()}")
        print(
            f"    emulated {arena.hex()} {state.hex()}  {'equal' if equal else 'DIFFER'}",
            flush=True,
        )
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


if __name__ == "__main__":
    sys.exit(main())
