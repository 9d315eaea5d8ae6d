"""A drand round, checked offline against the public key of its chain.

The League of Entropy's nodes sign the number of each round together, by BLS (bls.py). Such a
signature has one possible value, which nobody knows before enough nodes have signed, and the
round's randomness is its SHA-256. Two chains are pinned here, by all that makes their published
chain hash: period, genesis, key, group and name. The pairing is imported when there is a round
to check.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from verifier.errors import BeaconError

MAX_ROUND: Final = (1 << 40) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A drand network that signs a round every `period` seconds.

    Attributes:
        name: its beacon id.
        genesis: when round 1 was due, seconds since 1970.
        period: seconds between rounds.
        public_key: compressed; in G2 if signatures are in G1, and the other way round.
        group: the group hash, 32 bytes; the default chain's round 1 is chained to it.
        chained: whether a round signs the signature before it as well.

    """

    name: str
    genesis: int
    period: int
    public_key: bytes
    group: bytes
    chained: bool

    @property
    def hash(self) -> str:
        """The chain hash that drand publishes, SHA-256 over all that defines the chain."""
        name = b"" if self.name == "default" else self.name.encode()
        numbers = self.period.to_bytes(4, "big") + self.genesis.to_bytes(8, "big")
        return hashlib.sha256(numbers + self.public_key + self.group + name).hexdigest()


DEFAULT: Final = Chain(
    name="default",
    genesis=1_595_431_050,
    period=30,
    public_key=bytes.fromhex(
        "868f005eb8e6e4ca0a47c8a77ceaa5309a47978a7c71bc5cce96366b5d7a569937c529eeda66c7293784a940"
        "2801af31"
    ),
    group=bytes.fromhex("176f93498eac9ca337150b46d21dd58673ea4e3581185f869672e59fa4cb390a"),
    chained=True,
)
QUICKNET: Final = Chain(
    name="quicknet",
    genesis=1_692_803_367,
    period=3,
    public_key=bytes.fromhex(
        "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a"
        "2d1064510d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76"
        "eae8991ef5ece45a"
    ),
    group=bytes.fromhex("f477d5c89f21a17c863a7f937c6a6d15859414d2be09cd448d4279af331c5d3e"),
    chained=False,
)
CHAINS: Final = (DEFAULT, QUICKNET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A round as a report carries it, in text, so that whoever reads it can check it offline."""

    chain: str
    round: int
    signature: str
    previous_signature: str

    def read(self) -> Round:
        """Return the round, to be verified; BeaconError if this is none of a pinned chain."""
        chain = next((chain for chain in CHAINS if chain.name == self.chain), None)
        if chain is None or not 1 <= self.round <= MAX_ROUND:
            raise BeaconError("the drand round is none of a chain that is known here")
        try:
            signature = bytes.fromhex(self.signature)
            previous = bytes.fromhex(self.previous_signature)
        except ValueError:
            raise BeaconError("the drand round's signature is not hex") from None
        return Round(chain=chain, number=self.round, signature=signature, previous=previous)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round as drand answers it; believed after `verify`.

    Attributes:
        chain: whose it is said to be.
        number: 1 to MAX_ROUND.
        signature: a compressed point.
        previous: of a chained round the signature before it, else empty.

    """

    chain: Chain
    number: int
    signature: bytes
    previous: bytes = b""

    @property
    def randomness(self) -> bytes:
        """The 32 bytes that the network publishes."""
        return hashlib.sha256(self.signature).digest()

    @property
    def time(self) -> int:
        """When the round was due, by the chain's rule, seconds since 1970."""
        return self.chain.genesis + (self.number - 1) * self.chain.period

    @property
    def message(self) -> bytes:
        """What the nodes sign, 32 bytes."""
        return hashlib.sha256(self.previous + self.number.to_bytes(8, "big")).digest()

    @property
    def answer(self) -> Answer:
        """The round as text; the inverse of `Answer.read`."""
        return Answer(
            chain=self.chain.name,
            round=self.number,
            signature=self.signature.hex(),
            previous_signature=self.previous.hex(),
        )

    def verify(self) -> None:
        """Check the signature.

        Raises:
            BeaconError: it is not the network's signature of this round; the message says why.

        """
        with _recursion_limit_kept():
            from verifier import bls
        try:
            bls.verify(self.chain.public_key, self.signature, self.message)
        except BeaconError as error:
            what = f"the signature of drand round {self.number} of chain {self.chain.name}"
            raise BeaconError(f"{what} is {error}") from None


@contextmanager
def _recursion_limit_kept() -> Iterator[None]:
    """Undo what importing py_ecc does: its limit of 100,000 lets hostile JSON end the process."""
    limit = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
