"""Attack 22: an architecture that is declared for its bits, or that is not the one at work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import emulator_ext
import trainer.prepare
import trainer.rank
from emulator_ext import isa
from tests.attacks.conftest import cheating_run, judge
from tests.attacks.test_trajectory import resign
from tests.verifier import runs
from trainer.config import NumericsConfig
from trainer.device_probe import answers, emulated, probed_profiles, questions
from trainer.prepare import register_run, stage_run
from transcript.run import RunFolder
from transcript.statements import open_registration
from verifier.verdict import Check, Overall, Verdict

MISMATCH = {Verdict.MISMATCH}
START, END = "device.probe.start", "device.probe.end"
ROOT = "ab" * 32


def answered(arch: str, profile: str = "heal", **other: str) -> bytes:
    named = {"run_id": "demo-1", "moment": "start", "root": ROOT, **other}
    return answers(NumericsConfig(arch=arch, profile=profile), emulated(arch), **named)


def found(root: Path, name: str) -> Check:
    return next(check for check in judge(root).structure if check.name == name)


def test_answers_tell_every_kind_of_tensor_core_apart() -> None:
    """Architectures answer alike only if their 16-bit tensor cores add alike, in the table."""
    by_answer: dict[bytes, set[str]] = {}
    for arch in isa.ARCHITECTURES:
        by_answer.setdefault(answered(arch), set()).add(arch)
    assert sorted(map(sorted, by_answer.values())) == [
        ["ada", "ampere"],
        ["blackwell", "hopper", "rtx_blackwell"],
        ["turing"],
        ["volta"],
    ]
    for archs in by_answer.values():
        rows = set()
        for arch in archs:
            row = emulator_ext.numerics(arch, "f16")
            rows.add((row.F, row.L, row.e_zero, probed_profiles(NumericsConfig(arch=arch))))
        assert len(rows) == 1


@pytest.mark.parametrize("profile", ["heal", "bf16"])
def test_every_stratum_of_questions_tells(profile: str) -> None:
    """Numbers near 1, of all sizes, cancelling pairs and sparse rows each tell F and L apart."""
    a, b = questions(profile, run_id="demo-1", moment="start", root=ROOT)
    hopper = emulated("hopper")(a, b, profile).view("u4").reshape(4, -1)
    ampere = emulated("ampere")(a, b, profile).view("u4").reshape(4, -1)
    assert ((hopper != ampere).sum(axis=1) > 50).all()


def test_questions_follow_from_run_moment_and_state() -> None:
    """No answer of another run, moment or state will do."""
    others = ({}, {"run_id": "x"}, {"moment": "end"}, {"root": "cd" * 32})
    assert len({answered("hopper", **other) for other in others}) == len(others)


def test_profiles_that_no_tensor_core_decides_are_asked_for_themselves() -> None:
    """A run in `exact` may be on any GPU: its probe answers alike on all."""
    for profile in ("exact", "fp32"):
        assert Counter(answered(arch, profile) for arch in isa.ARCHITECTURES).total() == 7
        assert len({answered(arch, profile) for arch in isa.ARCHITECTURES}) == 1


@pytest.mark.parametrize("profile", ["heal", "bf16"])
def test_declaring_another_architecture_than_is_at_work(profile: str, tmp_path: Path) -> None:
    """Before step 0 and after the last the device gives another generation's bits, and whose."""
    original = emulator_ext.gemm

    def gemm(a, b, **options):
        return original(a, b, **{**options, "arch": "ampere"})

    run = cheating_run(
        tmp_path / "run",
        lambda patch: patch.setattr(emulator_ext, "gemm", gemm),
        numerics={"profile": profile},
        train={"steps": 2},
    )
    judgement = judge(run)
    faults = judgement.faults()
    assert (faults[START], faults[END]) == (MISMATCH, MISMATCH)
    assert judgement.overall is Overall.FAIL
    check = found(run, START)
    assert check.detail.endswith("does not multiply as hopper; it multiplies as ampere or ada")
    assert check.evidence["answered"] != check.evidence["recomputed"]


def test_changing_the_device_during_the_run(tmp_path: Path) -> None:
    """A device that is exchanged after the start shows at the end."""
    original, count = trainer.rank.answers, [0]

    def other(numerics, multiply, **named):
        count[0] += 1
        return original(numerics, emulated("ampere"), **named)

    run = cheating_run(
        tmp_path / "run", lambda patch: patch.setattr(trainer.rank, "answers", other)
    )
    assert judge(run).faults() == {END: MISMATCH}
    assert count == [1]


def test_showing_older_answers(tmp_path: Path) -> None:
    """What the device answered at the start is no answer at the end."""
    root = runs.train(tmp_path / "run", runs.config(train={"steps": 2}))
    start = open_registration(RunFolder(root).registration.read_bytes()).predicate.probes
    resign(RunFolder(root), probes=start)
    assert judge(root).faults() == {END: MISMATCH}


def test_withholding_the_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without probes is never a PASS."""

    def prepare_run(config, folder, key, threads=None):
        return register_run(stage_run(config, folder, threads=threads), key, [])

    monkeypatch.setattr(runs, "prepare_run", prepare_run)
    root = runs.train(tmp_path / "run", runs.config(train={"steps": 2}))
    resign(RunFolder(root), probes=())
    judgement = judge(root)
    assert judgement.faults() == {START: {Verdict.NON_RESPONSE}, END: {Verdict.NON_RESPONSE}}
    assert judgement.overall is Overall.INCOMPLETE


def test_a_modelled_architecture_accuses_nobody(tmp_path: Path) -> None:
    """Where only a published model describes the tensor core, other bits are INCONCLUSIVE."""

    def patches(patch: pytest.MonkeyPatch) -> None:
        original = trainer.prepare.answers

        def other(numerics, multiply, **named):
            return original(numerics, emulated("ampere"), **named)

        patch.setattr(trainer.prepare, "answers", other)

    run = cheating_run(tmp_path / "run", patches, numerics={"arch": "turing"}, train={"steps": 2})
    # turing and ampere add alike in the table, so the answers are made different by hand
    assert judge(run).faults() == {}
    resign(RunFolder(run), probes=("ab" * 32,))
    assert judge(run).faults() == {END: {Verdict.INCONCLUSIVE}}


def test_answers_out_of_the_emulator_show_nothing(tmp_path: Path) -> None:
    """Whoever forges the probes is found at the products all the same, which the probes are not."""
    original = emulator_ext.gemm

    def gemm(a, b, **options):
        probing = a.shape == (64, 128)
        return original(a, b, **(options if probing else {**options, "arch": "ampere"}))

    run = cheating_run(
        tmp_path / "run",
        lambda patch: patch.setattr(emulator_ext, "gemm", gemm),
        train={"steps": 2},
    )
    assert judge(run).faults() == {f"step.values@{t}": MISMATCH for t in range(2)}
