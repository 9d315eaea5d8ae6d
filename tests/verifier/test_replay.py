"""A replay accepts what an honest trainer committed and finds each lie where it was told."""

import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from emulator_ext import numerics
from tests.verifier import runs
from trainer.executor import run_node
from trainer.recorder import Recorder
from trainer.trace import derive_graph
from verifier import evidence
from verifier.bits import first_difference
from verifier.replay import ReplayTask, replay_step, run_task
from verifier.verdict import Verdict

V = Verdict
CHEATED = 2


def checks(report):
    return {check.name: check.verdict for check in report.checks if not check.ok}


def test_honest_steps_match(honest):
    """Every step of an honest run matches, and everything in it was computed and compared."""
    graph = derive_graph(runs.config())
    for step in range(runs.STEPS):
        report = replay_step(honest, step, 1)
        assert report.verdict is V.MATCH
        assert not checks(report)
        assert report.operators == len(graph.nodes)
        assert report.values == len(graph.committed)
        assert report.elements == graph.arena.bytes // 4
        assert report.differing == 0
        assert report.macs > 10**6


def test_threads_change_nothing(honest):
    """One thread or two: the same checks and roots."""
    one, two = replay_step(honest, 1, 1), replay_step(honest, 1, 2)
    assert replace(one, milliseconds=0) == replace(two, milliseconds=0)


def test_tasks_and_reports_travel(honest):
    """A task and its report survive pickling, as they must to reach another machine."""
    line = (honest / "log" / "leaves.jsonl").read_bytes().splitlines()[1]
    digest = json.loads(line)["registration"]
    task = ReplayTask(folder=honest, step=1, leaf=line, registration=digest, threads=1)
    report = run_task(pickle.loads(pickle.dumps(task)))  # noqa: S301
    assert report.verdict is V.MATCH
    assert pickle.loads(pickle.dumps(report)) == report  # noqa: S301


def test_log_is_not_read_again(copied):
    """A worker judges the log entry it was given, not one that appears later."""
    line = copied.leaves.read_bytes().splitlines()[1]
    digest = json.loads(line)["registration"]
    copied.leaves.unlink()
    task = ReplayTask(folder=copied.root, step=1, leaf=line, registration=digest, threads=1)
    assert task.run().verdict is V.MATCH
    other = replace(task, registration="0" * 64).run()
    assert checks(other) == {"step.registration": V.MISMATCH}


def _cheating_run(monkeypatch, tmp_path, change, **sections):
    """Train a run in which `change(node, outputs, now)` alters what operators give."""
    now = SimpleNamespace(step=-1)

    def dishonest(node, tensors):
        return change(node, run_node(node, tensors), now)

    monkeypatch.setattr("trainer.executor.run_node", dishonest)
    config = runs.careless(**{"train": {"steps": CHEATED + 1}, **sections})
    run = runs.train(tmp_path / "cheat", config, lambda step: setattr(now, "step", step))
    monkeypatch.undo()
    return run


def _once(op, alter):
    """Alter the first output of the third call of an operator in the cheated step."""
    calls = {"step": -1, "count": 0}

    def change(node, outputs, now):
        if node.op != op or now.step != CHEATED:
            return outputs
        calls["count"] += 1
        if calls["count"] != 3:
            return outputs
        return (alter(outputs[0].clone()), *outputs[1:])

    return change


def _nudge(tensor):
    """Change the last bit of element 5."""
    tensor.reshape(-1)[5:6].view(torch.int32)[0] ^= 1
    return tensor


def _op_outputs(op):
    graph = derive_graph(runs.config())
    return [
        (index, graph.values[node.outputs[0]])
        for index, node in enumerate(graph.nodes)
        if node.op == op
    ]


