"""A generation's audit accepts an honest one and finds each lie where it was told."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil

import numpy as np
import pytest

import trainer.engine
import trainer.generate.prepare
from tests.verifier import runs
from tests.verifier.generations import (
    CHEATED,
    PROMPT,
    STEPS,
    cheat,
    faults,
    make,
    verify,
)
from trainer.generate import TrainedModel, generate
from transcript.keys import PrivateKey
from transcript.run import RunFolder
from verifier.audit import Audit, AuditOptions
from verifier.context import open_context, subject_of
from verifier.errors import BudgetError, OptionError, RunError
from verifier.replay import ReplayTask, replay_step, run_task
from verifier.verdict import Overall, Verdict

V = Verdict


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Folder of a finished run of the tiny model; not to be changed."""
    return runs.train(tmp_path_factory.mktemp("trained") / "run", runs.config())


@pytest.fixture(scope="session")
def honest(trained, tmp_path_factory):
    """Folder of an honest generation; not to be changed."""
    return make(trained, tmp_path_factory.mktemp("generation"))


@pytest.fixture
def copied(honest, tmp_path):
    return RunFolder(shutil.copytree(honest, tmp_path / "copy"))


def test_an_honest_generation_passes(honest, trained):
    """Everything matches, every step was replayed, every committed value compared."""
    report = verify(honest, trained)
    assert report.verdict is Overall.PASS
    assert faults(report) == ({}, {})
    assert [s.step for s in report.steps] == list(range(STEPS))
    graph = open_context(honest).graph
    assert {s.values for s in report.steps} == {len(graph.committed)}
    names = {c.name for c in report.checks}
    assert {"weights.final", "text.final", "initial_state", "log.root", "state.chain"} <= names
    assert len(names) == len(report.checks)


@pytest.mark.parametrize("cache", ["int16", "f32"])
@pytest.mark.parametrize("profile", ["fp32", "bf16", "exact"])
def test_every_profile_and_cache_passes(profile, cache, tmp_path):
    """Verification replays each profile with either cache."""
    run = runs.train(tmp_path / "run", runs.config(numerics={"profile": profile}))
    made = generate(run, PROMPT, 3, key=runs.KEY, cache=cache, threads=1)
    assert verify(made.folder, run).verdict is Overall.PASS


def test_a_changed_token_is_caught(trained, tmp_path):
    """A byte that is not the largest logit's shows in the step that put it there, and only there.

    The tokens after it follow from it honestly.
    """

    def change(state, step):
        state["tokens"][0, step + 1] ^= 1

    report = verify(cheat(trained, tmp_path / "g", state=change), trained)
    assert report.verdict is Overall.FAIL
    assert faults(report) == ({}, {CHEATED: {"step.state_after": V.MISMATCH}})
    check = next(c for c in report.steps[CHEATED].checks if not c.ok)
    assert f"first in tokens[0, {CHEATED + 1}]" in check.detail


@pytest.mark.parametrize("name", ["layer0.k", "layer1.v", "layer1.k_scale"])
def test_a_changed_cache_entry_is_caught(trained, tmp_path, name):
    """One unit in one entry of the cache shows in the step that wrote it."""

    def change(state, step):
        state[name].numpy()[0, 1, step - 2, 0] += 1

    report = verify(cheat(trained, tmp_path / "g", state=change), trained)
    assert faults(report) == ({}, {CHEATED: {"step.state_after": V.MISMATCH}})
    check = next(c for c in report.steps[CHEATED].checks if not c.ok)
    assert f"first in {name}[0, 1, {CHEATED - 2}, 0]" in check.detail


@pytest.mark.parametrize("operator", ["gemm", "int16_scores", "int16_mix"])
def test_a_changed_product_is_caught(trained, tmp_path, operator):
    """One bit of a logit, score or mixture shows in that value, with its operator named."""

    def change(graph, value, tensor):
        nodes = [n for n in graph.nodes if n.op == f"bitwitness::{operator}"]
        if value.id != nodes[-1].outputs[0]:
            return tensor
        lie = tensor.clone()
        lie.view(-1).numpy().view(np.uint32)[3] ^= 1
        return lie

    report = verify(cheat(trained, tmp_path / "g", sink=change), trained)
    whole, steps = faults(report)
    assert report.verdict is Overall.FAIL
    assert whole == {}
    assert steps == {CHEATED: {"step.values": V.MISMATCH}}
    (difference,) = report.steps[CHEATED].differences
    assert difference.op == f"bitwitness::{operator}"
    assert difference.differing == 1


