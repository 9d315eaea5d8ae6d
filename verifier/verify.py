"""Checking a signed statement or a fraud proof offline: signatures, type, form, and the claim.

Which key a statement has to be signed by is never taken from the statement's envelope. It is the
key that the caller gives; or else, and then the result says so, the one that a registration
names, the one of the registration beside a commitment or above a declared fault, or
verifier.pub.pem beside an audit result: these show that the folder is of one piece, and not
whose it is.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transcript import canonical
from transcript.dsse import ENVELOPE_LIMIT, Envelope
from transcript.errors import MalformedError, MissingError
from transcript.files import open_regular, read_bounded
from transcript.keys import PublicKey
from transcript.run import TEXT, RunFolder
from transcript.statements import (
    AuditResult,
    Commitment,
    DeclaredFault,
    Registration,
    Signed,
    open_registration,
    open_statement,
    read_commitment,
    read_registration,
)
from verifier.errors import BeaconError, ResultError, UntrustedError, one_line
from verifier.files import (
    MAX_PROOF_BYTES,
    MAX_REPORT_BYTES,
    PROOF_PREFIX,
    REPORT_JSON,
    VERIFIER_KEY_FILE,
)
from verifier.report_data import from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A statement whose signature and form are right.

    Attributes:
        file: where it was read.
        kind: registration, declared-fault, commitment, audit-result or fraud-proof.
        digest: SHA-256 of the signed payload, or of a fraud proof's file, hex.
        key_id: the key that signed it; of a fraud proof, the trainer's.
        trusted: whether the caller gave that key.
        subject: what it is about: training, or a generation.
        run_id: the id of that run.
        created: when its signer says it was made; empty for a fraud proof.
        facts: what it says, for people; of an audit result the verdict first.

    """

    file: str
    kind: str
    digest: str
    key_id: str
    trusted: bool
    subject: str
    run_id: str
    created: str
    facts: dict[str, str]


def verify_file(path: Path, key: PublicKey | None = None, *, run: Path | None = None) -> Verified:
    """Check one statement or fraud proof.

    Args:
        path: a DSSE envelope of ours, or a fraud proof.
        key: the key that must have signed it, for a fraud proof the trainer's; see the module
            for what is used without.
        run: for an audit result, the run's folder that it must be about: its commitment and
            the files that it exported.

    Raises:
        transcript.errors.TranscriptError: missing, malformed, of another version, or not signed
            by the key as what it is.
        UntrustedError: there is no key to check it with.
        ResultError: an audit result is about another run, other weights or another report, or
            rests on a drand round that the network did not sign.
        ProofFileError: a fraud proof is malformed or proves nothing.

    """
    file = str(path)
    data = read_bounded(path, MAX_PROOF_BYTES)
    if data.startswith(PROOF_PREFIX):
        return _fraud(data, file, key)
    kind = _kind(data, file)
    if kind == Registration.PREDICATE:
        return _registration(open_registration(data, [key] if key else [], file=file), file, key)
    if kind == Commitment.PREDICATE:
        signer = key or _registered_key(path)
        return _commitment(open_statement(data, Commitment, [signer], file=file), file, key)
    if kind == DeclaredFault.PREDICATE:
        signer = key or _registered_key(path.absolute().parent)
        return _fault(open_statement(data, DeclaredFault, [signer], file=file), file, key)
    if kind == AuditResult.PREDICATE:
        signed = open_statement(data, AuditResult, [key or _verifier_key(path)], file=file)
        _check_report(path, signed.predicate)
        if run is not None:
            _check_run(file, signed.predicate, RunFolder(run))
        return _result(signed, file, key)
    raise MalformedError(f"not a statement of a known kind: {kind[:100]!r}", file=file)


def _kind(data: bytes, file: str) -> str:
    """Read the predicate's type; it decides only which reader is tried."""
    payload = Envelope.parse(data, file=file).payload
    value = canonical.loads(payload, limit=ENVELOPE_LIMIT, file=file)
    kind = value.get("predicateType") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise MalformedError("the payload is not a statement", file=file)
    return kind


def _registered_key(path: Path) -> PublicKey:
    beside = path.with_name("registration.dsse.json")
    try:
        data = read_bounded(beside, ENVELOPE_LIMIT)
    except MissingError:
        raise UntrustedError(
            "no key to check it with: give one, or put registration.dsse.json beside it",
            file=str(path),
        ) from None
    return open_registration(data, file=str(beside)).signers[0]


def _verifier_key(path: Path) -> PublicKey:
    try:
        return PublicKey.load(path.with_name(VERIFIER_KEY_FILE))
    except MissingError:
        raise UntrustedError(
            f"no key to check it with: give one, or put {VERIFIER_KEY_FILE} beside it",
            file=str(path),
        ) from None


