"""Attacks 6 to 8 and 26 to 29: rewritten logs, moved and forged statements."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.attacks.conftest import judge
from tests.verifier import runs
from transcript import canonical
from transcript.files import write_atomic
from transcript.keys import PrivateKey
from transcript.log import Log, StepLeaf
from transcript.predicates import Commitment, LogHead
from transcript.run import RunFolder
from transcript.statements import open_statement, sign_statement
from verifier.audit import Audit, AuditOptions
from verifier.verdict import Overall, Verdict

INVALID = {Verdict.INVALID_COMMITMENT}


def rewritten(folder: RunFolder, step: int, **changes: object) -> list[bytes]:
    """Return the log's lines with some fields of one step's leaf changed."""
    lines = folder.leaves.read_bytes().splitlines()
    lines[step] = canonical.dumps(json.loads(lines[step]) | changes)
    return lines


def store_lines(folder: RunFolder, lines: list[bytes]) -> None:
    folder.leaves.write_bytes(b"".join(line + b"\n" for line in lines))


def test_rewritten_log_entry(copied: RunFolder) -> None:
    """A loss that was polished after the fact does not hash to the committed root."""
    metrics = json.loads(copied.leaves.read_bytes().splitlines()[3])["metrics"]
    store_lines(copied, rewritten(copied, 3, metrics={**metrics, "loss": "3f800000"}))
    judgement = judge(copied.root)
    faults = judgement.faults()
    assert judgement.overall is Overall.FAIL
    assert "log.root" in faults
    assert faults["step.metrics@3"] == {Verdict.MISMATCH}


def test_rewritten_log_that_is_signed_again(copied: RunFolder) -> None:
    """A trainer that rewrites an entry and signs a new head and commitment betrays itself.

    The heads it signed earlier do not extend to the new history.
    """
    metrics = json.loads(copied.leaves.read_bytes().splitlines()[1])["metrics"]
    lines = rewritten(copied, 1, metrics={**metrics, "loss": "3f800000"})
    store_lines(copied, lines)
    last = copied.checkpoint(len(lines))
    last.unlink()
    run_id = json.loads(lines[0])["run_id"]
    others = {p: p.read_bytes() for p in last.parent.iterdir()}
    for path in others:
        path.unlink()
    with Log(copied.log, run_id) as log:
        head = log.checkpoint(runs.KEY)
    for path, data in others.items():
        path.write_bytes(data)
    old = open_statement(copied.commitment.read_bytes(), Commitment, [runs.KEY.public]).predicate
    new = old.model_copy(update={"log": LogHead(root=head.root.hex(), size=head.size)})
    write_atomic(copied.commitment, sign_statement(new, runs.KEY)[0])
    faults = judge(copied.root).faults()
    assert "log.checkpoints" in faults
    assert "log.root" not in faults


def test_cut_log(copied: RunFolder) -> None:
    """A log without its last entry is not of the committed size."""
    store_lines(copied, copied.leaves.read_bytes().splitlines()[:-1])
    judgement = judge(copied.root)
    assert judgement.overall is not Overall.PASS
    assert {"log.size", "log.root"} & set(judgement.faults())


def test_leaf_of_another_run(copied: RunFolder, tmp_path: Path) -> None:
    """A leaf spliced in from another run of the same configuration is out of place."""
    other = RunFolder(runs.train(tmp_path / "other", runs.config()))
    lines = copied.leaves.read_bytes().splitlines()
    lines[2] = other.leaves.read_bytes().splitlines()[2]
    assert (
        StepLeaf.parse(lines[2], step=2).arenas
        == StepLeaf.parse(copied.leaves.read_bytes().splitlines()[2], step=2).arenas
    )
    store_lines(copied, lines)
    judgement = judge(copied.root)
    assert judgement.overall is not Overall.PASS
    assert "log.leaf" in judgement.faults()


@pytest.mark.parametrize("name", ["registration", "commitment"])
def test_signature_over_other_bytes(copied: RunFolder, name: str) -> None:
    """A statement whose payload was changed after signing fails the audit at its signature."""
    path = getattr(copied, name)
    envelope = json.loads(path.read_bytes())
    payload = json.loads(base64.b64decode(envelope["payload"]))
    payload["predicate"]["created"] = "2020-01-01T00:00:00Z"
    envelope["payload"] = base64.b64encode(canonical.dumps(payload)).decode()
    path.write_bytes(canonical.dumps(envelope))
    judgement = judge(copied.root)
    assert judgement.faults()[f"{name}.signature"] == INVALID
    assert judgement.overall is Overall.FAIL


def test_registration_by_another_key_than_trusted(honest: Path) -> None:
    """An auditor that knows the trainer's key accepts no other, however consistent the run."""
    stranger = PrivateKey.generate().public
    options = AuditOptions(steps=2, threads=1, trusted=(stranger,))
    with Audit.open(honest, options) as audit:
        (fault,) = [check for check in audit.structure() if not check.ok]
    assert (fault.name, {fault.verdict}) == ("registration.signature", INVALID)


def test_commitment_signed_by_another_key(copied: RunFolder) -> None:
    """A commitment that the registered key did not sign commits nobody."""
    old = open_statement(copied.commitment.read_bytes(), Commitment, [runs.KEY.public]).predicate
    write_atomic(copied.commitment, sign_statement(old, PrivateKey.generate())[0])
    assert judge(copied.root).faults()["commitment.signature"] == INVALID
