"""Signed statements about a run: in-toto Statement v1 in a DSSE envelope.

The payload is canonical JSON; its SHA-256 is the statement's digest, by which the next statement
names it. A reader checks the signature over the raw payload first and parses the same bytes after
that; nothing is serialised again in between. docs/formats/statements.md is the contract and shows
how to check one with jq and openssl. See in-toto.io/Statement/v1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Generic, TypeVar

from transcript import canonical
from transcript.dsse import ENVELOPE_LIMIT, Envelope
from transcript.errors import MalformedError, SignatureError
from transcript.keys import PrivateKey, PublicKey
from transcript.model import check_type
from transcript.predicates import (
    AuditResult,
    Commitment,
    DeclaredFault,
    Predicate,
    Registration,
)
from transcript.run import RunFolder

__all__ = [
    "AuditResult",
    "Commitment",
    "DeclaredFault",
    "Registration",
    "Signed",
    "open_registration",
    "open_statement",
    "read_commitment",
    "read_registration",
    "sign_statement",
]

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"

P = TypeVar("P", Registration, DeclaredFault, Commitment, AuditResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed(Generic[P]):
    """A statement whose signature was checked; `digest` is the SHA-256 of the signed payload."""

    predicate: P
    digest: str
    signers: tuple[PublicKey, ...]
    envelope: Envelope


def sign_statement(predicate: Predicate, key: PrivateKey) -> tuple[bytes, str]:
    """Return the envelope's bytes and the statement's digest (64 hexadecimal digits)."""
    payload = _payload(predicate)
    return Envelope.sign(payload, PAYLOAD_TYPE, [key]).encode(), sha256(payload).hexdigest()


def open_statement(
    data: bytes, kind: type[P], trusted: Sequence[PublicKey], *, file: str = ""
) -> Signed[P]:
    """Check and parse an untrusted envelope.

    Args:
        data: the envelope's bytes.
        kind: which predicate it must hold.
        trusted: the keys one of which must have signed.
        file: its name, for messages.

    Raises:
        SignatureError: signed as another type, or by none of the keys.
        MalformedError, LimitError, VersionError: not a canonical statement of this kind.

    """
    envelope = Envelope.parse(data, file=file)
    signers = envelope.verify(trusted, PAYLOAD_TYPE, file=file)
    return Signed(
        predicate=_parse(envelope.payload, kind, file),
        digest=sha256(envelope.payload).hexdigest(),
        signers=signers,
        envelope=envelope,
    )


def open_registration(
    data: bytes, trusted: Sequence[PublicKey] = (), *, file: str = ""
) -> Signed[Registration]:
    """Check a registration against the key that it names.

    That key is only as good as the way by which it came: give `trusted` to demand that it be one of
    these.

    Raises:
        SignatureError: its own key did not sign it, or is not trusted.
        MalformedError, LimitError, VersionError: as `open_statement`.

    """
    payload = Envelope.parse(data, file=file).payload
    pem = _parse(payload, Registration, file).public_key.encode()
    key = PublicKey.from_pem(pem, file=file)
    if trusted and key.key_id not in {item.key_id for item in trusted}:
        raise SignatureError(f"registers the key {key.key_id[:16]}, not a trusted one", file=file)
    return open_statement(data, Registration, [key], file=file)


def read_registration(folder: RunFolder) -> Signed[Registration]:
    """Read a run's own registration; any key may have signed it.

    Raises:
        transcript.errors.TranscriptError: missing, malformed, or not signed by the key in it.

    """
    return open_registration(folder.read(folder.registration), file=str(folder.registration))


def read_commitment(folder: RunFolder, registration: Signed[Registration]) -> Signed[Commitment]:
    """Read a run's commitment, which the registered key must have signed.

    Raises:
        transcript.errors.TranscriptError: missing, malformed, or not signed by that key.

    """
    data, file = folder.read(folder.commitment), str(folder.commitment)
    return open_statement(data, Commitment, registration.signers, file=file)


def _payload(predicate: Predicate) -> bytes:
    return canonical.dumps(
        {
            "_type": STATEMENT_TYPE,
            "subject": _subjects(predicate),
            "predicateType": predicate.PREDICATE,
            "predicate": predicate.model_dump(mode="python"),
        }
    )


def _subjects(predicate: Predicate) -> list[dict[str, object]]:
    return [{"name": name, "digest": {"sha256": value}} for name, value in predicate.subjects()]


def _parse(payload: bytes, kind: type[P], file: str) -> P:
    value = canonical.loads(payload, limit=ENVELOPE_LIMIT, file=file)
    check_type(value, "_type", STATEMENT_TYPE, file=file)
    check_type(value, "predicateType", kind.PREDICATE, file=file)
    if value.keys() != {"_type", "subject", "predicateType", "predicate"}:
        raise MalformedError("a statement has exactly four fields", file=file)
    predicate = kind.check(value["predicate"], file=file)
    # a default stands in for no field: what is not in the signed bytes was not signed
    if missing := kind.model_fields.keys() - value["predicate"].keys():
        raise MalformedError(f"the predicate has no {min(missing)}", file=file)
    if value["subject"] != _subjects(predicate):
        raise MalformedError("the subjects are not those of the predicate", file=file)
    return predicate
