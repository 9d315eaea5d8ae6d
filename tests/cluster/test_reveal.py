"""The command line of runs that record on challenge: audit, reveal, audit again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.cli import run
from cluster.ray_session import RaySession
from tests.cluster.conftest import tiny_job, train_in
from tests.verifier import runs


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run that keeps roots and every fourth state; answers are added to it."""
    record = {"policy": "on_challenge", "keep_state": 4}
    return runs.train(
        tmp_path_factory.mktemp("sparse") / "run", runs.config(record=record, train={"steps": 24})
    )


def test_challenge_reveal_audit(
    sparse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An audit asks, the trainer answers, and the same audit then passes: with what was printed."""
    asked = tmp_path / "asked"
    audit = ["audit", str(sparse), "--no-ray", "--steps=3"]
    assert run([*audit, "--out", str(asked)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Verdict    INCOMPLETE"
    challenge = asked / "challenge.json"
    assert f"Challenge  {challenge}: send it to the trainer, who answers it with" in lines
    nonce = json.loads(challenge.read_text())["nonce"]
    again = f"bitwitness audit {sparse} --steps 3 --nonce {nonce} --revealed FOLDER"
    assert lines[-1] == f"Next       {again}"

    answer = tmp_path / "answer"
    reveal = ["reveal", str(sparse), "--challenge", str(challenge)]
    assert run([*reveal, "--out", str(answer), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["revealed"] == str(answer)
    assert found["executed"] >= len(found["steps"]) == 3
    assert json.loads((answer / "challenge.json").read_text())["nonce"] == nonce
    assert run([*again.split()[1:-1], str(answer), "--no-ray", "--out", str(tmp_path / "b")]) == 0
    assert "Verdict    PASS" in capsys.readouterr().out

    assert run([*reveal, "--threads=1"]) == 0
    assert run([*audit, "--nonce", nonce, "--out", str(tmp_path / "c"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out.split("FOLDER\n")[-1])
    assert (document["verdict"], document["challenge"]) == ("PASS", None)
    assert run(reveal) == 2
    assert "there is an answer already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nonce": "07" * 32}, "asks for other steps than its seed draws"),
        ({"steps": [0, 1, 2]}, "asks for other steps than its seed draws"),
        ({"beacon": "00"}, "asks for other steps than its seed draws"),
        ({"commitment": "00" * 32}, "asks for commitment 0000000000000000, this run's is"),
        ({"steps": [-1]}, "not a challenge: steps.0"),
        ({"more": 1}, "not a challenge: more"),
        ({"nonce": "07"}, "not a challenge: nonce"),
        ({"format": "bitwitness/challenge-request/v2"}, "not a challenge: format"),
    ],
)
def test_a_challenge_that_is_none(
    sparse: Path,
    tmp_path: Path,
    change: dict[str, object],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A changed challenge is refused in one line: what it asks for has to follow from its seed."""
    nonce = ["--nonce", "05" * 32]
    assert run(["audit", str(sparse), "--no-ray", *nonce, "--out", str(tmp_path / "audit")]) == 1
    challenge = tmp_path / "audit" / "challenge.json"
    challenge.write_text(json.dumps({**json.loads(challenge.read_text()), **change}))
    capsys.readouterr()
    assert run(["reveal", str(sparse), "--challenge", str(challenge)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bitwitness: E_OPTION: ")
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.ray
def test_two_ranks_on_ray(
    local_ray: RaySession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What two actors trained is revealed by one process, and passes."""
    record = {"policy": "on_challenge", "keep_state": 2}
    job = tiny_job(train={"world": 2, "steps": 3, "batch": 2}, record=record)
    train_in(tmp_path / "run", job)
    audit = ["audit", str(tmp_path / "run"), "--no-ray", "--nonce", "05" * 32]
    assert run([*audit, "--out", str(tmp_path / "a")]) == 1
    challenge = str(tmp_path / "a" / "challenge.json")
    assert run(["reveal", str(tmp_path / "run"), "--challenge", challenge]) == 0
    assert run([*audit, "--out", str(tmp_path / "b")]) == 0
    assert "Verdict    PASS" in capsys.readouterr().out
