"""Attacks 9 to 17: another trajectory than the one that was registered and logged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import trainer.engine
import trainer.prepare
import trainer.rank
from tests.attacks.conftest import CHEATED_STEP, cheating_run, judge, tamper_with
from tests.verifier import runs
from trainer.data import batch_at
from trainer.executor import StepResult, execute
from trainer.graph import StepGraph
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript import canonical
from transcript.files import write_atomic
from transcript.predicates import Commitment, WeightFile
from transcript.run import RunFolder
from transcript.statements import open_statement, sign_statement
from verifier.verdict import Overall, Verdict

MISMATCH = {Verdict.MISMATCH}


def resign(folder: RunFolder, **changes: object) -> None:
    """Sign the commitment again, with some fields changed, as a lying trainer could."""
    old = open_statement(folder.commitment.read_bytes(), Commitment, [runs.KEY.public]).predicate
    envelope, _ = sign_statement(old.model_copy(update=changes), runs.KEY)
    write_atomic(folder.commitment, envelope)


def test_other_learning_rate_that_is_logged(tmp_path: Path) -> None:
    """A step that logs another learning rate than the schedule's is found without replay."""
    original = trainer.rank.step_scalars

    def scalars(optim, steps, step):
        found = original(optim, steps, step)
        if step == CHEATED_STEP:
            found[0] *= np.float32(1.25)
        return found

    run = cheating_run(
        tmp_path / "run", lambda patch: patch.setattr(trainer.rank, "step_scalars", scalars)
    )
    faults = judge(run).faults()
    assert faults["scalars.schedule"] == MISMATCH
    assert faults[f"step.scalars@{CHEATED_STEP}"] == MISMATCH
    assert {name.partition("@")[2] for name in faults} == {"", str(CHEATED_STEP)}


def cheating_execute(change):
    """Return an `execute` that changes the inputs of the cheated step behind the log's back."""
    count = [0]

    def cheat(graph: StepGraph, **inputs) -> StepResult:
        step, count[0] = count[0], count[0] + 1
        return execute(graph, **(change(inputs) if step == CHEATED_STEP else inputs))

    return cheat


def test_other_learning_rate_that_is_hidden(tmp_path: Path) -> None:
    """A step that used another learning rate than it logged gives another state."""
    cheat = cheating_execute(lambda inputs: inputs | {"scalars": inputs["scalars"] * 1.25})
    run = cheating_run(
        tmp_path / "run", lambda patch: patch.setattr(trainer.engine, "execute", cheat)
    )
    judgement = judge(run)
    assert judgement.faults() == {f"step.state_after@{CHEATED_STEP}": MISMATCH}
    assert judgement.overall is Overall.FAIL


def test_swapped_batch_that_is_logged(tmp_path: Path) -> None:
    """A step trained on another step's batch does not have the scheduled root."""

    def swapped(tokens, root, config, step, rank):
        return batch_at(tokens, root, config, step + (step == CHEATED_STEP), rank)

    run = cheating_run(
        tmp_path / "run", lambda patch: patch.setattr(trainer.rank, "batch_at", swapped)
    )
    assert judge(run).faults() == {
        "batch.schedule": MISMATCH,
        f"step.batch@{CHEATED_STEP}": MISMATCH,
    }


def test_swapped_batch_that_is_hidden(tmp_path: Path) -> None:
    """A step that logged the scheduled batch and used another is found at the first product."""

    def swap(inputs):
        tokens = inputs["batch"]["tokens"]
        return inputs | {"batch": inputs["batch"] | {"tokens": tokens.flip(0).contiguous()}}

    run = cheating_run(
        tmp_path / "run",
        lambda patch: patch.setattr(trainer.engine, "execute", cheating_execute(swap)),
    )
    judgement = judge(run)
    assert judgement.faults()[f"step.values@{CHEATED_STEP}"] == MISMATCH
    assert judgement.step(CHEATED_STEP).differences[0].op == "bitwitness::rmsnorm"


def test_skipped_update(tmp_path: Path) -> None:
    """A step whose update was never applied is found at its state."""

    def skip(graph: StepGraph, **inputs) -> StepResult:
        result = execute(graph, **inputs)
        return StepResult(state=dict(inputs["state"]), metrics=result.metrics)

    run = cheating_run(
        tmp_path / "run", lambda patch: patch.setattr(trainer.engine, "execute", skip)
    )
    expected = {f"step.state_after@{t}": MISMATCH for t in range(runs.STEPS)}
    assert judge(run).faults() == expected


