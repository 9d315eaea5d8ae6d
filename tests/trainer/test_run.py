"""A run, end to end: equal roots, restarts, and a loss that is float32's."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import yaml

from tests.conftest import TINY, tiny_document
from tests.runs import train_run
from tests.trainer.reference import Reference
from trainer.commit import Committer
from trainer.config import RunConfig
from trainer.data import load_corpus
from trainer.dataset import write_dataset
from trainer.errors import ConfigError, DivergenceError
from trainer.plan import kept_states
from trainer.prepare import prepare_run
from trainer.rank import RankStep, RankTrainer
from transcript.errors import ForkError, MissingError
from transcript.keys import PrivateKey
from transcript.log import LogReader
from transcript.predicates import Commitment
from transcript.run import RunFolder
from transcript.statements import open_statement, read_registration

ROOT = Path(__file__).parents[2]
KEY = PrivateKey.generate()
CONFIG = RunConfig.from_document(TINY)


def digests(step: RankStep) -> dict[str, object]:
    """Everything of a step but its timings, and the probe, which is of the run's own id."""
    return {
        field.name: getattr(step, field.name)
        for field in dataclasses.fields(step)
        if not field.name.endswith("seconds") and field.name != "probe"
    }


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, list[RankStep]]:
    root = tmp_path_factory.mktemp("run") / "tiny"
    return RunFolder(root), train_run(CONFIG, root, KEY)


def test_two_runs_have_equal_roots_with_one_and_two_threads(honest, tmp_path: Path) -> None:
    """Every root and metric of a run follows from its configuration, whatever the threads."""
    again = train_run(CONFIG, tmp_path / "again", PrivateKey.generate(), threads=2)
    assert [digests(s) for s in again] == [digests(s) for s in honest[1]]


def test_commitment_names_log_state_and_weights(honest) -> None:
    """The commitment's log head, final state and weights file are those of the run."""
    folder, steps = honest
    commitment = open_statement(folder.commitment.read_bytes(), Commitment, [KEY.public]).predicate
    assert commitment.final_state_root == steps[-1].state_after
    assert commitment.log.size == len(steps) == CONFIG.train.steps
    assert commitment.registration == read_registration(folder).digest
    with LogReader(folder.log, commitment.run_id) as log:
        assert [log.leaf(t).arenas[0] for t in range(len(steps))] == [s.arena for s in steps]
    weights = safetensors.numpy.load(folder.weights.read_bytes())
    assert weights["layer0.qkv"].shape == (32, 96)


def test_state_chain_is_closed(honest) -> None:
    """The state after a step is the state before the next, from the registered initial state."""
    folder, steps = honest
    assert steps[0].state_before == read_registration(folder).predicate.initial_state_root
    for before, after in pairwise(steps):
        assert before.state_after == after.state_before


def test_restored_rank_reproduces_its_roots(honest) -> None:
    """A rank that goes back to a kept state says the same of every step again."""
    folder, steps = honest
    rank = RankTrainer(CONFIG, folder, threads=1)
    rank.restore(2)
    assert [digests(rank.run_step()) for _ in range(2)] == [digests(s) for s in steps[2:]]


def test_restoring_an_unkept_state_is_refused(tmp_path: Path) -> None:
    """Only kept states can be gone back to."""
    document = tiny_document(record={"policy": "every", "every": 3})
    config = RunConfig.from_document(document)
    assert kept_states(config) == [0, 3, 4]
    train_run(config, tmp_path, KEY)
    rank = RankTrainer(config, RunFolder(tmp_path), threads=1)
    rank.restore(3)
    with pytest.raises(MissingError):
        rank.restore(2)


def test_committer_takes_a_repeated_step_and_refuses_another(honest, tmp_path: Path) -> None:
    """The same step with the same digests is a no-op, with other digests a fork."""
    folder = RunFolder(tmp_path)
    prepare_run(CONFIG, folder, KEY)
    step = RankTrainer(CONFIG, folder, threads=1).run_step()
    committer = Committer(CONFIG, folder, KEY)
    committer.append([step])
    committer.append([step])
    assert len(committer) == 1
    with pytest.raises(ForkError):
        committer.append([dataclasses.replace(step, arena="00" * 32)])
    with pytest.raises(DivergenceError, match="1 of 4 steps"):
        committer.finish()
    committer.close()


def test_ranks_that_disagree_are_refused(tmp_path: Path) -> None:
    """Ranks must share the state to the bit."""
    document = tiny_document(train={"world": 2})
    config = RunConfig.from_document(document)
    folder = RunFolder(tmp_path)
    prepare_run(config, folder, KEY)
    committer = Committer(config, folder, KEY)
    first = RankStep(
        rank=0, step=0, state_before="aa" * 32, state_after="bb" * 32, batch="cc" * 32,
        scalars=(), arena="dd" * 32, metrics={}, compute_seconds=0.0, record_seconds=0.0,
    )  # fmt: skip
    second = dataclasses.replace(first, rank=1, state_after="ee" * 32)
    with pytest.raises(DivergenceError, match="disagree on state_after"):
        committer.append([first, second])
    with pytest.raises(DivergenceError, match="ranks"):
        committer.append([first])
    committer.close()


def test_prepared_folder_is_not_prepared_again(tmp_path: Path) -> None:
    """A folder that holds a run is refused before anything is written."""
    folder = RunFolder(tmp_path)
    prepare_run(CONFIG, folder, KEY)
    before = folder.registration.read_bytes()
    with pytest.raises(ConfigError, match="holds a run already"):
        prepare_run(CONFIG, folder, KEY)
    assert folder.registration.read_bytes() == before


def test_loss_of_the_demo_is_that_of_float32_training(tmp_path: Path) -> None:
    """The demo's loss falls clearly, and at every step is within 1 % of plain float32 torch."""
    document = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    del document["cluster"]
    document["record"] = {"policy": "every", "every": 1000}  # changes no bit of the training
    config = RunConfig.from_document(document)
    losses = [s.metric("loss") for s in train_run(config, tmp_path / "run", KEY, threads=2)]
    dataset = write_dataset(RunFolder(tmp_path / "reference"), load_corpus(config.data), 1)
    reference = Reference(config, dataset.tokens, dataset.root)
    expected = [reference.step() for _ in range(config.train.steps)]
    assert np.mean(losses[-5:]) < 0.55 * losses[0]
    assert np.abs(np.array(losses) / np.array(expected) - 1).max() < 0.01
