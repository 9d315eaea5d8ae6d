"""Public randomness that did not exist yet when the run was committed.

A beacon is a value that neither the trainer nor the auditor could choose: a drand round, or
any file both sides accept (a photograph of a lottery draw would do). Two drand chains are
known here, with their genesis and period as published by the League of Entropy, so that a
round's time follows from its number. Their BLS signatures are not verified: anyone who
re-checks an audit fetches the named round, whose randomness is SHA-256 of its signature.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from verifier.errors import BeaconError

MAX_BEACON_BYTES = 512
MAX_FILE_BYTES = 4096
_MAX_ROUND = 1 << 40
_HEX = re.compile(r"(?:[0-9a-f]{2})+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """A beacon value and where it came from.

    Attributes:
        value: what enters the seed; empty if there is no beacon.
        kind: its form.
        description: one line for the report.
        time: when a drand round of a known chain was due, seconds since 1970; else None.

    """

    value: bytes
    kind: Literal["none", "drand", "file", "hex"]
    description: str
    time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    name: str
    genesis: int
    period: int
    signature_bytes: int


# Told apart by what their answers look like: G1 or G2 signatures, chained or not.
_DEFAULT = _Chain(name="default", genesis=1_595_431_050, period=30, signature_bytes=96)
_QUICKNET = _Chain(name="quicknet", genesis=1_692_803_367, period=3, signature_bytes=48)

NO_BEACON = Beacon(value=b"", kind="none", description="no beacon")


def beacon_from_hex(text: str) -> Beacon:
    """Read a beacon given on the command line as lower-case hex.

    Raises:
        BeaconError: not hex, empty, or longer than MAX_BEACON_BYTES.

    """
    value = _unhex(text, "the beacon")
    return Beacon(value=value, kind="hex", description=f"{len(value)} bytes given as hex")


def beacon_from_file(path: Path) -> Beacon:
    """Read a beacon from a file: a drand answer if it starts like JSON, else its raw bytes.

    Raises:
        BeaconError: unreadable, empty, too long, or JSON that is no consistent drand answer.

    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BeaconError(error.strerror or str(error), file=str(path)) from None
    if len(data) <= MAX_FILE_BYTES and data.lstrip()[:1] == b"{":
        return _drand(_parse(data, path), path)
    if not 1 <= len(data) <= MAX_BEACON_BYTES:
        raise BeaconError(f"a beacon has 1 to {MAX_BEACON_BYTES} bytes", file=str(path))
    return Beacon(value=data, kind="file", description=f"{len(data)} bytes of file {path.name}")


def _parse(data: bytes, path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise BeaconError("starts like JSON and is not", file=str(path)) from None
    return document  # type: ignore[no-any-return]  # it starts with a brace, so it is a dict


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        msg = "repeated key"
        raise ValueError(msg)
    return dict(pairs)


def _drand(document: Mapping[str, Any], path: Path) -> Beacon:
    round_number, randomness = document.get("round"), document.get("randomness")
    if type(round_number) is not int or not 1 <= round_number < _MAX_ROUND:
        raise BeaconError("a drand answer has a round of 1 or more", file=str(path))
    value = _unhex(randomness, f"{path}: randomness")
    signature = _unhex(document.get("signature"), f"{path}: signature")
    if hashlib.sha256(signature).digest() != value:
        raise BeaconError("the randomness is not SHA-256 of the signature", file=str(path))
    chain = _chain(document, signature)
    if chain is None:
        return Beacon(
            value=value, kind="drand", description=f"drand round {round_number} of an unknown chain"
        )
    time = chain.genesis + (round_number - 1) * chain.period
    return Beacon(
        value=value,
        kind="drand",
        description=f"drand round {round_number} of chain {chain.name}, due {utc(time)}",
        time=time,
    )


def _chain(document: Mapping[str, Any], signature: bytes) -> _Chain | None:
    chain = _DEFAULT if "previous_signature" in document else _QUICKNET
    return chain if len(signature) == chain.signature_bytes else None


def _unhex(text: object, what: str) -> bytes:
    if not isinstance(text, str) or not _HEX.fullmatch(text):
        raise BeaconError(f"{what} is not lower-case hex")
    if len(text) > 2 * MAX_BEACON_BYTES:
        raise BeaconError(f"{what} has more than {MAX_BEACON_BYTES} bytes")
    return bytes.fromhex(text)


def utc(time: int) -> str:
    """Return seconds since 1970 as a UTC time in ISO 8601, to the second."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=time)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
