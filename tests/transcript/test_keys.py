"""Keys on disk and their signatures."""

import stat
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from transcript.errors import ContractError, MalformedError, MissingError, SignatureError
from transcript.keys import PrivateKey, PublicKey

ALGORITHMS = ["ed25519", "ecdsa-p256-sha256"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_saved_keys_come_back(tmp_path, algorithm):
    """A saved key signs for the same public key, and only its owner can read the file."""
    key = PrivateKey.generate(algorithm)
    key.save(tmp_path / "key.pem")
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    again = PrivateKey.load(tmp_path / "key.pem")
    key.public.verify(again.sign(b"data"), b"data")
    assert again.public.key_id == key.public.key_id
    assert again.public.algorithm == algorithm
    assert PublicKey.from_pem(key.public.pem().encode()).key_id == key.public.key_id


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_wrong_signatures_are_refused(algorithm):
    """Another key, another message, a cut or an empty signature: refused."""
    key = PrivateKey.generate(algorithm)
    signature = key.sign(b"data")
    for public, sig, data in [
        (PrivateKey.generate(algorithm).public, signature, b"data"),
        (key.public, signature, b"datum"),
        (key.public, signature[:-1], b"data"),
        (key.public, b"", b"data"),
    ]:
        with pytest.raises(SignatureError, match=public.key_id[:16]):
            public.verify(sig, data)


def test_algorithms_are_not_confused():
    """A signature of one algorithm is not taken by a key of the other."""
    ed, p256 = (PrivateKey.generate(algorithm) for algorithm in ALGORITHMS)
    for signer, verifier in ((ed, p256), (p256, ed)):
        with pytest.raises(SignatureError):
            verifier.public.verify(signer.sign(b"data"), b"data")


def test_a_key_is_never_overwritten(tmp_path):
    """Saving over an existing file is refused and leaves it as it was."""
    path = tmp_path / "key.pem"
    PrivateKey.generate().save(path)
    before = path.read_bytes()
    with pytest.raises(ContractError, match="already there"):
        PrivateKey.generate().save(path)
    assert path.read_bytes() == before


def test_other_keys_are_refused(tmp_path):
    """RSA, another curve, a public key in place of a private one, and noise: refused by name."""
    others = [
        rsa.generate_private_key(65537, 2048).public_key(),
        ec.generate_private_key(ec.SECP384R1()).public_key(),
    ]
    for other in others:
        pem = other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with pytest.raises(MalformedError, match="neither"):
            PublicKey.from_pem(pem, file="k.pem")
    for data in (b"", b"noise", PrivateKey.generate().public.pem().encode()):
        (tmp_path / "bad.pem").write_bytes(data)
        with pytest.raises(MalformedError, match=r"bad\.pem"):
            PrivateKey.load(tmp_path / "bad.pem")
    with pytest.raises(MissingError):
        PublicKey.load(tmp_path / "none.pem")


def test_the_key_id_is_what_openssl_says(tmp_path):
    """A key's id is the SHA-256 of the DER that openssl prints for it."""
    key = PrivateKey.generate()
    key.save(tmp_path / "key.pem")
    der = subprocess.run(
        ["openssl", "pkey", "-in", "key.pem", "-pubout", "-outform", "DER"],
        cwd=tmp_path, check=True, capture_output=True,
    ).stdout  # fmt: skip
    digest = subprocess.run(
        ["openssl", "dgst", "-sha256", "-r"], input=der, check=True, capture_output=True
    ).stdout
    assert digest.split()[0].decode() == key.public.key_id


def test_a_private_key_does_not_show_itself():
    """The representation of a private key holds nothing of it."""
    assert "key=" not in repr(PrivateKey.generate())
