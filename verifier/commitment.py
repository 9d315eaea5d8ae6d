"""The commitment of a run: opened even if its signature is wrong, so that other checks go on."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from transcript import canonical
from transcript.dsse import ENVELOPE_LIMIT, Envelope
from transcript.errors import StorageError, TranscriptError
from transcript.keys import PublicKey
from transcript.model import check_type
from transcript.run import RunFolder
from transcript.statements import Commitment, open_statement
from verifier.errors import RunError
from verifier.verdict import Check, from_error, match


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedCommitment:
    """A commitment's content, believed only as far as `signature` goes.

    Attributes:
        predicate: the content.
        digest: SHA-256 of the signed payload, 64 hexadecimal digits.
        signature: the check of its signature by the registered key.

    """

    predicate: Commitment
    digest: str
    signature: Check


def open_commitment(folder: RunFolder, key: PublicKey) -> OpenedCommitment:
    """Read a run's commitment.

    Raises:
        RunError: there is none that can be read: such a run has not been committed.
        StorageError: the disk fails.

    """
    file = str(folder.commitment)
    try:
        data = folder.read(folder.commitment)
        payload = Envelope.parse(data, file=file).payload
        value = canonical.loads(payload, limit=ENVELOPE_LIMIT, file=file)
        check_type(value, "predicateType", Commitment.PREDICATE, file=file)
        predicate = Commitment.check(value.get("predicate"), file=file)
    except StorageError:
        raise
    except TranscriptError as error:
        raise RunError(str(error)) from None
    return OpenedCommitment(
        predicate=predicate,
        digest=sha256(payload).hexdigest(),
        signature=_signature(data, key, file),
    )


def _signature(data: bytes, key: PublicKey, file: str) -> Check:
    name = "commitment.signature"
    try:
        open_statement(data, Commitment, [key], file=file)
    except TranscriptError as error:
        return from_error(name, error)
    return match(name, "the commitment is signed by the registered key", key=key.key_id)
