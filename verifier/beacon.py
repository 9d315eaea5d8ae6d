"""Public randomness that did not exist yet when the run was committed.

A beacon is a value that neither the trainer nor the auditor could choose: a drand round, or
any file both sides accept (a photograph of a lottery draw would do). A drand round is checked
to be what the network signed (drand.py), and its time follows from its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from verifier.drand import DEFAULT, MAX_ROUND, QUICKNET, Round
from verifier.errors import BeaconError

MAX_BEACON_BYTES = 512
MAX_FILE_BYTES = 4096
_HEX = re.compile(r"(?:[0-9a-f]{2})+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """A beacon value and where it came from.

    Attributes:
        value: what enters the seed; empty if there is no beacon.
        kind: its form.
        description: one line for the report.
        time: when a drand round was due, seconds since 1970; else None.
        round: the drand round, verified; else None.

    """

    value: bytes
    kind: Literal["none", "drand", "file", "hex"]
    description: str
    time: int | None = None
    round: Round | None = None


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
        BeaconError: unreadable, empty, too long, or JSON that is no drand answer, or one that
            the network did not sign.

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
    answer = _round(document, path)
    randomness = document.get("randomness", answer.randomness.hex())
    if _unhex(randomness, f"{path}: randomness") != answer.randomness:
        raise BeaconError("the randomness is not SHA-256 of the signature", file=str(path))
    try:
        answer.verify()
    except BeaconError as error:
        raise BeaconError(str(error), file=str(path)) from None
    return Beacon(
        value=answer.randomness,
        kind="drand",
        description=(
            f"drand round {answer.number} of chain {answer.chain.name}, due {utc(answer.time)}, "
            "signed by the network"
        ),
        time=answer.time,
        round=answer,
    )


def _round(document: Mapping[str, Any], path: Path) -> Round:
    """Return the round that an answer claims to be; answers do not name their chain."""
    number = document.get("round")
    if type(number) is not int or not 1 <= number <= MAX_ROUND:
        raise BeaconError("a drand answer has a round of 1 or more", file=str(path))
    chained = "previous_signature" in document
    what = f"{path}: previous_signature"
    return Round(
        chain=DEFAULT if chained else QUICKNET,
        number=number,
        signature=_unhex(document.get("signature"), f"{path}: signature"),
        previous=_unhex(document["previous_signature"], what) if chained else b"",
    )


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
