"""A generation's verification accepts an honest one and finds each lie where it was told."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

import trainer.engine
import trainer.generate.prepare
from tests.verifier import runs
from trainer.executor import execute
from trainer.generate import TrainedModel, generate
from transcript.keys import PrivateKey
from transcript.run import RunFolder
from verifier.errors import BudgetError, OptionError, RunError
from verifier.generation import verify_generation
from verifier.generation_replay import check_size, open_generation
from verifier.verdict import Overall, Verdict

PROMPT, TOKENS = b"import", 8
STEPS = len(PROMPT) + TOKENS - 1
CHEATED = 8
V = Verdict


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Folder of a finished run of the tiny model; not to be changed."""
    return runs.train(tmp_path_factory.mktemp("trained") / "run", runs.config())


@pytest.fixture(scope="session")
def honest(trained, tmp_path_factory):
    """Folder of an honest generation; not to be changed."""
    out = tmp_path_factory.mktemp("generation")
    return generate(trained, PROMPT, TOKENS, key=runs.KEY, out=out, threads=1).folder


@pytest.fixture
def copied(honest, tmp_path):
    return RunFolder(shutil.copytree(honest, tmp_path / "copy"))


@pytest.fixture
def cheat(trained, tmp_path, monkeypatch):
    """Generate with a dishonest engine that commits consistently to what it makes up."""

    def run(change=None, sink_change=None, **options):
        def dishonest(graph, *, batch, sink, **rest):
            (step,) = batch["position"].tolist()

            def lying(value, tensor):
                if step == CHEATED and sink_change is not None:
                    tensor = sink_change(graph, value, tensor)
                return sink(value, tensor)

            result = execute(graph, batch=batch, sink=lying, **rest)
            if step == CHEATED and change is not None:
                change(result.state, step)
            return result

        monkeypatch.setattr(trainer.engine, "execute", dishonest)
        out = tmp_path / "cheat"
        return generate(trained, PROMPT, TOKENS, key=runs.KEY, out=out, threads=1, **options).folder

    return run


def faults(report):
    """Return what is not a MATCH: verdicts by check, steps by their number."""
    whole = {c.name: c.verdict for c in report.checks if not c.ok}
    steps = {
        s.step: {c.name: c.verdict for c in s.checks if not c.ok}
        for s in report.steps
        if s.verdict is not V.MATCH
    }
    return whole, steps


def test_an_honest_generation_passes(honest, trained):
    """Everything matches, every step was replayed, every committed value compared."""
    report = verify_generation(honest, run=trained, threads=1)
    assert report.verdict is Overall.PASS
    assert faults(report) == ({}, {})
    assert [s.step for s in report.steps] == list(range(STEPS))
    graph = open_generation(honest).graph
    assert {s.values for s in report.steps} == {len(graph.committed)}
    assert report.text.startswith(PROMPT)
    names = {c.name for c in report.checks}
    assert {"weights.final", "text.final", "initial_state", "log.root", "state.chain"} <= names


@pytest.mark.parametrize("cache", ["int16", "f32"])
@pytest.mark.parametrize("profile", ["fp32", "bf16", "exact"])
def test_every_profile_and_cache_passes(profile, cache, tmp_path):
    """Verification replays each profile with either cache."""
    run = runs.train(tmp_path / "run", runs.config(numerics={"profile": profile}))
    made = generate(run, PROMPT, 3, key=runs.KEY, cache=cache, threads=1)
    assert verify_generation(made.folder, run=run, threads=1).verdict is Overall.PASS


def test_a_changed_token_is_caught(cheat, trained):
    """A byte that is not the largest logit's shows in the step that put it there, and only there.

    The tokens after it follow from it honestly.
    """

    def change(state, step):
        state["tokens"][0, step + 1] ^= 1

    report = verify_generation(cheat(change), run=trained, threads=1)
    assert report.verdict is Overall.FAIL
    assert faults(report) == ({}, {CHEATED: {"step.state_after": V.MISMATCH}})
    check = next(c for c in report.steps[CHEATED].checks if not c.ok)
    assert f"first in tokens[0, {CHEATED + 1}]" in check.detail


@pytest.mark.parametrize("name", ["layer0.k", "layer1.v", "layer1.k_scale"])
def test_a_changed_cache_entry_is_caught(cheat, trained, name):
    """One unit in one entry of the cache shows in the step that wrote it."""

    def change(state, step):
        state[name].numpy()[0, 1, step - 2, 0] += 1

    report = verify_generation(cheat(change), run=trained, threads=1)
    assert faults(report) == ({}, {CHEATED: {"step.state_after": V.MISMATCH}})
    check = next(c for c in report.steps[CHEATED].checks if not c.ok)
    assert f"first in {name}[0, 1, {CHEATED - 2}, 0]" in check.detail


@pytest.mark.parametrize("operator", ["gemm", "int16_scores", "int16_mix"])
def test_a_changed_product_is_caught(cheat, trained, operator):
    """One bit of a logit, score or mixture shows in that value, with its operator named."""

    def change(graph, value, tensor):
        nodes = [n for n in graph.nodes if n.op == f"bitwitness::{operator}"]
        if value.id != nodes[-1].outputs[0]:
            return tensor
        lie = tensor.clone()
        lie.view(-1).numpy().view(np.uint32)[3] ^= 1
        return lie

    report = verify_generation(cheat(sink_change=change), run=trained, threads=1)
    whole, steps = faults(report)
    assert report.verdict is Overall.FAIL
    assert whole == {}
    assert steps == {CHEATED: {"step.values": V.MISMATCH}}
    (difference,) = report.steps[CHEATED].differences
    assert difference.op == f"bitwitness::{operator}"
    assert difference.differing == 1


