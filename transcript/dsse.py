"""DSSE v1 envelopes: signed bytes with their type, as JSON.

A signature is over PAE(type, payload) = "DSSEv1" SP len(type) SP type SP len(payload) SP payload,
so a payload of one type never passes for another. The payload travels as base64 and is handed out
as the very bytes that were signed. A `keyid` is a hint that nothing is decided by: every trusted
key is tried. Stricter than the specification: standard base64 only, `keyid` present, no other
fields. See github.com/secure-systems-lab/dsse.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from transcript import canonical
from transcript.errors import LimitError, MalformedError, SignatureError
from transcript.keys import PrivateKey, PublicKey

ENVELOPE_LIMIT: Final = 16 << 20
MAX_SIGNATURES: Final = 16
_MAX_SIGNATURE_BYTES: Final = 128  # 72 for ECDSA on P-256, 64 for Ed25519


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One signature and the claim whose it is."""

    key_id: str
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A payload, its type and its signatures, none of which is verified yet."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @classmethod
    def sign(cls, payload: bytes, payload_type: str, keys: Sequence[PrivateKey]) -> Envelope:
        """Sign a payload with each key."""
        message = pae(payload_type, payload)
        signatures = tuple(
            Signature(key_id=key.public.key_id, signature=key.sign(message)) for key in keys
        )
        return cls(payload_type=payload_type, payload=payload, signatures=signatures)

    def encode(self) -> bytes:
        """Return the envelope as one line of JSON."""
        signatures = [
            {"keyid": item.key_id, "sig": base64.b64encode(item.signature).decode()}
            for item in self.signatures
        ]
        payload = base64.b64encode(self.payload).decode()
        return canonical.dumps(
            {"payload": payload, "payloadType": self.payload_type, "signatures": signatures}
        )

    @classmethod
    def parse(cls, data: bytes, *, file: str = "") -> Envelope:
        """Parse an untrusted envelope.

        The JSON need not be canonical: it is not what is signed.

        Raises:
            MalformedError, LimitError: not exactly the three fields, or too much of anything.

        """
        value = canonical.loads(
            data.rstrip(b"\n"), limit=ENVELOPE_LIMIT, file=file, canonical=False
        )
        if not isinstance(value, dict) or value.keys() != {"payload", "payloadType", "signatures"}:
            raise MalformedError("not a DSSE envelope", file=file)
        signatures = value["signatures"]
        if not isinstance(value["payloadType"], str) or not isinstance(signatures, list):
            raise MalformedError("not a DSSE envelope", file=file)
        if not 1 <= len(signatures) <= MAX_SIGNATURES:
            raise LimitError(f"{len(signatures)} signatures, not 1 to {MAX_SIGNATURES}", file=file)
        return cls(
            payload_type=value["payloadType"],
            payload=_base64(value["payload"], file),
            signatures=tuple(_parse_signature(item, file) for item in signatures),
        )

    def verify(
        self, keys: Sequence[PublicKey], payload_type: str, *, file: str = ""
    ) -> tuple[PublicKey, ...]:
        """Return the trusted keys that signed this payload as `payload_type`, at least one.

        Raises:
            SignatureError: the type is another one, or none of `keys` signed.

        """
        if self.payload_type != payload_type:
            raise SignatureError(
                f"signed as {self.payload_type[:100]!r}, not as {payload_type}", file=file
            )
        message = pae(payload_type, self.payload)
        signers = tuple(key for key in keys if self._signed_by(key, message))
        if not signers:
            trusted = ", ".join(key.key_id[:16] for key in keys) or "no key"
            raise SignatureError(f"not signed by {trusted}", file=file)
        return signers

    def _signed_by(self, key: PublicKey, message: bytes) -> bool:
        for item in self.signatures:
            try:
                key.verify(item.signature, message)
            except SignatureError:
                continue
            return True
        return False


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the pre-authentication encoding: the bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _parse_signature(item: Any, file: str) -> Signature:
    if not isinstance(item, dict) or item.keys() != {"keyid", "sig"}:
        raise MalformedError("a signature has exactly keyid and sig", file=file)
    signature = _base64(item["sig"], file)
    if not isinstance(item["keyid"], str) or len(signature) > _MAX_SIGNATURE_BYTES:
        raise MalformedError("a signature has a bad keyid or sig", file=file)
    return Signature(key_id=item["keyid"], signature=signature)


def _base64(text: object, file: str) -> bytes:
    if not isinstance(text, str):
        raise MalformedError("payload or sig is not a string", file=file)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedError("payload or sig is not base64", file=file) from None
    if base64.b64encode(data).decode() != text:
        raise MalformedError("payload or sig is not canonical base64", file=file)
    return data