def _check_report(path: Path, result: AuditResult) -> None:
    """Compare a report.json that lies beside a result with the one that was signed.

    A drand round in it has to be the network's, and the beacon that was signed.
    """
    beside = path.with_name(REPORT_JSON)
    if not beside.exists():
        return
    data = read_bounded(beside, MAX_REPORT_BYTES)
    if hashlib.sha256(data).hexdigest() != result.report:
        raise ResultError(f"is not the report that {path.name} names", file=str(beside))
    answer = from_json(data, file=str(beside)).draw.drand
    if answer is None:
        return
    try:
        beacon = answer.read()
        beacon.verify()
    except BeaconError as error:
        raise ResultError(str(error), file=str(beside)) from None
    if beacon.randomness.hex() != result.beacon.value:
        raise ResultError("its drand round is not the beacon that was signed", file=str(beside))


def _check_run(file: str, result: AuditResult, folder: RunFolder) -> None:
    """Check that the result names this run's commitment, and the files that are there."""
    registration = read_registration(folder)
    commitment = read_commitment(folder, registration)
    if (result.run_id, result.commitment) != (registration.predicate.run_id, commitment.digest):
        raise ResultError(
            f"is about commitment {result.commitment[:16]} of run {result.run_id}, not about "
            f"{commitment.digest[:16]} of {registration.predicate.run_id}",
            file=file,
        )
    for item in result.weights:
        if _sha256(folder.root, item.path) != item.sha256:
            raise ResultError(f"is about another {item.path} than the one there", file=file)


def _sha256(root: Path, relative: str) -> str:
    with os.fdopen(open_regular(root, relative), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _verified(
    signed: Signed[Any],
    kind: str,
    subject: str,
    facts: dict[str, str],
    file: str,
    key: PublicKey | None,
) -> Verified:
    return Verified(
        file=file,
        kind=kind,
        digest=signed.digest,
        key_id=signed.signers[0].key_id,
        trusted=key is not None,
        subject=subject,
        run_id=signed.predicate.run_id,
        created=signed.predicate.created,
        facts=facts,
    )


def _registration(signed: Signed[Registration], file: str, key: PublicKey | None) -> Verified:
    said = signed.predicate
    facts = {
        **_origin(said),
        "steps": str(said.steps),
        "ranks": str(said.world),
        "arithmetic": f"{said.profile} on {said.arch}",
        "attempt": str(said.attempt),
        "dataset": f"{said.dataset.tokens} tokens, root {said.dataset.root}",
    }
    return _verified(signed, "registration", said.kind, facts, file, key)


def _exported_kind(said: Commitment | AuditResult) -> str:
    """Tell a generation by what it exports: its statements do not repeat the configuration."""
    return "generation" if [item.path for item in said.weights] == [TEXT] else "training"


def _origin(said: Registration) -> dict[str, str]:
    """Return which run's weights a generation says it used; nothing of a training run."""
    if said.kind == "training":
        return {}
    run, commitment = (str(said.config.get(name, "")) for name in ("run", "commitment"))
    return {"weights": one_line(f"of run {run}, commitment {commitment}")}


def _commitment(signed: Signed[Commitment], file: str, key: PublicKey | None) -> Verified:
    said = signed.predicate
    facts = {
        "steps": str(said.steps),
        "log": said.log.root,
        "registration": said.registration,
        **{item.path: item.sha256 for item in said.weights},
    }
    return _verified(signed, "commitment", _exported_kind(said), facts, file, key)


def _fault(signed: Signed[DeclaredFault], file: str, key: PublicKey | None) -> Verified:
    said = signed.predicate
    facts = {
        "step": str(said.step),
        "rank": "all" if said.rank is None else str(said.rank),
        "operator": said.operator or "not known",
        "leaf": said.leaf,
        "registration": said.registration,
    }
    return _verified(signed, "declared-fault", "training", facts, file, key)


def _result(signed: Signed[AuditResult], file: str, key: PublicKey | None) -> Verified:
    said = signed.predicate
    if said.verifier_key != signed.signers[0].key_id:
        raise ResultError("is signed by another key than the one that it names", file=file)
    facts = {
        "verdict": said.verdict,
        "replayed": f"{said.sampled} of {said.total} steps",
        "beacon": said.beacon.source,
        "bound": f"at most a share of {said.f_max} of the recorded steps is bad, "
        f"delta {said.delta}",
        "commitment": said.commitment,
        "report": said.report,
    }
    return _verified(signed, "audit-result", _exported_kind(said), facts, file, key)


def _fraud(data: bytes, file: str, key: PublicKey | None) -> Verified:
    # Statements are checked without the emulator; a fraud proof needs it.
    from verifier.fraud import check_proof

    proved = check_proof(data, (key,) if key else (), file=file)
    return Verified(
        file=file,
        kind="fraud-proof",
        digest=hashlib.sha256(data).hexdigest(),
        key_id=proved.key_id,
        trusted=key is not None,
        subject=proved.kind,
        run_id=proved.run_id,
        created="",
        facts={
            "proves": f"step {proved.step}, rank {proved.rank}: element {list(proved.index)} of "
            f"{proved.value} was committed as {proved.committed_bits}, the product of the "
            f"committed operands is {proved.recomputed_bits}",
            "differing": f"{proved.differing} of this tile's elements",
            "registration": proved.registration,
        },
    )
