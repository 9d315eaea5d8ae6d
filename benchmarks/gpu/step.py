"""The committed step of each profile beside plain torch in FP32 (TF32 off) and in bf16."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from benchmarks.gpu.plain import PlainStep
from benchmarks.gpu.timing import milliseconds
from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.executor import execute
from trainer.kernels import Runtime
from trainer.kernels.step import DeviceStep
from trainer.state import initial_state
from trainer.trace import derive_graph

PROFILES = ("heal", "bf16", "exact", "fp32")

# Large enough that products dominate, small enough for any data-centre GPU.
MODEL = {
    "layers": "4", "width": "1024", "heads": "16", "hidden": "2816", "context": "512",
    "vocab": "256",
}  # fmt: skip
BATCH = 8


def main(rt: Runtime, arch: str) -> None:
    """Print milliseconds a step, and the share that packing and hashing take."""
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"step: {MODEL}, batch {BATCH}")
    rows: dict[str, float] = {}
    for profile in PROFILES:
        bare, committed = _pinned(rt, _config(arch, profile))
        rows[f"{profile}, not committed"] = milliseconds(bare)
        rows[f"{profile}, committed"] = milliseconds(committed)
    for dtype in (torch.float32, torch.bfloat16):
        rows[f"torch {dtype}"] = milliseconds(_plain(rt, _config(arch, "heal"), dtype))
    plain = rows["torch torch.float32"]
    for name, time in rows.items():
        print(f"  {name:28} {time:9.2f} ms  {plain / time:5.2f} times torch FP32's speed")


def _config(arch: str, profile: str) -> RunConfig:
    document = {
        "name": "step", "seed": "1", "model": MODEL,
        "numerics": {"device": "cuda", "arch": arch, "profile": profile},
        "optim": {"learning_rate": "0.001"}, "train": {"steps": "8", "batch": str(BATCH)},
    }  # fmt: skip
    return RunConfig.from_document(document)


def _batch(config: RunConfig) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (config.train.batch, config.model.context)
    names = ("tokens", "targets")
    return {name: rng.integers(0, config.model.vocab, shape, np.int32) for name in names}


def _pinned(rt: Runtime, config: RunConfig) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the step without and with packing and hashing, each from the same state."""
    graph = derive_graph(config)
    device = DeviceStep(rt, graph, step_constants(config.model, 1))
    state = device.to_device(initial_state(config))
    batch, scalars = _batch(config), step_scalars(config.optim, config.train.steps, 0)
    inputs = device.to_device({**batch, "scalars": scalars})
    constants = device.to_device(step_constants(config.model, 1))

    def bare() -> None:
        with rt.deferred_checks():
            execute(
                graph,
                state=state,
                batch=inputs,
                constants=constants,
                scalars=inputs["scalars"],
                sink=lambda _value, tensor: tensor,
            )

    return bare, lambda: device.run(state, batch, scalars)


def _plain(rt: Runtime, config: RunConfig, dtype: torch.dtype) -> Callable[[], object]:
    arrays = {**initial_state(config), **step_constants(config.model, 1)}
    moved = {n: torch.from_numpy(np.asarray(a)).to(rt.torch_device) for n, a in arrays.items()}
    step = PlainStep(config, moved, moved, dtype)
    batch = {n: torch.from_numpy(a).long().to(rt.torch_device) for n, a in _batch(config).items()}
    return lambda: step.run(batch["tokens"], batch["targets"])
