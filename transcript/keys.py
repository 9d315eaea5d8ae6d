"""Signing keys: Ed25519 (RFC 8032) by default, ECDSA on P-256 with SHA-256 as the option.

A key is stored as PEM: PKCS #8 for the private half, SubjectPublicKeyInfo for the public one, which
is what openssl reads and writes. A key's id is the SHA-256 of its SubjectPublicKeyInfo in DER. The
key alone decides the algorithm: no signed document names one, so none can be confused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from transcript.errors import ContractError, MalformedError, SignatureError, StorageError
from transcript.files import read_bounded

Algorithm = Literal["ed25519", "ecdsa-p256-sha256"]
PEM_LIMIT: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies."""

    key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey

    @classmethod
    def from_pem(cls, pem: bytes, *, file: str = "") -> PublicKey:
        """Parse a PEM SubjectPublicKeyInfo; MalformedError for anything else."""
        try:
            key = load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm):
            raise MalformedError("not a PEM public key", file=file) from None
        if isinstance(key, ed25519.Ed25519PublicKey) or (
            isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
        ):
            return cls(key)
        raise MalformedError("neither an Ed25519 nor a P-256 key", file=file)

    @classmethod
    def load(cls, path: Path) -> PublicKey:
        """Read a PEM file; see `from_pem` and `read_bounded` for the errors."""
        return cls.from_pem(read_bounded(path, PEM_LIMIT), file=str(path))

    @property
    def algorithm(self) -> Algorithm:
        """The one algorithm this key is used with."""
        ed = isinstance(self.key, ed25519.Ed25519PublicKey)
        return "ed25519" if ed else "ecdsa-p256-sha256"

    @property
    def key_id(self) -> str:
        """SHA-256 of the SubjectPublicKeyInfo, 64 hexadecimal digits."""
        spki = self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return sha256(spki).hexdigest()

    def pem(self) -> str:
        """Return the PEM text."""
        return self.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def raw(self) -> bytes:
        """Return an Ed25519 key's 32 bytes; ContractError for another key."""
        if not isinstance(self.key, ed25519.Ed25519PublicKey):
            raise ContractError("a log is signed with an Ed25519 key")
        return self.key.public_bytes_raw()

    def verify(self, signature: bytes, data: bytes) -> None:
        """Check a signature over `data`; SignatureError if it is not this key's."""
        try:
            if isinstance(self.key, ed25519.Ed25519PublicKey):
                self.key.verify(signature, data)
            else:
                self.key.verify(signature, data, ec.ECDSA(SHA256()))
        except InvalidSignature:
            raise SignatureError(f"not signed by key {self.key_id[:16]}") from None


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    """A key that signs. Its representation does not show it."""

    key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey

    @classmethod
    def generate(cls, algorithm: Algorithm = "ed25519") -> PrivateKey:
        """Make a key from the system's randomness; ContractError for an unknown algorithm."""
        if algorithm == "ed25519":
            return cls(ed25519.Ed25519PrivateKey.generate())
        if algorithm == "ecdsa-p256-sha256":
            return cls(ec.generate_private_key(ec.SECP256R1()))
        raise ContractError(f"unknown key algorithm {algorithm!r}")

    @classmethod
    def load(cls, path: Path) -> PrivateKey:
        """Read an unencrypted PKCS #8 PEM file; MalformedError for anything else."""
        try:
            key = load_pem_private_key(read_bounded(path, PEM_LIMIT), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise MalformedError("not an unencrypted PEM private key", file=str(path)) from None
        if isinstance(key, ed25519.Ed25519PrivateKey) or (
            isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
        ):
            return cls(key)
        raise MalformedError("neither an Ed25519 nor a P-256 key", file=str(path))

    def save(self, path: Path) -> None:
        """Write a new PKCS #8 PEM file that only its owner can read.

        Raises:
            ContractError: the file exists: a key is never overwritten.
            StorageError: it cannot be written.

        """
        pem = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(pem)
        except FileExistsError:
            raise ContractError("a key is already there", file=str(path)) from None
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", file=str(path)) from None

    @property
    def public(self) -> PublicKey:
        """The half that verifies."""
        return PublicKey(self.key.public_key())

    def sign(self, data: bytes) -> bytes:
        """Sign `data`: 64 bytes for Ed25519, a DER sequence for P-256."""
        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(data)
        return self.key.sign(data, ec.ECDSA(SHA256()))
