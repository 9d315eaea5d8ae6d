"""The committed step of each profile beside plain torch in FP32 (TF32 off) and in bf16."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch

from benchmarks.gpu.plain import PlainStep
from benchmarks.gpu.timing import Report
from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.executor import execute
from trainer.kernels import Runtime
from trainer.kernels.check_cases import profiles_of
from trainer.kernels.step import DeviceStep
from trainer.kernels.tiles import Route, taking
from trainer.state import initial_state
from trainer.trace import derive_graph

# Large enough that products dominate, small enough for any data-centre GPU.
MODEL = {
    "layers": "4", "width": "1024", "heads": "16", "hidden": "2816", "context": "512",
    "vocab": "256",
}  # fmt: skip
BATCH = 8


def main(rt: Runtime, arch: str, report: Report, route: Route) -> None:
    """Print milliseconds a step by a route, and the share that packing and hashing take."""
    torch.backends.cuda.matmul.allow_tf32 = False
    report.say(f"step by {route}: {MODEL}, batch {BATCH}")
    plain: float | None = None
    for dtype in (torch.float32, torch.bfloat16):
        config = _config(arch, "heal")
        time = _row(report, f"{dtype}", partial(_plain, rt, config, dtype), plain)
        plain = plain or time
    for profile in profiles_of(route):
        config = _config(arch, profile)
        with taking(route):
            for committed in (False, True):
                name = f"{profile}, {'' if committed else 'not '}committed"
                _row(report, name, partial(_pinned, rt, config, committed=committed), plain)


def _row(
    report: Report, name: str, make: Callable[[], Callable[[], object]], plain: float | None
) -> float | None:
    """Measure what `make` makes, and print it beside torch in FP32 if that is known."""
    step = report.attempt(name, make)
    time = report.time(name, step) if step else None
    if time is not None:
        ratio = f"{plain / time:5.2f} times torch FP32's speed" if plain else ""
        report.say(f"  {name:32} {time:9.2f} ms  {ratio}")
    return time


def _config(arch: str, profile: str) -> RunConfig:
    document = {
        "name": "step", "seed": "1", "model": MODEL,
        "numerics": {"device": "cuda", "arch": arch, "profile": profile},
        "optim": {"learning_rate": "0.001"}, "train": {"steps": "8", "batch": str(BATCH)},
    }  # fmt: skip
    return RunConfig.from_document(document)


@cache
def _state(arch: str) -> dict[str, np.ndarray]:
    """Return the initial state, which no profile changes; drawing it takes seconds."""
    return initial_state(_config(arch, "heal"))


def _batch(config: RunConfig) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (config.train.batch, config.model.context)
    names = ("tokens", "targets")
    return {name: rng.integers(0, config.model.vocab, shape, np.int32) for name in names}


def _pinned(rt: Runtime, config: RunConfig, *, committed: bool) -> Callable[[], object]:
    """Return the step with or without packing and hashing."""
    graph = derive_graph(config)
    device = DeviceStep(rt, graph, step_constants(config.model, 1))
    state = device.to_device(_state(config.numerics.arch))
    batch, scalars = _batch(config), step_scalars(config.optim, config.train.steps, 0)
    if committed:
        return lambda: device.run(state, batch, scalars)
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

    return bare


def _plain(rt: Runtime, config: RunConfig, dtype: torch.dtype) -> Callable[[], object]:
    arrays = {**_state(config.numerics.arch), **step_constants(config.model, 1)}
    moved = {n: torch.from_numpy(np.asarray(a)).to(rt.torch_device) for n, a in arrays.items()}
    step = PlainStep(config, moved, moved, dtype)
    batch = {n: torch.from_numpy(a).long().to(rt.torch_device) for n, a in _batch(config).items()}
    return lambda: step.run(batch["tokens"], batch["targets"])