def test_a_lie_is_found_with_a_plain_cache_too(trained, cheat):
    """With an f32 cache the scores are GEMMs over the state after, and are judged alike."""

    def change(graph, value, tensor):
        score = [n for n in graph.nodes if n.op == "bitwitness::gemm"][1]
        return tensor + 1 if value.id == score.outputs[0] else tensor

    folder = cheat(sink_change=change, cache="f32")
    whole, steps = faults(verify_generation(folder, run=trained, threads=1))
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
    made = generate(trained, PROMPT, TOKENS, key=runs.KEY, out=tmp_path / "g", threads=1)
    report = verify_generation(made.folder, run=trained, threads=1)
    assert report.verdict is Overall.FAIL
    assert faults(report) == ({"weights.final": V.MISMATCH}, {})
    check = next(c for c in report.checks if c.name == "weights.final")
    assert check.evidence["found"] == "layer1.down"


def test_another_run_is_caught(honest, tmp_path):
    """A generation does not pass as one of another run with other weights."""
    other = runs.train(tmp_path / "run", runs.config(optim={"learning_rate": "0.02"}))
    whole, steps = faults(verify_generation(honest, run=other, threads=1, steps=[0]))
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
    made = generate(trained, PROMPT, TOKENS, key=runs.KEY, out=tmp_path / "g", threads=1)
    whole, _ = faults(verify_generation(made.folder, run=trained, threads=1))
    assert whole == {"initial_state": V.MISMATCH}


def test_another_text_is_caught(copied, trained):
    """The exported text must be the committed file and the final state's tokens."""
    runs.flip(copied.root / "text/output.bin", -1)
    whole, _ = faults(verify_generation(copied.root, run=trained, threads=1))
    assert whole == {"text.digest": V.MISMATCH, "text.final": V.MISMATCH}


def test_an_edited_log_is_caught(copied, trained):
    """A leaf that was changed afterwards breaks root, tree heads and its own step."""
    lines = copied.leaves.read_bytes().splitlines(keepends=True)
    leaf = json.loads(lines[3])
    root = leaf["arenas"][0]
    lines[3] = lines[3].replace(root.encode(), root[::-1].encode())
    copied.leaves.write_bytes(b"".join(lines))
    whole, steps = faults(verify_generation(copied.root, run=trained, threads=1))
    assert whole == {"log.root": V.MISMATCH, "log.checkpoints": V.INVALID_COMMITMENT}
    assert steps == {3: {"step.arena": V.MISMATCH}}


def test_a_withheld_arena_is_never_a_pass(copied, trained):
    """What is missing is NON_RESPONSE, and the verdict INCOMPLETE."""
    (copied.store / "operands/0/c/5/0").unlink()
    report = verify_generation(copied.root, run=trained, threads=1)
    assert faults(report) == ({}, {5: {"step.arena": V.NON_RESPONSE}})
    assert report.verdict is Overall.INCOMPLETE


@pytest.mark.parametrize("array", ["operands/0", "state", "constants"])
def test_a_changed_chunk_is_caught(copied, trained, array):
    """One bit flipped anywhere in the store is a mismatch of what it belongs to."""
    runs.flip(copied.store / array / "c/0/0", 11)
    report = verify_generation(copied.root, run=trained, threads=1)
    assert report.verdict is Overall.FAIL


def test_without_the_run_the_verdict_is_incomplete(honest):
    """Whose weights these are stays open, and that is said."""
    report = verify_generation(honest, threads=1, steps=[0, STEPS - 1])
    assert report.verdict is Overall.INCOMPLETE
    assert faults(report) == ({"weights.final": V.INCONCLUSIVE}, {})
    assert [s.step for s in report.steps] == [0, STEPS - 1]


def test_steps_that_were_not_recorded_are_refused(honest):
    """Asking for a step beyond the end is the caller's error."""
    with pytest.raises(OptionError, match="were not recorded"):
        verify_generation(honest, steps=[STEPS])


def test_what_is_no_generation_is_refused(trained, honest, copied):
    """A training run, a stranger's key, or a forged registration is not verified."""
    with pytest.raises(RunError, match=r"registration\.dsse\.json: config: "):
        verify_generation(trained)
    with pytest.raises(RunError, match="not a trusted one"):
        verify_generation(honest, trusted=(PrivateKey.generate().public,))
    runs.flip(copied.registration, 60)
    with pytest.raises(RunError):
        verify_generation(copied.root)


@pytest.mark.parametrize(
    "model", [{"layers": 5000}, {"context": 1 << 20}, {"width": 1 << 20, "heads": 1}]
)
def test_a_bomb_is_refused_before_anything_is_derived(honest, model):
    """Sizes beyond this machine are refused by the configuration's numbers alone."""
    config = open_generation(honest).config
    bomb = config.model_copy(update={"model": config.model.model_copy(update=model), "batch": 4096})
    with pytest.raises(BudgetError):
        check_size(bomb)
