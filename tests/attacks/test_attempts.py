"""Attack 4: retrying until lucky, and hiding it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.conftest import judge
from tests.verifier import runs
from trainer.attempts import ledger
from trainer.prepare import prepare_run
from transcript.errors import TranscriptError
from transcript.keys import PrivateKey
from transcript.run import RunFolder
from transcript.statements import Registration, open_registration, sign_statement
from verifier.audit import Audit, AuditOptions
from verifier.report_data import from_json
from verifier.verdict import Check, Verdict

NAME = "registration.attempts"


def registered(root: Path) -> Registration:
    return open_registration(RunFolder(root).registration.read_bytes()).predicate


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the third run that one key registered in a folder; the two before were given up."""
    place = tmp_path_factory.mktemp("place")
    run = runs.config(train={"steps": 2})
    for name in ("first", "second"):
        prepare_run(run, RunFolder(place / name), runs.KEY, threads=1)
    return runs.train(place / "third", run)


def check(root: Path) -> Check:
    return next(one for one in judge(root).structure if one.name == NAME)


def test_attempts_are_counted_and_named(third: Path, tmp_path: Path) -> None:
    """Each registration names the one before, and the audit says which and when."""
    runs_before = [registered(third.with_name(name)) for name in ("first", "second")]
    assert [said.attempt for said in (*runs_before, registered(third))] == [1, 2, 3]
    assert judge(third).faults() == {}
    detail = check(third).detail
    assert detail.startswith("attempt 3; the 2 before are ")
    for said in runs_before:
        assert f"{said.run_id} of {said.created}" in detail
    with Audit.open(third, AuditOptions(threads=1)) as audit:
        audit.conclude(audit.run(), tmp_path, PrivateKey.generate())
    data = from_json((tmp_path / "report.json").read_bytes())
    assert any("2 earlier attempts" in text for text in data.not_checked)


def test_other_keys_and_places_have_their_own_count(third: Path, tmp_path: Path) -> None:
    """The chain is of one key in one folder; this is what it cannot show beyond."""
    run = runs.config(train={"steps": 2})
    prepare_run(run, RunFolder(third.with_name("other")), PrivateKey.generate(), threads=1)
    prepare_run(run, RunFolder(tmp_path / "elsewhere"), runs.KEY, threads=1)
    for root in (third.with_name("other"), tmp_path / "elsewhere"):
        assert (registered(root).attempt, registered(root).previous) == (1, None)


def test_hiding_the_attempts_before(third: Path, tmp_path: Path) -> None:
    """A run that says it is the third and shows none before is no answer."""
    folder = runs.copy(third, tmp_path / "run")
    folder.attempts.unlink()
    assert judge(folder.root).faults() == {NAME: {Verdict.NON_RESPONSE}}


@pytest.mark.parametrize("kept", [[0], [1], [1, 0], [0, 0], [0, 1, 1]], ids=str)
def test_leaving_an_attempt_out(third: Path, tmp_path: Path, kept: list[int]) -> None:
    """Each is named by the next, so none can be left out, repeated or moved."""
    folder = runs.copy(third, tmp_path / "run")
    lines = folder.attempts.read_bytes().splitlines(keepends=True)
    folder.attempts.write_bytes(b"".join(lines[i] for i in kept))
    expected = Verdict.NON_RESPONSE if len(kept) == 1 else Verdict.INVALID_COMMITMENT
    assert judge(folder.root).faults() == {NAME: {expected}}


def test_another_attempt_in_place_of_one(third: Path, tmp_path: Path) -> None:
    """A registration that is made up later has another digest, and a stranger's another key."""
    folder = runs.copy(third, tmp_path / "run")
    first, second = folder.attempts.read_bytes().splitlines()
    said = open_registration(first).predicate
    for key in (runs.KEY, PrivateKey.generate()):
        forged, _ = sign_statement(said.model_copy(update={"created": "2020-01-01T00:00:00Z"}), key)
        folder.attempts.write_bytes(forged + b"\n" + second + b"\n")
        assert judge(folder.root).faults() == {NAME: {Verdict.INVALID_COMMITMENT}}


def test_a_ledger_that_is_none_is_not_written_over(tmp_path: Path) -> None:
    """A file beside the runs that holds something else is refused, and nothing is registered."""
    folder = RunFolder(tmp_path / "run")
    path = ledger(folder, runs.KEY.public)
    path.write_bytes(b"my notes\n")
    with pytest.raises(TranscriptError, match=path.name):
        prepare_run(runs.config(), folder, runs.KEY, threads=1)
    assert path.read_bytes() == b"my notes\n"
    assert not folder.registration.exists()
