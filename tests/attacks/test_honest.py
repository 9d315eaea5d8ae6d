"""An honest run raises nothing, ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.conftest import judge
from tests.verifier import runs
from verifier.verdict import Overall


def test_honest_run_passes(honest: Path) -> None:
    """Every structure check and every operator of every step matches."""
    judgement = judge(honest)
    assert judgement.faults() == {}
    assert judgement.overall is Overall.PASS
    assert len(judgement.steps) == runs.STEPS
    assert all(step.elements > 100_000 for step in judgement.steps)


@pytest.mark.parametrize(
    "sections",
    [
        {"numerics": {"profile": "bf16", "arch": "ampere"}},
        {"numerics": {"profile": "fp32", "arch": "ada"}},
        {"numerics": {"arch": "ampere"}},
        {"numerics": {"arch": "turing"}},
        {"numerics": {"profile": "exact", "arch": "volta"}},
        {"recheck": {"products": 64}, "train": {"world": 2, "steps": 2}},
        {"train": {"world": 2, "steps": 3}},
        {"record": {"policy": "every", "every": 4}},
        {"model": {"context": 1}, "train": {"batch": 1, "steps": 2}},
    ],
)
def test_honest_run_of_another_kind_passes(sections: dict, tmp_path: Path) -> None:
    """Other profiles, architectures, worlds, record policies and sizes raise nothing either."""
    run = runs.train(tmp_path / "run", runs.config(**sections))
    judgement = judge(run)
    assert judgement.faults() == {}
    assert judgement.overall is Overall.PASS
