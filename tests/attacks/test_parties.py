"""Attacks 36 to 39: results that lie, are moved, or were copied."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.verifier import runs
from transcript import canonical
from transcript.errors import MalformedError, SignatureError
from transcript.keys import PrivateKey, PublicKey
from transcript.predicates import AuditResult
from transcript.statements import open_statement, sign_statement
from verifier.audit import Audit, AuditOptions
from verifier.errors import ResultError
from verifier.verify import verify_file

AUDITOR = PrivateKey.generate()


@pytest.fixture(scope="module")
def result(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Audit the honest run and return its signed result."""
    out = tmp_path_factory.mktemp("audit")
    with Audit.open(honest, AuditOptions(steps=3, threads=1)) as audit:
        return audit.conclude(audit.run(), out, AUDITOR)


def forged(result: Path, target: Path, **changes: object) -> Path:
    """Write the result with a changed payload under its old signature."""
    envelope = json.loads(result.read_bytes())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"] |= changes
    envelope["payload"] = base64.b64encode(canonical.dumps(statement)).decode()
    target.write_bytes(canonical.dumps(envelope))
    return target


def test_honest_result_verifies(result: Path, honest: Path) -> None:
    """The auditor's key and the run's folder confirm the result."""
    verified = verify_file(result, AUDITOR.public, run=honest)
    assert verified.trusted
    assert verified.facts["verdict"] == "PASS"


def test_signature_over_other_bytes(result: Path, tmp_path: Path) -> None:
    """A result that was changed after signing has no valid signature."""
    path = forged(result, tmp_path / "result.json", created="2020-01-01T00:00:00Z")
    with pytest.raises(SignatureError) as caught:
        verify_file(path, AUDITOR.public)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("offset", range(0, 2000, 97))
def test_any_changed_byte_is_noticed(result: Path, tmp_path: Path, offset: int) -> None:
    """Whatever byte of the envelope is changed, the result is refused."""
    data = bytearray(result.read_bytes())
    data[offset % len(data)] ^= 1
    path = tmp_path / "result.json"
    path.write_bytes(data)
    with pytest.raises((SignatureError, MalformedError)):
        verify_file(path, AUDITOR.public)


def test_result_signed_by_somebody_else(result: Path, tmp_path: Path) -> None:
    """Another auditor's key does not confirm it."""
    with pytest.raises(SignatureError):
        verify_file(result, PrivateKey.generate().public)


def test_pass_that_does_not_follow_from_its_checks(result: Path, tmp_path: Path) -> None:
    """A lying auditor cannot even sign a PASS over a check that did not match."""
    said = open_statement(result.read_bytes(), AuditResult, [AUDITOR.public]).predicate
    document = said.model_dump(mode="json")
    document["steps"][0]["checks"][0]["verdict"] = "MISMATCH"
    with pytest.raises(MalformedError, match="does not follow"):
        AuditResult.check(document)


def test_result_moved_to_another_run(result: Path, tmp_path: Path) -> None:
    """A result names its run's commitment, so another run cannot show it."""
    other = runs.train(tmp_path / "other", runs.config())
    with pytest.raises(ResultError, match="is about commitment"):
        verify_file(result, AUDITOR.public, run=other)


def test_result_moved_to_other_weights(result: Path, copied) -> None:
    """A result names the exported weights, so other weights cannot show it."""
    runs.flip(copied.weights, copied.weights.stat().st_size - 1)
    with pytest.raises(ResultError, match="weights"):
        verify_file(result, AUDITOR.public, run=copied.root)


def test_copied_result_names_the_first_auditors_nonce_and_key(result: Path) -> None:
    """An auditor that signs another's findings says so: they bind the other's key and nonce."""
    said = open_statement(result.read_bytes(), AuditResult, [AUDITOR.public]).predicate
    lazy = PrivateKey.generate()
    copied, _ = sign_statement(said, lazy)
    repeated = open_statement(copied, AuditResult, [lazy.public]).predicate
    assert repeated.nonce == said.nonce
    assert repeated.verifier_key == AUDITOR.public.key_id
    path = result.parent / "copied.json"
    path.write_bytes(copied)
    with pytest.raises((ResultError, MalformedError, SignatureError)):
        verify_file(path, PublicKey.from_pem(lazy.public.pem().encode()))
