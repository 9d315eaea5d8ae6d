"""Signed tree heads of the log: C2SP tlog-checkpoint in a C2SP signed note, Ed25519.

    bitwitness/<run id>
    <size>
    <base64 of the root>

    -- <key name> <base64 of 4 bytes of key hash and 64 bytes of signature>

The dash is U+2014. The key's name is the origin line; the signature is over the text up to and
including the newline before the empty line. Verifiers read the note strictly: three text lines, no
extensions, and exactly one signature line, which must be by the key asked for.
See c2sp.org/tlog-checkpoint, c2sp.org/signed-note.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from transcript.canonical import MAX_INTEGER
from transcript.errors import ContractError, ForkError, LimitError, MalformedError, SignatureError
from transcript.keys import PrivateKey, PublicKey
from transcript.merkle import HASH_BYTES
from transcript.model import RUN_ID

CHECKPOINT_LIMIT: Final = 4096
ORIGIN_PREFIX: Final = "bitwitness/"
_DASH: Final = "\u2014"
_ED25519: Final = b"\x01"
_KEY_HASH_BYTES: Final = 4
_SIGNATURE_BYTES: Final = 64
_RUN_ID: Final = re.compile(RUN_ID)
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A tree head: the log of run `run_id` had `root` (32 bytes) over its first `size` leaves."""

    run_id: str
    size: int
    root: bytes

    @property
    def origin(self) -> str:
        """The origin line, which is also the key's name."""
        return ORIGIN_PREFIX + self.run_id

    def text(self) -> bytes:
        """Return the bytes that are signed."""
        root = base64.b64encode(self.root).decode()
        return f"{self.origin}\n{self.size}\n{root}\n".encode()

    def sign(self, key: PrivateKey) -> bytes:
        """Return the signed note; ContractError for a key that is not Ed25519."""
        hint = key_hash(self.origin, key.public)
        line = base64.b64encode(hint + key.sign(self.text())).decode()
        return self.text() + f"\n{_DASH} {self.origin} {line}\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCheckpoint:
    """A parsed note. `signature` means nothing before `verify`."""

    checkpoint: Checkpoint
    key_hash: bytes
    signature: bytes
    note: bytes

    @classmethod
    def parse(cls, note: bytes, *, file: str = "") -> SignedCheckpoint:
        """Parse an untrusted note; MalformedError unless it is the only encoding of its content."""
        if len(note) > CHECKPOINT_LIMIT:
            raise LimitError(f"a checkpoint has at most {CHECKPOINT_LIMIT} bytes", file=file)
        checkpoint, line = _parse_text(note, file)
        blob = _base64(line, _KEY_HASH_BYTES + _SIGNATURE_BYTES, file)
        parsed = cls(
            checkpoint=checkpoint,
            key_hash=blob[:_KEY_HASH_BYTES],
            signature=blob[_KEY_HASH_BYTES:],
            note=note,
        )
        expected = checkpoint.text() + f"\n{_DASH} {checkpoint.origin} {line}\n".encode()
        if expected != note:
            raise MalformedError("not the canonical form of a checkpoint", file=file)
        return parsed

    def verify(self, key: PublicKey, *, file: str = "") -> Checkpoint:
        """Return the tree head; SignatureError unless `key` signed it."""
        if self.key_hash != key_hash(self.checkpoint.origin, key):
            raise SignatureError("the checkpoint names another key", file=file)
        try:
            key.verify(self.signature, self.checkpoint.text())
        except SignatureError as error:
            raise SignatureError(error.message, file=file) from None
        return self.checkpoint


def key_hash(name: str, key: PublicKey) -> bytes:
    """Return the 4 bytes by which a signed note names an Ed25519 key."""
    return sha256(name.encode() + b"\n" + _ED25519 + key.raw()).digest()[:_KEY_HASH_BYTES]


def verifier_key(run_id: str, key: PublicKey) -> str:
    """Return the key as other C2SP tools take it: name+hash+base64."""
    name = ORIGIN_PREFIX + run_id
    encoded = base64.b64encode(_ED25519 + key.raw()).decode()
    return f"{name}+{key_hash(name, key).hex()}+{encoded}"


def check_fork(first: bytes, second: bytes, key: PublicKey) -> None:
    """Compare two signed notes by one key.

    Raises:
        ForkError: same run and size, different roots. Its evidence holds both notes, which together
            prove that the key's owner signed two histories.
        MalformedError, SignatureError: a note is not what it claims to be, so it proves nothing.

    """
    a = SignedCheckpoint.parse(first).verify(key)
    b = SignedCheckpoint.parse(second).verify(key)
    if (a.run_id, a.size) == (b.run_id, b.size) and a.root != b.root:
        raise ForkError(
            f"two signed roots for size {a.size} of run {a.run_id}",
            evidence={"first": first.decode(), "second": second.decode()},
        )


def _parse_text(note: bytes, file: str) -> tuple[Checkpoint, str]:
    """Split the note into its tree head and the base64 of its one signature line."""
    try:
        origin, size, root, empty, signature, end = note.decode("utf-8").split("\n")
    except ValueError:
        raise MalformedError(
            "not a checkpoint of three lines and one signature", file=file
        ) from None
    run_id = origin.removeprefix(ORIGIN_PREFIX)
    prefix = f"{_DASH} {origin} "
    if origin == run_id or not _RUN_ID.fullmatch(run_id):
        raise MalformedError("the origin is not bitwitness/ and a run id", file=file)
    if not _SIZE.fullmatch(size) or int(size) > MAX_INTEGER:
        raise MalformedError("the size is not a decimal number", file=file)
    if empty or end or not signature.startswith(prefix):
        raise MalformedError("the signature line is not by the origin's key", file=file)
    head = Checkpoint(run_id=run_id, size=int(size), root=_base64(root, HASH_BYTES, file))
    return head, signature.removeprefix(prefix)


def _base64(text: str, length: int, file: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedError("not base64", file=file) from None
    if len(data) != length or base64.b64encode(data).decode() != text:
        raise MalformedError(f"not the base64 of {length} bytes", file=file)
    return data


def checked_run_id(run_id: str) -> str:
    """Return `run_id`; ContractError unless it fits an origin line and a file name."""
    if not _RUN_ID.fullmatch(run_id):
        raise ContractError(f"not a run id: {run_id!r}")
    return run_id
