"""Declaring a logged step faulty: who may, what is said, and what stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from cluster.resume import state_after_fault
from tests.verifier import runs
from trainer.commit import Committer
from trainer.config import RunConfig
from trainer.errors import DivergenceError
from trainer.graph import Value
from trainer.logged import logged_leaves
from trainer.plan import layouts_of
from trainer.prepare import prepare_run
from trainer.rank import RankStep, RankTrainer
from trainer.recorder import Recorder
from transcript.errors import ForkError, MissingError
from transcript.leaves import arena_root
from transcript.log import LogReader
from transcript.merkle import leaf_hash
from transcript.run import RunFolder
from transcript.statements import DeclaredFault, Signed, open_statement
from transcript.store import RunStore

WRONG = 1


def config(**sections: dict) -> RunConfig:
    return runs.config(**{"train": {"steps": 4}, "recheck": {"products": 0}, **sections})


def faulty_run(root: Path, run: RunConfig, steps: int, kind: str = "arena") -> RunFolder:
    """Train some steps, on a machine that got one of them wrong and did not notice."""
    folder = RunFolder(root)
    prepare_run(run, folder, runs.KEY, threads=1)
    rank = RankTrainer(run, folder, threads=1)
    product = next(e.name for e in rank.graph.arena.entries if e.name.endswith(".gemm"))
    committer = Committer(run, folder, runs.KEY)
    original = Recorder.sink

    def sink(self: Recorder, value: Value, tensor: torch.Tensor) -> torch.Tensor:
        if rank.step == WRONG and value.name == product:
            flipped = tensor.clone()
            flipped.view(torch.int32).view(-1)[-1] ^= 1 << 20
            # "arena": on its way into memory only, so that all that follows is right
            result = original(self, value, flipped)
            return tensor if kind == "arena" else result
        return original(self, value, tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "sink", sink)
        for _ in range(steps):
            committer.append([rank.run_step()])
    rank._recorder.flush()
    committer.close()
    return folder


def redo(folder: RunFolder, run: RunConfig, start: int = 0) -> tuple[Committer, RankTrainer]:
    """Take the run up again from a kept state, as a scrub does."""
    rank = RankTrainer(run, folder, threads=1)
    rank.expect(logged_leaves(folder))
    rank.restore(start)
    return Committer(run, folder, runs.KEY), rank


def scrub(committer: Committer, rank: RankTrainer, run: RunConfig, folder: RunFolder) -> None:
    """Execute all steps, declaring what differs, to the end."""
    while rank.step < run.train.steps:
        try:
            committer.append([rank.run_step()])
        except ForkError:
            _, logged = committer.declare()
            rank.restore(state_after_fault(run, folder, logged.step))


def declarations(folder: RunFolder) -> list[Signed[DeclaredFault]]:
    paths: Sequence[Path] = sorted(folder.faults.glob("*.json"))
    return [open_statement(p.read_bytes(), DeclaredFault, [runs.KEY.public]) for p in paths]


@pytest.mark.parametrize("kind", ["arena", "step"])
def test_a_scrub_declares_the_step_and_the_run_ends_well(tmp_path: Path, kind: str) -> None:
    """Step, rank, operator and both patterns are named, and the commitment lists the statement.

    The logged arena stays what it was, and the run goes on from the logged state, right or wrong.
    """
    run = config()
    folder = faulty_run(tmp_path, run, 3, kind)
    before = folder.leaves.read_bytes()
    committer, rank = redo(folder, run)
    scrub(committer, rank, run, folder)
    committer.finish()
    assert folder.leaves.read_bytes().startswith(before)
    found = declarations(folder)
    logged = logged_leaves(folder)[WRONG]
    (first,) = (signed.predicate for signed in found)
    assert (first.step, first.rank, first.operator) == (WRONG, 0, "bitwitness::gemm")
    assert first.leaf == leaf_hash(logged.encode()).hex()
    bits = [int(first.evidence[name], 16) for name in ("logged", "again")]
    assert bits[0] ^ bits[1] == 1 << 20
    assert first.evidence["arena.logged"] == logged.arenas[0] != first.evidence["arena.again"]
    layouts = layouts_of(rank.graph)
    stored = RunStore.open(folder.store, layouts).read_arena(0, WRONG)
    assert arena_root(stored, layouts.arena).hex() == logged.arenas[0]
    listed = runs.commitment(folder).faults
    assert listed == tuple(sorted(signed.digest for signed in found))


def test_nothing_is_appended_after_a_fork(tmp_path: Path) -> None:
    """Until the fault is declared the log takes no step, were it the next one."""
    run = config()
    folder = faulty_run(tmp_path, run, WRONG + 1, "step")
    committer, rank = redo(folder, run)
    committer.append([rank.run_step()])
    with pytest.raises(ForkError):
        committer.append([rank.run_step()])
    with pytest.raises(ForkError, match=f"step {WRONG} was logged"):
        committer.append([rank.run_step()])
    assert len(committer) == WRONG + 1
    committer.declare()
    with pytest.raises(DivergenceError, match="no step to declare"):
        committer.declare()
    committer.close()


def test_a_step_that_breaks_the_chain_is_not_appended(tmp_path: Path) -> None:
    """A new step has to begin with the state that the logged one ended with."""
    run = config()
    folder = faulty_run(tmp_path, run, WRONG + 1, "step")
    committer, rank = redo(folder, run)
    rank.run_step()
    rank.run_step()
    with pytest.raises(DivergenceError, match=r"begins with state .* ended with"):
        committer.append([rank.run_step()])
    committer.close()


def test_another_state_is_not_declared_faulty(tmp_path: Path) -> None:
    """A step that was executed from another state than logged says nothing about the logged one."""
    run = config()
    folder = faulty_run(tmp_path, run, 3, "step")
    committer, rank = redo(folder, run)
    rank.run_step()
    rank.run_step()
    with pytest.raises(ForkError):
        committer.append([rank.run_step()])
    with pytest.raises(DivergenceError, match="another state"):
        committer.declare()
    assert declarations(folder) == []
    committer.close()


def test_a_run_whose_state_is_lost_cannot_go_on(tmp_path: Path) -> None:
    """If no kept state is the logged one, it says so instead of continuing another history."""
    run = config(record={"policy": "every", "every": 4, "checkpoint_every": 4})
    folder = faulty_run(tmp_path, run, 2, "step")
    with pytest.raises(MissingError, match="the run cannot go on"):
        state_after_fault(run, folder, WRONG)


def test_a_fault_of_two_ranks_names_both(tmp_path: Path) -> None:
    """Each rank whose arena differs has its own statement; a wrong sum is nobody's alone."""
    run = config(train={"world": 2, "steps": 1})
    folder = RunFolder(tmp_path)
    prepare_run(run, folder, runs.KEY, threads=1)

    def step(rank: int, arena: str, after: str) -> RankStep:
        return RankStep(
            rank=rank, step=0, state_before="0a" * 32, state_after=after, batch="0b" * 32,
            scalars=("00000000",) * 3, arena=arena, metrics={}, compute_seconds=0.0,
            record_seconds=0.0,
        )  # fmt: skip

    committer = Committer(run, folder, runs.KEY)
    committer.append([step(0, "aa" * 32, "cc" * 32), step(1, "bb" * 32, "cc" * 32)])
    with pytest.raises(ForkError):
        committer.append([step(0, "ad" * 32, "cc" * 32), step(1, "bd" * 32, "cc" * 32)])
    assert committer.declare()[0] == 2
    assert sorted(s.predicate.rank for s in declarations(folder)) == [0, 1]
    with pytest.raises(ForkError):
        committer.append([step(0, "aa" * 32, "dd" * 32), step(1, "bb" * 32, "dd" * 32)])
    assert committer.declare()[0] == 1
    assert None in {s.predicate.rank for s in declarations(folder)}
    committer.close()


def test_the_last_tree_head_of_a_run_that_stopped_is_signed_later(tmp_path: Path) -> None:
    """A run that ended between a leaf and its tree head signs it when it is taken up."""
    run = config()
    folder = faulty_run(tmp_path, run, 2)
    head = folder.checkpoint(2)
    signed = head.read_bytes()
    head.unlink()
    committer, rank = redo(folder, run)
    scrub(committer, rank, run, folder)
    committer.close()
    assert head.read_bytes() == signed
    with LogReader(folder.log, logged_leaves(folder)[0].run_id) as log:
        assert [h.size for h in log.verify_checkpoints(runs.KEY.public)] == [2, 4]


def test_leaves_are_read_while_they_are_written(tmp_path: Path) -> None:
    """A line without its end is not there yet."""
    folder = faulty_run(tmp_path, config(), 3)
    leaves = logged_leaves(folder)
    data = folder.leaves.read_bytes()
    folder.leaves.write_bytes(data[:-7])
    assert logged_leaves(folder) == leaves[:2]
    assert logged_leaves(RunFolder(tmp_path / "none")) == []
    assert np.all([leaf.step == step for step, leaf in enumerate(leaves)])
