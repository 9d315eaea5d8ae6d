"""What report.json holds: everything that report.html shows, as plain data.

The audit result names this file's SHA-256, so the data is as signed as the verdict. There are
no floats in it: losses are f32 bit patterns and shares are decimal strings. Format:
docs/formats/audit-result.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from verifier.drand import Answer
from verifier.errors import ResultError
from verifier.step_report import StepReport
from verifier.verdict import Check, Overall

FORMAT: Final = "bitwitness/audit-report/v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run as it was registered. `macs_per_step` counts the GEMMs of all ranks."""

    run_id: str
    name: str
    steps: int
    recorded: int
    ranks: int
    parameters: int
    source: str
    device: str
    arch: str
    profile: str
    macs_per_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Who signed what, and when they say they did. `pinned`: the auditor knew the key before."""

    what: str
    key_id: str
    time: str
    digest: str
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How the steps were chosen and what that proves.

    `drand` is the round that the beacon is, if it is one; `f_max` is there if all steps matched.
    """

    seed: str
    nonce: str
    beacon_kind: str
    beacon_value: str
    beacon: str
    drand: Answer | None
    steps: tuple[int, ...]
    random_draws: int
    delta: str
    f_max: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """A generated text, and where it comes from.

    Attributes:
        run: the training run whose weights were used, as registered.
        commitment: the digest of that run's commitment, hex.
        cache: how keys and values are kept.
        batch: how many texts of one length there are, one after the other.
        prompt: how many bytes of each are the prompt.
        text: the bytes as they were exported, hex; empty if they could not be read.

    """

    run: str
    commitment: str
    cache: str
    batch: Annotated[int, Field(ge=1)]
    prompt: Annotated[int, Field(ge=1)]
    text: Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """One audit.

    Attributes:
        losses: the committed loss of each step as f32 bits, 8 hexadecimal digits; empty where
            the log has no such step; none of a generation.
        evidence: how well the registered numerics are known: recorded, modelled or unknown.
        not_checked: what this audit does not show, one sentence each.
        commands: how to make this audit again.
        text: what was generated; None if the audit is about a training run.

    """

    format: Literal["bitwitness/audit-report/v2"]
    run: RunFacts
    signatures: tuple[Signature, ...]
    overall: Overall
    draw: Draw
    checks: tuple[Check, ...]
    steps: tuple[StepReport, ...]
    losses: tuple[str, ...]
    evidence: str
    not_checked: tuple[str, ...]
    commands: tuple[str, ...]
    text: TextFacts | None = None


_ADAPTER = TypeAdapter(ReportData)


def to_json(data: ReportData) -> bytes:
    """Serialise; the inverse of `from_json`."""
    absent = {"text"} if data.text is None else None
    return _ADAPTER.dump_json(data, exclude=absent) + b"\n"


def from_json(text: bytes, *, file: str = "") -> ReportData:
    """Parse and validate.

    Raises:
        ResultError: not of this format; the message names the first field at fault.

    """
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise ResultError(f"not an audit report: {where}: {first['msg']}", file=file) from None
