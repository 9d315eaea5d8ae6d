"""Signed tree heads."""

import base64
from hashlib import sha256

import pytest

from transcript.checkpoint import Checkpoint, SignedCheckpoint, check_fork, verifier_key
from transcript.errors import (
    ContractError,
    ForkError,
    LimitError,
    MalformedError,
    SignatureError,
    TranscriptError,
)
from transcript.keys import PrivateKey

KEY = PrivateKey.generate()
HEAD = Checkpoint(run_id="demo-1", size=7, root=bytes(range(32)))
NOTE = HEAD.sign(KEY)


def test_round_trip():
    """What is signed is parsed and verified, and its text is the one of the specification."""
    assert SignedCheckpoint.parse(NOTE).verify(KEY.public) == HEAD
    assert NOTE.decode().split("\n")[:4] == [
        "bitwitness/demo-1", "7", base64.b64encode(HEAD.root).decode(), "",
    ]  # fmt: skip


def test_the_key_hash_is_the_signed_notes():
    """The hint and the verifier key are built as c2sp.org/signed-note says, redone by hand."""
    name, raw = b"bitwitness/demo-1", KEY.public.raw()
    hint = sha256(name + b"\n\x01" + raw).digest()[:4]
    assert SignedCheckpoint.parse(NOTE).key_hash == hint
    encoded = base64.b64encode(b"\x01" + raw).decode()
    assert verifier_key("demo-1", KEY.public) == f"bitwitness/demo-1+{hint.hex()}+{encoded}"


def damaged():
    """Yield a name and a note that differs from the good one."""
    text = NOTE.decode()
    lines = text.split("\n")
    root, signature = lines[2], lines[4]
    yield "size", text.replace("\n7\n", "\n8\n"), SignatureError
    yield "leading zero", text.replace("\n7\n", "\n07\n"), MalformedError
    yield "plus sign", text.replace("\n7\n", "\n+7\n"), MalformedError
    yield "other digits", text.replace("\n7\n", "\n\u0667\n"), MalformedError
    yield "huge size", text.replace("\n7\n", "\n" + "9" * 400 + "\n"), MalformedError
    yield "root", text.replace(root, base64.b64encode(bytes(32)).decode()), SignatureError
    yield "short root", text.replace(root, base64.b64encode(bytes(31)).decode()), MalformedError
    # the last digit of 32 bytes in base64 has two bits that nothing reads
    yield "loose base64", text.replace(root, root[:-2] + "9="), MalformedError
    yield "origin", text.replace("demo-1", "demo-2"), SignatureError
    yield "foreign origin", text.replace("bitwitness/", "example.com/"), MalformedError
    yield "extension", text.replace(f"{root}\n", f"{root}\nmore\n"), MalformedError
    yield "second signature", text + signature + "\n", MalformedError
    yield "no signature", "\n".join(lines[:3]) + "\n\n", MalformedError
    yield "hyphen", text.replace("\u2014", "-"), MalformedError
    yield "carriage return", text.replace("\n", "\r\n"), MalformedError
    yield "cut", text[:-2], MalformedError
    yield "empty", "", MalformedError
    yield "huge", text + "x" * 5000, LimitError


@pytest.mark.parametrize(
    ("note", "error"), [d[1:] for d in damaged()], ids=[d[0] for d in damaged()]
)
def test_damaged_notes_are_refused(note, error):
    """Every change of a note breaks its form or its signature."""
    with pytest.raises(error, match=r"^checkpoints/7: "):
        SignedCheckpoint.parse(note.encode(), file="checkpoints/7").verify(
            KEY.public, file="checkpoints/7"
        )


def test_every_flipped_bit_is_noticed():
    """No single flipped bit of a note survives parsing and verification."""
    for position in range(len(NOTE)):
        note = bytearray(NOTE)
        note[position] ^= 1
        with pytest.raises(TranscriptError):
            SignedCheckpoint.parse(bytes(note)).verify(KEY.public)


def test_another_key_is_refused():
    """A note by another key names that key, and a P-256 key cannot sign one."""
    with pytest.raises(SignatureError, match="another key"):
        SignedCheckpoint.parse(NOTE).verify(PrivateKey.generate().public)
    with pytest.raises(ContractError, match="Ed25519"):
        HEAD.sign(PrivateKey.generate("ecdsa-p256-sha256"))


def test_two_roots_for_one_size_are_evidence():
    """Two signed heads of one size with different roots convict the key's owner by themselves."""
    other = Checkpoint(run_id="demo-1", size=7, root=bytes(32)).sign(KEY)
    with pytest.raises(ForkError) as caught:
        check_fork(NOTE, other, KEY.public)
    notes = caught.value.evidence
    heads = {SignedCheckpoint.parse(n.encode()).verify(KEY.public).root for n in notes.values()}
    assert len(heads) == 2


def test_what_is_no_fork():
    """Equal heads and heads of other sizes or runs prove nothing; a forged head is refused."""
    check_fork(NOTE, NOTE, KEY.public)
    check_fork(NOTE, Checkpoint(run_id="demo-1", size=8, root=bytes(32)).sign(KEY), KEY.public)
    check_fork(NOTE, Checkpoint(run_id="demo-2", size=7, root=bytes(32)).sign(KEY), KEY.public)
    forged = Checkpoint(run_id="demo-1", size=7, root=bytes(32)).sign(PrivateKey.generate())
    with pytest.raises(SignatureError):
        check_fork(NOTE, forged, KEY.public)