def test_a_lie_is_found_with_a_plain_cache_too(trained, tmp_path):
    """With an f32 cache the scores are GEMMs over the state after, and are judged alike."""

    def change(graph, value, tensor):
        score = [n for n in graph.nodes if n.op == "bitwitness::gemm"][1]
        return tensor + 1 if value.id == score.outputs[0] else tensor

    folder = cheat(trained, tmp_path / "g", sink=change, cache="f32")
    whole, steps = faults(verify(folder, trained))
    assert (whole, steps) == ({}, {CHEATED: {"step.values": V.MISMATCH}})


def test_other_weights_are_caught(trained, tmp_path, monkeypatch):
    """Parameters that are not the run's are named; the arithmetic over them is right."""
    read = TrainedModel.read

    def forged(folder):
        source = read(folder)
        changed = source.parameters["layer1.down"].copy()
        changed[3, 4] *= 2
        return dataclasses.replace(source, parameters={**source.parameters, "layer1.down": changed})

    monkeypatch.setattr(TrainedModel, "read", forged)
    report = verify(make(trained, tmp_path / "g"), trained)
    assert report.verdict is Overall.FAIL
    assert faults(report) == ({"weights.final": V.MISMATCH}, {})
    check = next(c for c in report.checks if c.name == "weights.final")
    assert check.evidence["found"] == "layer1.down"


def test_another_run_is_caught(honest, tmp_path):
    """A generation does not pass as one of another run with other weights."""
    other = runs.train(tmp_path / "run", runs.config(optim={"learning_rate": "0.02"}))
    whole, steps = faults(verify(honest, other, steps=1))
    assert whole == {"run.commitment": V.MISMATCH, "weights.final": V.MISMATCH}
    assert steps == {}


def test_a_hidden_start_is_caught(trained, tmp_path, monkeypatch):
    """A cache that is not empty at the start is a prompt that nobody was shown."""
    begin = trainer.generate.prepare.initial_state

    def primed(config, prompts):
        state = begin(config, prompts)
        state["layer0.v"][..., -1, :] = 1
        return state

    monkeypatch.setattr(trainer.generate.prepare, "initial_state", primed)
    whole, _ = faults(verify(make(trained, tmp_path / "g"), trained))
    assert whole == {"initial_state": V.MISMATCH}


def test_another_text_is_caught(copied, trained):
    """The exported text must be the committed file and the final state's tokens."""
    runs.flip(copied.root / "text/output.bin", -1)
    whole, _ = faults(verify(copied.root, trained))
    assert whole == {"text.digest": V.MISMATCH, "text.final": V.MISMATCH}


def test_an_edited_log_is_caught(copied, trained):
    """A leaf that was changed afterwards breaks root, tree heads and its own step."""
    lines = copied.leaves.read_bytes().splitlines(keepends=True)
    leaf = json.loads(lines[3])
    root = leaf["arenas"][0]
    lines[3] = lines[3].replace(root.encode(), root[::-1].encode())
    copied.leaves.write_bytes(b"".join(lines))
    whole, steps = faults(verify(copied.root, trained))
    assert whole == {"log.root": V.MISMATCH, "log.checkpoints": V.INVALID_COMMITMENT}
    assert steps == {3: {"step.arena": V.MISMATCH}}


def test_a_withheld_arena_is_never_a_pass(copied, trained):
    """What is missing is NON_RESPONSE, and the verdict INCOMPLETE."""
    (copied.store / "operands/0/c/5/0").unlink()
    report = verify(copied.root, trained)
    assert faults(report) == ({}, {5: {"step.arena": V.NON_RESPONSE}})
    assert report.verdict is Overall.INCOMPLETE


@pytest.mark.parametrize("array", ["operands/0", "state", "constants"])
def test_a_changed_chunk_is_caught(copied, trained, array):
    """One bit flipped anywhere in the store is a mismatch of what it belongs to."""
    runs.flip(copied.store / array / "c/0/0", 11)
    report = verify(copied.root, trained)
    assert report.verdict is Overall.FAIL


