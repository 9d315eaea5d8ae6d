"""The engine of `device: cuda`, by kernels on the host, against the emulated device's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.trainer.kernels.conftest import GuardedRuntime
from tests.trainer.kernels.test_step import OnHost, batches, config_of, scalars
from trainer.constants import step_constants
from trainer.engine import DeviceEngine, EmulatedEngine, Engine, Executed
from trainer.plan import layouts_of, open_for_writing
from trainer.recorder import Recorder
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript.run import RunFolder
from transcript.store import RunStore


def committed(executed: Executed) -> dict[str, object]:
    fields = dataclasses.asdict(executed)
    return {name: value for name, value in fields.items() if not name.endswith("seconds")}


def test_engines_commit_the_same(
    on_host: OnHost, use_kernels: Callable[[GuardedRuntime], None], tmp_path: Path
) -> None:
    """Roots, metrics, stored arenas and states of two steps are equal on both engines."""
    config = config_of("hopper", "heal")
    graph = derive_graph(config)
    layouts, constants = layouts_of(graph), step_constants(config.model, 1)
    packed = layouts.state.pack(initial_state(config))

    def run(name: str, make: Callable[[Recorder], Engine]) -> tuple[RunStore, list[object]]:
        folder = RunFolder(tmp_path / name)
        folder.root.mkdir()
        recorder = Recorder(open_for_writing(config, folder, layouts), rank=0, threads=1)
        engine = make(recorder)
        said: list[object] = [engine.adopt(packed)]
        for step, batch in enumerate(batches(config)):
            said.append(committed(engine.run(batch, scalars(config, step), keep=True)))
            recorder.write_arena(step)
            recorder.write_state(step + 1, engine.packed_state())
        recorder.flush()
        return RunStore.open(folder.store, layouts), said

    emulated, expected = run("emulated", lambda r: EmulatedEngine(graph, constants, r, 1))
    rt = on_host("hopper")
    use_kernels(rt)
    device, found = run("device", lambda r: DeviceEngine(rt, graph, constants, r))
    assert found == expected
    for step in range(len(batches(config))):
        assert np.array_equal(device.read_arena(0, step), emulated.read_arena(0, step))
        assert np.array_equal(device.read_state(step + 1), emulated.read_state(step + 1))