def test_one_element_of_one_gemm(monkeypatch, tmp_path):
    """One bit of one product: found in that operator, at that element, and nowhere else."""
    run = _cheating_run(monkeypatch, tmp_path, _once("bitwitness::gemm", _nudge))
    report = replay_step(run, CHEATED, 1)
    assert checks(report) == {"step.values": V.MISMATCH}
    index, value = _op_outputs("bitwitness::gemm")[2]
    [found] = report.differences
    assert (found.node, found.value, found.op) == (index, value.name, "bitwitness::gemm")
    assert found.index == tuple(np.unravel_index(5, value.shape))
    assert (report.differing, found.differing) == (1, 1)
    assert int(found.committed_bits, 16) ^ int(found.recomputed_bits, 16) == 1
    assert found.evidence == "recorded"
    check = next(c for c in report.checks if c.name == "step.values")
    assert f"first in {value.name}, which bitwitness::gemm makes" in check.detail
    assert check.evidence["committed"] == found.committed_bits
    assert f"Step {CHEATED}" in found.words(CHEATED)
    for step in range(CHEATED):
        assert replay_step(run, step, 1).verdict is V.MATCH


@pytest.mark.parametrize(
    "op", ["bitwitness::rmsnorm", "bitwitness::causal_softmax", "bitwitness::swiglu"]
)
def test_wrong_operator_between_products(monkeypatch, tmp_path, op):
    """Products all right, a norm, softmax or activation off by a bit: the operator is named."""
    count = len(_op_outputs(op))
    calls = SimpleNamespace(n=0)

    def change(node, outputs, now):
        if node.op != op or now.step != CHEATED:
            return outputs
        calls.n += 1
        return (_nudge(outputs[0].clone()), *outputs[1:]) if calls.n == count else outputs

    run = _cheating_run(monkeypatch, tmp_path, change)
    report = replay_step(run, CHEATED, 1)
    assert checks(report) == {"step.values": V.MISMATCH}
    assert report.differences[0].op == op
    assert report.differences[0].node == _op_outputs(op)[-1][0]
    assert report.differences[0].evidence == "exact"


def test_wrong_optimiser(monkeypatch, tmp_path):
    """An update off by a bit leaves the arena right: the state's root and tensor show it."""
    run = _cheating_run(monkeypatch, tmp_path, _once("bitwitness::adamw", _nudge))
    report = replay_step(run, CHEATED, 1)
    assert checks(report) == {"step.state_after": V.MISMATCH}
    [found] = report.differences
    assert (found.op, found.rank, found.differing) == ("bitwitness::adamw", -1, 1)


def test_made_up_operands(monkeypatch, tmp_path):
    """Operands that fit their product but come from nowhere: their producer is named."""
    generator = torch.Generator().manual_seed(1)

    def invent(tensor):
        return torch.randn(tensor.shape, generator=generator)

    run = _cheating_run(monkeypatch, tmp_path, _once("bitwitness::rmsnorm", invent))
    report = replay_step(run, CHEATED, 1)
    assert checks(report) == {"step.values": V.MISMATCH}
    assert {found.op for found in report.differences} == {"bitwitness::rmsnorm"}


def test_cheaper_precision(monkeypatch, tmp_path):
    """Products of bf16 where heal was registered differ in every one of them."""
    original = run_node

    def cheap(node, tensors):
        if node.op == "bitwitness::gemm":
            node = replace(
                node, arguments=tuple("bf16" if a == "heal" else a for a in node.arguments)
            )
        return original(node, tensors)

    monkeypatch.setattr("trainer.executor.run_node", cheap)
    run = runs.train(tmp_path / "cheat", runs.careless(train={"steps": 1}))
    monkeypatch.undo()
    report = replay_step(run, 0, 1)
    assert checks(report) == {"step.values": V.MISMATCH}
    assert report.differences[0].op == "bitwitness::gemm"
    assert report.differing > 10_000
    assert len(report.differences) == 16