def test_without_the_run_the_verdict_is_incomplete(honest):
    """Whose weights these are stays open, and that is said."""
    report = verify(honest, steps=2)
    assert report.verdict is Overall.INCOMPLETE
    assert faults(report) == ({"weights.final": V.INCONCLUSIVE}, {})
    assert [s.step for s in report.steps] == [0, STEPS - 1]


def test_a_generation_in_its_run_needs_no_naming(trained, tmp_path):
    """In RUN/generations/ID the run is found; another one can be named all the same."""
    run = shutil.copytree(trained, tmp_path / "run")
    folder = make(run, None)
    assert folder.parent == run / "generations"
    assert verify(folder, steps=2).verdict is Overall.PASS
    other = runs.train(tmp_path / "other", runs.config(optim={"learning_rate": "0.02"}))
    assert verify(folder, other, steps=2).verdict is Overall.FAIL


@pytest.mark.parametrize("broken", ["commitment.dsse.json", "weights/model.safetensors"])
def test_a_run_that_is_not_whole_is_a_check(honest, trained, tmp_path, broken):
    """What the training run lacks is NON_RESPONSE: the audit is made, and does not pass."""
    run = shutil.copytree(trained, tmp_path / "run")
    (run / broken).unlink()
    report = verify(honest, run, steps=2)
    assert faults(report) == ({"weights.final": V.NON_RESPONSE}, {})
    assert report.verdict is Overall.INCOMPLETE


def test_steps_that_were_not_recorded_are_not_answered(trained, tmp_path):
    """With sparse recording only recorded steps are drawn; no other can be replayed."""
    from trainer.config import RecordConfig

    folder = make(trained, tmp_path / "g", record=RecordConfig(policy="every", every=5))
    report = verify(folder, trained)
    assert report.verdict is Overall.PASS
    assert [s.step for s in report.steps] == [0, 5, 10, STEPS - 1]
    for step in (1, STEPS):
        assert replay_step(folder, step, 1).verdict is V.NON_RESPONSE


def test_each_part_is_drawn_from(honest):
    """With four steps or more, one that feeds the prompt and one that generates are replayed."""
    border = len(PROMPT) - 1
    for i in range(20):
        options = AuditOptions(steps=4, nonce=i.to_bytes(8, "big"))
        with Audit.open(honest, options) as audit:
            first, fed, generated, last = audit.samples()
        assert (first, last) == (0, STEPS - 1)
        assert 0 < fed < border <= generated < STEPS - 1


def test_tasks_and_reports_travel(honest):
    """A step's task goes to a worker and its report comes back, as for training."""
    line = (honest / "log" / "leaves.jsonl").read_bytes().splitlines()[CHEATED]
    digest = json.loads(line)["registration"]
    task = ReplayTask(folder=honest, step=CHEATED, leaf=line, registration=digest, threads=1)
    report = run_task(pickle.loads(pickle.dumps(task)))  # noqa: S301
    assert report.verdict is V.MATCH
    assert pickle.loads(pickle.dumps(report)) == report  # noqa: S301


def test_what_is_no_generation_is_refused(trained, honest, copied):
    """A training run comes from no other; a stranger's key and a broken registration are told."""
    with pytest.raises(OptionError, match=r"registration\.dsse\.json: config is of a training run"):
        verify(trained, trained)
    report = verify(honest, trained, trusted=(PrivateKey.generate().public,))
    assert faults(report) == ({"registration.signature": V.INVALID_COMMITMENT}, {})
    assert "not a trusted one" in report.checks[0].detail
    runs.flip(copied.registration, 60)
    whole, _ = faults(verify(copied.root, trained, steps=2))
    assert whole["registration.signature"] is V.INVALID_COMMITMENT
    copied.registration.write_bytes(b"{}")
    with pytest.raises(RunError, match=r"registration\.dsse\.json"):
        verify(copied.root, trained)


@pytest.mark.parametrize(
    "model", [{"layers": 5000}, {"context": 1 << 20}, {"width": 1 << 20, "heads": 1}]
)
def test_a_bomb_is_refused_before_anything_is_derived(honest, model):
    """Sizes beyond this machine are refused by the configuration's numbers alone."""
    document = open_context(honest).subject.document()
    bomb = {**document, "batch": 4096, "model": {**document["model"], **model}}
    with pytest.raises(BudgetError):
        subject_of(bomb).check_size()
