"""The seed binds every input, and beacons are read strictly."""

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier import beacon as beacons
from verifier.challenge import Challenge, derive_seed, fresh_nonce, nonce_from_hex
from verifier.errors import BeaconError, OptionError

parts = st.tuples(st.binary(max_size=6), st.binary(max_size=6), st.binary(max_size=6))


@given(first=parts, second=parts)
@settings(deadline=None, max_examples=200)
def test_seeds_differ_when_any_input_differs(first, second):
    """Two seeds are equal only if all three inputs are: no ambiguous concatenation."""
    assert (derive_seed(*first) == derive_seed(*second)) == (first == second)


def test_moving_a_byte_between_parts_changes_the_seed():
    """The border between beacon and nonce is part of what is hashed."""
    assert derive_seed(b"c", b"ab", b"c") != derive_seed(b"c", b"a", b"bc")


def test_seed_is_the_documented_hash():
    """The seed is SHA-256 over domain, digest, beacon and nonce with 8-byte little lengths."""
    text = b"".join(
        len(part).to_bytes(8, "little") + part
        for part in (b"bitwitness/challenge/v1", b"C" * 32, b"beacon", b"nonce")
    )
    assert derive_seed(b"C" * 32, b"beacon", b"nonce") == hashlib.sha256(text).digest()


def test_caveat_says_exactly_what_was_used():
    """A seed without beacon, with an undated one and with a drand round are told apart."""
    drand = beacons.Beacon(value=b"x", kind="drand", description="")
    given_hex = beacons.beacon_from_hex("00ff")
    cases = [
        (beacons.NO_BEACON, b"n", "nonce alone"),
        (given_hex, b"n", "younger than the commitment"),
        (drand, b"n", "verifier's choice"),
    ]
    for beacon, nonce, words in cases:
        challenge = Challenge(commitment_digest=bytes(32), beacon=beacon, nonce=nonce)
        assert words in challenge.caveat()


def test_nonces():
    """A fresh nonce is 32 bytes and never the same; a given one is strict hex."""
    assert len(fresh_nonce()) == 32
    assert fresh_nonce() != fresh_nonce()
    assert nonce_from_hex("00ff" * 4) == b"\x00\xff" * 4
    for bad in ("", "0", "0x00", "FF" * 8, "zz", "00" * 7, "00" * 65, "00" * 8 + "\n"):
        with pytest.raises(OptionError):
            nonce_from_hex(bad)


def _answer(signature: bytes, **extra: object) -> str:
    randomness = hashlib.sha256(signature).hexdigest()
    document = {"round": 1000, "randomness": randomness, "signature": signature.hex(), **extra}
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{" * 4000,
        '{"round": 1}',
        '{"round": true, "randomness": "00", "signature": "00"}',
        '{"round": 1, "round": 2, "randomness": "00", "signature": "00"}',
        _answer(b"s").replace('"round": 1000', '"round": 0'),
        _answer(b"s").replace('"round": 1000', '"round": 1e3'),
        json.dumps({"round": 1, "randomness": "00" * 32, "signature": "00"}),
    ],
)
def test_broken_drand_answers_are_refused(tmp_path, text):
    """What starts like a drand answer and is none is an error, not a beacon of raw bytes."""
    path = tmp_path / "beacon.json"
    path.write_text(text)
    with pytest.raises(BeaconError, match=r"beacon\.json"):
        beacons.beacon_from_file(path)


def test_raw_files(tmp_path):
    """Any other file counts by its bytes, within a bound."""
    path = tmp_path / "lottery"
    path.write_bytes(b"3 14 15 92 65")
    beacon = beacons.beacon_from_file(path)
    assert (beacon.kind, beacon.value) == ("file", b"3 14 15 92 65")
    for content in (b"", bytes(beacons.MAX_BEACON_BYTES + 1)):
        path.write_bytes(content)
        with pytest.raises(BeaconError):
            beacons.beacon_from_file(path)
    with pytest.raises(BeaconError, match="absent"):
        beacons.beacon_from_file(tmp_path / "absent")


@pytest.mark.parametrize("text", ["", "0", "FF", "0x12", "00" * 513])
def test_bad_hex_beacons_are_refused(text):
    """A beacon on the command line is lower-case hex, neither empty nor huge."""
    with pytest.raises(BeaconError):
        beacons.beacon_from_hex(text)
