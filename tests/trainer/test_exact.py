"""Training with the exact profile: one set of roots on every architecture."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import tiny_document
from tests.runs import train_run
from trainer.config import RunConfig
from trainer.rank import RankStep
from transcript.keys import PrivateKey
from verifier.evidence import level
from verifier.replay import replay_step
from verifier.verdict import Verdict

KEY = PrivateKey.generate()


def run(root: Path, arch: str, profile: str) -> list[RankStep]:
    document = tiny_document(numerics={"arch": arch, "profile": profile}, train={"steps": 3})
    return train_run(RunConfig.from_document(document), root, KEY)


def roots(steps: list[RankStep]) -> list[tuple[str, ...]]:
    return [(step.state_before, step.state_after, step.arena) for step in steps]


def test_exact_runs_have_the_same_roots_on_all_architectures(tmp_path: Path) -> None:
    """State and arena roots of every step are equal on hopper, ampere and volta."""
    hopper = roots(run(tmp_path / "hopper", "hopper", "exact"))
    assert len(set(hopper)) == 3
    for arch in ("ampere", "volta"):
        assert roots(run(tmp_path / arch, arch, "exact")) == hopper


def test_heal_runs_do_not(tmp_path: Path) -> None:
    """The same two runs in heal part at the first step: the test above can fail."""
    hopper, ampere = (roots(run(tmp_path / arch, arch, "heal")) for arch in ("hopper", "ampere"))
    assert hopper[0][0] == ampere[0][0]
    assert hopper[0][1:] != ampere[0][1:]


def test_exact_runs_replay(tmp_path: Path) -> None:
    """Each step of an exact run replays to the bit."""
    run(tmp_path, "ada", "exact")
    for step in range(3):
        assert replay_step(tmp_path, step, 1).verdict is Verdict.MATCH


@pytest.mark.parametrize("arch", ["turing", "volta", "hopper"])
def test_exact_needs_no_recording(arch: str) -> None:
    """A difference in an exact product is never inconclusive, whatever was recorded of a GPU."""
    document = tiny_document(numerics={"arch": arch, "profile": "exact"})
    assert level(RunConfig.from_document(document).numerics) == "exact"
