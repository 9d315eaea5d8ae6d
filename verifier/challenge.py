"""The challenge: a seed that nobody could foresee while the run could still be changed.

    seed = SHA-256(domain || commitment digest || beacon || nonce)

each part preceded by its length as 8 bytes, little-endian, so that no two different inputs
are one byte string. The beacon keeps the trainer from grinding commitments until the sample
is kind to it, and keeps the auditor from choosing the sample; the verifier's nonce binds the
result to one verifier, and protects against a trainer even if there is no beacon. A seed from
the commitment alone cannot be made: the trainer could grind it.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass

from verifier.beacon import Beacon
from verifier.errors import OptionError

DOMAIN = b"bitwitness/challenge/v1"
NONCE_BYTES = 32
MIN_NONCE_BYTES = 8
MAX_NONCE_BYTES = 64
_NONCE_ALONE = (
    "There was no public beacon: that the draw was not foreseen rests on the verifier's nonce "
    "alone, and that it was not chosen rests on the verifier."
)
_UNDATED = "It was not checked that the beacon is younger than the commitment."
_ANY_ROUND = "Which of the rounds after the commitment was taken was the verifier's choice."
_HEX = re.compile(r"(?:[0-9a-f]{2})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What was drawn from what: all that is needed to draw it again.

    Attributes:
        commitment_digest: SHA-256 of the commitment's signed payload, 32 bytes.
        beacon: public randomness, or none.
        nonce: the verifier's own randomness.

    """

    commitment_digest: bytes
    beacon: Beacon
    nonce: bytes

    @property
    def seed(self) -> bytes:
        """The seed, 32 bytes."""
        return derive_seed(self.commitment_digest, self.beacon.value, self.nonce)

    def caveat(self) -> str:
        """Say what this seed does not protect against, in one sentence."""
        if not self.beacon.value:
            return _NONCE_ALONE
        return _ANY_ROUND if self.beacon.kind == "drand" else _UNDATED


def derive_seed(commitment_digest: bytes, beacon: bytes, nonce: bytes) -> bytes:
    """Return SHA-256 over the length-prefixed domain and parts, 32 bytes."""
    digest = hashlib.sha256()
    for part in (DOMAIN, commitment_digest, beacon, nonce):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def fresh_nonce() -> bytes:
    """Return 32 random bytes from the operating system."""
    return os.urandom(NONCE_BYTES)


def nonce_from_hex(text: str) -> bytes:
    """Read a nonce from lower-case hex.

    Raises:
        OptionError: not hex, or as `check_nonce`.

    """
    if not _HEX.fullmatch(text):
        raise OptionError("a nonce is lower-case hex")
    return check_nonce(bytes.fromhex(text))


def check_nonce(nonce: bytes) -> bytes:
    """Return the nonce; OptionError unless it has 8 to 64 bytes."""
    if not MIN_NONCE_BYTES <= len(nonce) <= MAX_NONCE_BYTES:
        raise OptionError(
            f"a nonce has {MIN_NONCE_BYTES} to {MAX_NONCE_BYTES} bytes, not {len(nonce)}"
        )
    return nonce
