"""Drand rounds are believed only with the network's signature, checked without the network.

The answers are those of the League of Entropy's public chains. Each proves itself: nobody else
could have made a signature that verifies under the pinned keys.
"""

import hashlib
import json
import subprocess
import sys

import pytest

from verifier.beacon import beacon_from_file
from verifier.drand import CHAINS, DEFAULT, QUICKNET, Round
from verifier.errors import BeaconError

QUICKNET_ROUNDS = {
    1000: (
        "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b"
        "63ed5e39"
    ),
    1_000_000: (
        "83ad29e4c409f9470fc2ef02f90214df49e02b441a1a241a82d622d9f608ef98fd8b11a029f1bee9d9e83b45"
        "088abe72"
    ),
}
DEFAULT_ROUNDS = {
    1: (
        (
            "8d61d9100567de44682506aea1a7a6fa6e5491cd27a0a0ed349ef6910ac5ac20ff7bc3e09d7c046566c9f7f3"
            "c6f3b10104990e7cb424998203d8f7de586fb7fa5f60045417a432684f85093b06ca91c769f0e7ca19268375"
            "e659c2a2352b4655"
        ),
        "176f93498eac9ca337150b46d21dd58673ea4e3581185f869672e59fa4cb390a",
    ),
    72785: (
        (
            "82f5d3d2de4db19d40a6980e8aa37842a0e55d1df06bd68bddc8d60002e8e959eb9cfa368b3c1b77d18f02a5"
            "4fe047b80f0989315f83b12a74fd8679c4f12aae86eaf6ab5690b34f1fddd50ee3cc6f6cdf59e95526d5a5d8"
            "2aaa84fa6f181e42"
        ),
        (
            "a609e19a03c2fcc559e8dae14900aaefe517cb55c840f6e69bc8e4f66c8d18e8a609685d9917efbfb0c37f05"
            "8c2de88f13d297c7e19e0ab24813079efe57a182554ff054c7638153f9b26a60e7111f71a0ff63d957170490"
            "5d3ca6df0b031747"
        ),
    ),
}


def quicknet(number=1000, *, signature=None, **changes) -> Round:
    given = bytes.fromhex(QUICKNET_ROUNDS[1000]) if signature is None else signature
    return Round(**{"chain": QUICKNET, "number": number, "signature": given, **changes})


def default(number=72785, **changes) -> Round:
    signature, previous = (bytes.fromhex(text) for text in DEFAULT_ROUNDS[72785])
    fields = {"chain": DEFAULT, "number": number, "signature": signature, "previous": previous}
    return Round(**{**fields, **changes})


def refused(answer: Round) -> str:
    with pytest.raises(BeaconError) as caught:
        answer.verify()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_pinned_chains_are_the_published_ones() -> None:
    """Period, genesis, key and group give the chain hashes under which drand serves them."""
    assert [chain.hash for chain in CHAINS] == [
        "8990e7a9aaed2ffed73dbd7092123d6f289930540d7651336225dc172e51b2ce",
        "52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971",
    ]
    assert DEFAULT_ROUNDS[1][1] == DEFAULT.group.hex()


@pytest.mark.parametrize("number", QUICKNET_ROUNDS)
def test_a_round_of_quicknet(number, tmp_path) -> None:
    """An unchained answer is quicknet's; its value and its time follow from it."""
    signature = QUICKNET_ROUNDS[number]
    path = tmp_path / "round.json"
    path.write_text(json.dumps({"round": number, "signature": signature}))
    beacon = beacon_from_file(path)
    assert beacon.kind == "drand"
    assert beacon.value == hashlib.sha256(bytes.fromhex(signature)).digest()
    assert beacon.time == 1_692_803_367 + (number - 1) * 3
    assert f"round {number} of chain quicknet" in beacon.description
    path.write_text(
        json.dumps({"round": number, "randomness": beacon.value.hex(), "signature": signature})
    )
    assert beacon_from_file(path) == beacon


@pytest.mark.parametrize("number", DEFAULT_ROUNDS)
def test_a_round_of_the_default_chain(number, tmp_path) -> None:
    """A chained answer is the default chain's, of 30 seconds."""
    signature, previous = DEFAULT_ROUNDS[number]
    path = tmp_path / "round.json"
    document = {"round": number, "signature": signature, "previous_signature": previous}
    path.write_text(json.dumps(document))
    beacon = beacon_from_file(path)
    assert beacon.time == 1_595_431_050 + (number - 1) * 30
    assert f"round {number} of chain default" in beacon.description