def test_not_a_number(monkeypatch, tmp_path):
    """A committed NaN is a mismatch where it was put, and ends the replay without an error."""
    graph = derive_graph(runs.config())
    victim = next(graph.values[n.outputs[0]].name for n in graph.nodes if n.op.endswith("gemm"))
    original = Recorder.sink

    def poison(self, value, tensor):
        # operators refuse NaN, so the cheat puts it only into what is recorded
        if value.name != victim:
            return original(self, value, tensor)
        poisoned = tensor.clone()
        poisoned.reshape(-1)[0] = float("nan")
        original(self, value, poisoned)
        return tensor

    monkeypatch.setattr(Recorder, "sink", poison)
    run = runs.train(tmp_path / "cheat", runs.careless(train={"steps": CHEATED + 1}))
    monkeypatch.undo()
    report = replay_step(run, CHEATED, 1)
    found = checks(report)
    assert found["step.values"] is V.MISMATCH
    assert found["step.finite"] is V.MISMATCH
    assert report.differences[0].value == victim


def test_learning_rate_told_right_used_wrong(monkeypatch, tmp_path):
    """The log says the schedule's rate, the update used another: the optimiser does not fit."""

    def change(node, outputs, now):
        cheat = node.op == "bitwitness::adamw" and now.step == CHEATED
        return (outputs[0] * 1.5, *outputs[1:]) if cheat else outputs

    run = _cheating_run(monkeypatch, tmp_path, change)
    report = replay_step(run, CHEATED, 1)
    assert checks(report) == {"step.state_after": V.MISMATCH}
    assert {found.op for found in report.differences} == {"bitwitness::adamw"}


def test_flipped_byte(copied):
    """One flipped bit in a stored arena or state: not the committed bytes, and not replayed."""
    for array, name in (("operands/0", "step.arena"), ("state", "step.state_before")):
        path = copied.store / array / "c" / "3" / "0"
        runs.flip(path, 1000)
        report = replay_step(copied.root, 3, 1)
        assert checks(report) == {name: V.MISMATCH}
        assert report.operators == 0
        runs.flip(path, 1000)
    assert replay_step(copied.root, 3, 1).verdict is V.MATCH


def test_other_bytes_with_right_checksum(copied):
    """Another step's chunk in place of this one's decodes well and still has another root."""
    chunks = copied.store / "operands" / "0" / "c"
    (chunks / "3" / "0").write_bytes((chunks / "4" / "0").read_bytes())
    report = replay_step(copied.root, 3, 1)
    assert checks(report) == {"step.arena": V.MISMATCH}
    assert report.roots["arenas/0"] == replay_step(copied.root, 4, 1).roots["arenas/0"]


def test_deleted_chunk(copied):
    """A chunk that is gone is no response, and is not read as zeros."""
    (copied.store / "operands" / "0" / "c" / "3" / "0").unlink()
    assert checks(replay_step(copied.root, 3, 1)) == {"step.arena": V.NON_RESPONSE}


def test_missing_entry(honest):
    """A step that the log does not have is no response."""
    assert checks(replay_step(honest, 99, 1)) == {"step.response": V.NON_RESPONSE}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Train an honest run of two ranks."""
    config = runs.config(train={"steps": 3, "world": 2})
    return runs.train(tmp_path_factory.mktemp("world") / "run", config)


def test_two_ranks_match(two_ranks):
    """Each rank's arena is replayed, and the sum over ranks with it."""
    graph = derive_graph(runs.config(train={"steps": 3, "world": 2}))
    report = replay_step(two_ranks, 1, 1)
    assert not checks(report)
    assert report.operators == 2 * len(graph.nodes)
    assert {"arenas/0", "arenas/1", "batches/0", "batches/1"} <= set(report.roots)
    assert report.roots["arenas/0"] != report.roots["arenas/1"]