def test_forged_all_reduce(tmp_path: Path) -> None:
    """A sum over ranks that is not the sum of their committed shards is found at the reduction.

    All ranks go on with the forged sum, so they agree with each other.
    """

    def change(step, value, tensor):
        if step == CHEATED_STEP and "all_reduce" in value.name:
            tensor = tensor.clone()
            tensor[7] += 1e-3
        return tensor

    run = cheating_run(
        tmp_path / "run", tamper_with(change), train={"world": 2, "steps": CHEATED_STEP + 1}
    )
    judgement = judge(run)
    assert judgement.faults() == {f"step.values@{CHEATED_STEP}": MISMATCH}
    first = judgement.step(CHEATED_STEP).differences[0]
    assert (first.op, first.index) == ("bitwitness::all_reduce", (7,))


def test_skipped_rank(tmp_path: Path) -> None:
    """A rank whose batch was never computed is found: its arena is another rank's."""

    def lazy(tokens, root, config, step, rank):
        return batch_at(tokens, root, config, step, 0)

    run = cheating_run(
        tmp_path / "run",
        lambda patch: patch.setattr(trainer.rank, "batch_at", lazy),
        train={"world": 2, "steps": 2},
    )
    faults = judge(run).faults()
    assert faults["batch.schedule"] == MISMATCH
    assert faults["step.batch@0"] == MISMATCH


def test_other_initial_state(tmp_path: Path) -> None:
    """A run that starts from other weights than its seed gives is found at step 0."""

    def warm(config):
        state = initial_state(config)
        state["params/head"] = state["params/head"] * np.float32(1.5)
        return state

    run = cheating_run(
        tmp_path / "run", lambda patch: patch.setattr(trainer.prepare, "initial_state", warm)
    )
    judgement = judge(run)
    assert judgement.overall is Overall.FAIL
    assert list(judgement.faults().values()) == [MISMATCH] * len(judgement.faults())
    assert any("initial" in name for name in judgement.faults())


def test_other_graph_than_registered(tmp_path: Path) -> None:
    """A run that computes another model than its configuration says is found without replay."""
    shallow = derive_graph(runs.config(model={"norm_eps": "0.001"}))

    def patches(patch):
        patch.setattr(trainer.prepare, "derive_graph", lambda _: shallow)
        patch.setattr(trainer.rank, "derive_graph", lambda _: shallow)

    faults = judge(cheating_run(tmp_path / "run", patches)).faults()
    assert faults["graph.digest"] == MISMATCH


def test_spliced_state(copied: RunFolder) -> None:
    """A step that does not start where the one before ended breaks the chain."""
    lines = copied.leaves.read_bytes().splitlines()
    leaf = json.loads(lines[3])
    leaf["state_before"] = "ab" * 32
    lines[3] = canonical.dumps(leaf)
    copied.leaves.write_bytes(b"\n".join(lines) + b"\n")
    faults = judge(copied.root).faults()
    assert faults["state.chain"] == MISMATCH
    assert "log.root" in faults


@pytest.mark.parametrize("signed", [False, True])
def test_swapped_final_weights(copied: RunFolder, *, signed: bool) -> None:
    """Other weights than the final state's are found, also if the trainer signs for them."""
    weights = safetensors.numpy.load(copied.weights.read_bytes())
    weights["head"] = weights["head"] + np.float32(1e-3)
    data = safetensors.numpy.save(weights)
    copied.weights.write_bytes(data)
    if signed:
        path = copied.weights.relative_to(copied.root).as_posix()
        entry = WeightFile(path=path, sha256=hashlib.sha256(data).hexdigest())
        resign(copied, weights=(entry,))
    judgement = judge(copied.root)
    expected = {"weights.final": MISMATCH}
    if not signed:
        expected["weights.digest"] = MISMATCH
    assert judgement.faults() == expected


def test_commitment_to_another_final_state(copied: RunFolder) -> None:
    """A commitment that names another final state than the log's last is found."""
    resign(copied, final_state_root="ab" * 32)
    assert judge(copied.root).faults()["state.final"] == MISMATCH
