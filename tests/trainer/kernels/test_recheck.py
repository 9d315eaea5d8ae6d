"""The re-check of `device: cuda`, by kernels on the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from tests.trainer.kernels.conftest import GuardedRuntime
from tests.trainer.kernels.test_step import OnHost, batches, config_of, scalars
from trainer.constants import step_constants
from trainer.engine import DeviceEngine
from trainer.plan import layouts_of, open_for_writing
from trainer.recheck import Recheck
from trainer.recorder import Recorder
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript.run import RunFolder


def test_a_device_s_blocks_are_opened_and_computed_on_the_cpu(
    on_host: OnHost, use_kernels: Callable[[GuardedRuntime], None], tmp_path: Path
) -> None:
    """What kernels give passes, a flipped bit does not; a snapshot is what the step began with."""
    config = config_of("hopper", "heal")
    graph = derive_graph(config)
    recorder = Recorder(
        open_for_writing(config, RunFolder(tmp_path), layouts_of(graph)), rank=0, threads=1
    )
    rt = on_host("hopper")
    use_kernels(rt)
    engine = DeviceEngine(rt, graph, step_constants(config.model, 1), recorder)
    engine.adopt(graph.layout("state").pack(initial_state(config)))
    before = engine.snapshot()
    first = engine.run(batches(config)[0], scalars(config, 0), keep=False)
    check = Recheck(graph, config.numerics, products=50, run_id="demo", rank=0)
    assert check.first_wrong(0, engine.arena(), before.tensors) is None
    entry = next(e for e in graph.arena.entries if e.name.endswith(".gemm"))
    engine.arena()[entry.offset : entry.offset + entry.bytes].view(torch.int32)[:] ^= 1
    wrong = check.first_wrong(0, engine.arena(), before.tensors)
    assert wrong is not None
    engine.rewind(before)
    again = engine.run(batches(config)[0], scalars(config, 0), keep=False)
    assert (again.arena, again.state) == (first.arena, first.state)
