"""The engine of `device: cuda`, by kernels on the host, against the emulated device's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.kernels.conftest import GuardedRuntime
from tests.trainer.kernels.test_step import OnHost, batches, config_of, scalars
from tests.verifier import runs
from trainer.config import Device
from trainer.constants import step_constants
from trainer.engine import DeviceEngine, EmulatedEngine, Engine, Executed
from trainer.generate import GenerationConfig, derive_decode_graph, generate
from trainer.kernels import register
from trainer.plan import layouts_of, open_for_writing
from trainer.recorder import Recorder
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript.log import LogReader
from transcript.run import RunFolder
from transcript.statements import read_registration
from transcript.store import RunStore


def committed(executed: Executed) -> dict[str, object]:
    fields = dataclasses.asdict(executed)
    return {name: value for name, value in fields.items() if not name.endswith("seconds")}


@pytest.mark.parametrize("attention", ["f32", "int16"])
def test_engines_commit_the_same(
    on_host: OnHost,
    use_kernels: Callable[[GuardedRuntime], None],
    tmp_path: Path,
    attention: str,
) -> None:
    """Roots, metrics, stored arenas and states of two steps are equal on both engines."""
    config = config_of("hopper", "heal", attention)
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


def test_a_generation_commits_the_same(
    on_host: OnHost,
    use_kernels: Callable[[GuardedRuntime], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A whole generation on `device: cuda` has the emulated one's text, log and stored bytes."""
    model = {"layers": 1, "attention": "int16"}
    run = runs.train(tmp_path / "run", runs.config(model=model))

    def generated(device: Device) -> tuple[bytes, list[object], list[bytes]]:
        out = tmp_path / device
        made = generate(run, b"def", 2, key=runs.KEY, out=out, device=device, threads=1)
        registration = read_registration(RunFolder(out)).predicate
        config = GenerationConfig.from_document(registration.config)
        assert config.numerics.device == device
        with LogReader(RunFolder(out).log, registration.run_id) as log:
            logged = [(e.state_before, e.state_after, e.batches, e.arenas) for e in log.leaves()]
        store = RunStore.open(RunFolder(out).store, layouts_of(derive_decode_graph(config)))
        kept = [store.read_arena(0, step).tobytes() for step in range(config.steps)]
        kept += [store.read_state(step).tobytes() for step in range(config.steps + 1)]
        return made.text, [registration.constants_root, *logged], kept

    expected = generated("emulated")
    rt = on_host("hopper")
    use_kernels(rt)
    monkeypatch.setattr(register, "require", lambda: rt)
    monkeypatch.setattr(register, "architecture", lambda _index: "hopper")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert generated("cuda") == expected
    assert {"gemm_int16_scores", "gemm_int16_mix", "greedy"} <= set(rt.device.launched)