def test_forged_sum(monkeypatch, tmp_path):
    """A sum over ranks that is not the sum of what they committed is found at the reduction."""
    original = runs._Seat.all_reduce

    def forged(self, flat):
        total = original(self, flat)
        total[7] += 1
        return total

    monkeypatch.setattr(runs._Seat, "all_reduce", forged)
    run = runs.train(tmp_path / "cheat", runs.careless(train={"steps": 3, "world": 2}))
    monkeypatch.undo()
    report = replay_step(run, 1, 1)
    assert checks(report) == {"step.values": V.MISMATCH}
    assert [found.op for found in report.differences] == ["bitwitness::all_reduce"] * 2
    assert [found.index for found in report.differences] == [(7,), (7,)]


def test_modelled_architecture_is_inconclusive(monkeypatch, tmp_path):
    """Where the arithmetic is only modelled, a differing product accuses nobody."""
    turing = {"numerics": {"arch": "turing"}, "train": {"steps": 3}}
    honest_run = runs.train(tmp_path / "run", runs.config(**turing))
    assert not checks(replay_step(honest_run, 1, 1))
    run = _cheating_run(monkeypatch, tmp_path, _once("bitwitness::gemm", _nudge), **turing)
    report = replay_step(run, CHEATED, 1)
    assert checks(report) == {"step.values": V.INCONCLUSIVE}
    assert report.differences[0].evidence == "modelled"


def test_modelled_architecture_is_exact_elsewhere(monkeypatch, tmp_path):
    """A norm is fixed by IEEE 754 on every architecture: there, a difference is a mismatch."""
    turing = {"numerics": {"arch": "turing"}, "train": {"steps": 3}}
    run = _cheating_run(monkeypatch, tmp_path, _once("bitwitness::rmsnorm", _nudge), **turing)
    assert checks(replay_step(run, CHEATED, 1)) == {"step.values": V.MISMATCH}


@pytest.mark.parametrize("profile", ["bf16", "fp32"])
def test_other_profiles(tmp_path, profile):
    """Runs of the other profiles replay to the bit as well."""
    sections = {"numerics": {"profile": profile}, "train": {"steps": 2}}
    run = runs.train(tmp_path / "run", runs.config(**sections))
    assert not checks(replay_step(run, 1, 1))


def test_evidence_levels():
    """Recorded, modelled, exact and unknown are told apart by architecture and profile."""
    base = runs.config().numerics

    def level(arch, profile):
        return evidence.level(base.model_copy(update={"arch": arch, "profile": profile}))

    assert level("hopper", "heal") == "recorded"
    assert level("turing", "heal") == "modelled"
    assert level("turing", "fp32") == "exact"
    assert level("turing", "bf16") == "unknown"


def test_e_zero_region():
    """Products of ordinary size are recorded; a step of tiny ones that are not zero is not."""
    row = numerics("hopper", "bf16")
    ones = np.ones(32, np.float32)
    tiny = np.full(32, 2.0**-70, np.float32)
    half = np.where(np.arange(32) < 16, ones, tiny)
    assert not evidence.reaches_e_zero(ones, ones, row)
    assert not evidence.reaches_e_zero(ones, tiny, row)
    assert evidence.reaches_e_zero(tiny, tiny, row)
    assert evidence.reaches_e_zero(half, half, row)
    assert not evidence.reaches_e_zero(half * (half > 0.5), half, row)
    assert not evidence.reaches_e_zero(0 * ones, ones, row)


def test_bits_are_compared_as_bits():
    """Minus zero is not zero, one NaN is not another, and equal NaNs are equal."""
    a = np.array([[0.0, 1.0], [np.nan, 2.0]], np.float32)
    assert first_difference(a, a.copy()) is None
    b = a.copy()
    b[0, 0] = -0.0
    found = first_difference(a, b)
    assert found is not None
    assert (found.index, found.committed_bits, found.recomputed_bits) == (
        (0, 0), "00000000", "80000000",
    )  # fmt: skip
    c = a.copy()
    c.view(np.uint32)[1, 0] ^= 1
    found = first_difference(a, c)
    assert found is not None
    assert (found.index, found.differing) == ((1, 0), 1)