def test_a_signature_of_something_else() -> None:
    """A real signature is refused for another round, after another one, and on another chain."""
    wrong = "not one of this message by this key"
    assert wrong in refused(quicknet(1001))
    assert wrong in refused(quicknet(signature=bytes.fromhex(QUICKNET_ROUNDS[1_000_000])))
    assert wrong in refused(quicknet(previous=b"x"))
    assert wrong in refused(default(72786))
    assert wrong in refused(default(previous=DEFAULT.group))
    assert wrong in refused(default(signature=bytes.fromhex(DEFAULT_ROUNDS[1][0])))
    assert "48 bytes long, and not 96" in refused(quicknet(chain=DEFAULT))
    assert "96 bytes long, and not 48" in refused(default(chain=QUICKNET))


def test_a_signature_by_another_key() -> None:
    """Whoever signs rounds with a key of its own is refused."""
    from py_ecc.bls.hash_to_curve import hash_to_G1
    from py_ecc.bls.point_compression import compress_G1
    from py_ecc.optimized_bls12_381.optimized_curve import multiply

    message = quicknet().message
    domain = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
    point = multiply(hash_to_G1(message, domain, hashlib.sha256), 1234567)
    mine = compress_G1(point).to_bytes(48, "big")
    assert "by this key" in refused(quicknet(signature=mine))


# x = 4 and x = 2 in Fp2: on the curves, in larger groups than the signatures' (checked below).
OUTSIDE = {QUICKNET: bytes([0x80, *bytes(46), 4]), DEFAULT: bytes([0x80, *bytes(94), 2])}


@pytest.mark.parametrize("make", [quicknet, default])
def test_a_point_that_is_no_signature(make) -> None:
    """Malformed points, the point at infinity, and points outside the group are told apart."""
    good = make().signature
    size = len(good)
    infinity = bytes([0xC0, *bytes(size - 1)])
    assert "the point at infinity" in refused(make(signature=infinity))
    assert "outside the group" in refused(make(signature=OUTSIDE[make().chain]))
    for malformed in (
        bytes(size),
        bytes([good[0] & 0x7F, *good[1:]]),
        bytes([good[0] | 0x40, *good[1:]]),
        bytes([0x9F, *b"\xff" * (size - 1)]),
        bytes([0xE0, *bytes(size - 1)]),
        bytes([0xC0, *bytes(size - 2), 1]),
        bytes([0x80, *bytes(size - 2), 1]),
    ):
        assert "no point of the curve" in refused(make(signature=malformed)), malformed.hex()
    for length in (0, 1, size - 1, size + 1, 512):
        assert f"{length} bytes long" in refused(make(signature=bytes(length)))
    mirrored = bytes([good[0] ^ 0x20, *good[1:]])
    assert "by this key" in refused(make(signature=mirrored))


def test_an_answer_that_the_network_did_not_give(tmp_path) -> None:
    """A file that names a round with a made-up signature is refused with its name, in one line."""
    path = tmp_path / "round.json"
    path.write_text(json.dumps({"round": 1000, "signature": QUICKNET_ROUNDS[1_000_000]}))
    with pytest.raises(BeaconError, match=r"round\.json: the signature of drand round 1000 of cha"):
        beacon_from_file(path)
    randomness = hashlib.sha256(bytes(48)).hexdigest()
    path.write_text(json.dumps({"round": 1, "randomness": randomness, "signature": "00" * 48}))
    with pytest.raises(BeaconError, match="no point of the curve"):
        beacon_from_file(path)
    path.write_text(json.dumps({"round": 1, "signature": "00" * 20}))
    with pytest.raises(BeaconError, match="20 bytes long"):
        beacon_from_file(path)


def test_the_recursion_limit_stays() -> None:
    """The pairing library raises Python's recursion limit; hostile JSON must not profit."""
    code = (
        "import sys; from verifier.drand import QUICKNET, Round\n"
        "before = sys.getrecursionlimit(); assert 'py_ecc' not in sys.modules\n"
        f"Round(chain=QUICKNET, number=1000, signature=bytes.fromhex('{QUICKNET_ROUNDS[1000]}'))"
        ".verify()\n"
        "assert 'py_ecc' in sys.modules and sys.getrecursionlimit() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
