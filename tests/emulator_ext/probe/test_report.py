"""Reports explain: what was fed, what hypotheses predict, what came back, what follows."""

from __future__ import annotations

import json

import pytest

from emulator_ext.probe import Characterisation, Instruction, render_text, run, to_document
from tests.emulator_ext.probe.devices import Knobs, StepDevice

F16 = Instruction(a="f16", b="f16", accumulator="f32", k=16)


@pytest.fixture(scope="module")
def honest() -> Characterisation:
    """Characterise a Hopper-like device."""
    return run(StepDevice(F16, Knobs(F=25, L=16, e_zero=-133), "honest"), checks=70, seed=3)


@pytest.fixture(scope="module")
def rogue() -> Characterisation:
    """Characterise one that has a hidden bit in one lane."""
    knobs = Knobs(F=25, L=16, e_zero=-133, extra_bits={5: 1})
    return run(StepDevice(F16, knobs, "rogue"), checks=700)


def test_every_experiment_is_explained(honest: Characterisation) -> None:
    """Each experiment has a question, a method, inputs with answers, and a conclusion."""
    assert len(honest.experiments) >= 15
    for experiment in honest.experiments:
        assert experiment.question.endswith("?")
        assert experiment.method
        assert experiment.conclusion
        assert experiment.inputs >= len(experiment.rows)
        assert experiment.rows or "cannot express an input" in experiment.conclusion
        assert all(row.fed and row.observed for row in experiment.rows)
    names = {experiment.name for experiment in honest.experiments}
    assert {finding.experiment for finding in honest.findings} == names


def test_the_text_shows_rival_predictions(honest: Characterisation) -> None:
    """The alignment width is shown by the input that separates F = 25 from its neighbours."""
    text = render_text(honest)
    assert "follows NUMERICS 1, with the arithmetic of: hopper mma" in text
    assert "p0 = 2^30, p1 = -2^30, p2 = 2^5, c = 0" in text
    assert "25 predicts 0x42000000 (2^5)" in text
    assert "24 predicts 0x00000000 (+0)" in text
    assert "random check: 0 mismatches in 70 inputs (seed 3)" in text
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 130


def test_the_text_names_contradictions(rogue: Characterisation) -> None:
    """A rogue's report begins with the experiments that contradict, and shows mismatches."""
    text = render_text(rogue, explain=False)
    assert "follows no model of NUMERICS 1; contradicted by: alignment.positions, check" in text
    assert "mismatch in " in text
    assert "p5" in render_text(rogue)


def test_the_document_is_json_without_floats(
    honest: Characterisation, rogue: Characterisation
) -> None:
    """The JSON report survives a round trip and holds no float."""

    def refuse(text: str) -> float:
        raise AssertionError(text)

    for found in (honest, rogue):
        document = to_document(found)
        assert json.loads(json.dumps(document), parse_float=refuse) == document
        assert document["format"] == "bitwitness/probe/v1"
        assert document["follows"] is found.follows
        assert len(document["experiments"]) == len(found.experiments)


def test_the_same_seed_gives_the_same_report(honest: Characterisation) -> None:
    """A probe is a function of device, number of checks and seed."""
    device = StepDevice(F16, Knobs(F=25, L=16, e_zero=-133), "honest")
    assert run(device, checks=70, seed=3) == honest
