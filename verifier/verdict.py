"""Verdicts: what one check found, and what all of them together mean.

| verdict | meaning |
|---|---|
| MATCH | derived again, and equal to the bit |
| MISMATCH | derived again, and different: the run is not what it claims to be |
| NON_RESPONSE | something that was promised is not there |
| INVALID_COMMITMENT | a signature, a proof or a format is wrong: the claim itself is broken |
| DECLARED_FAULT | the trainer itself declared this item faulty, with evidence |
| INCONCLUSIVE | the replay left the recorded numerics, or a check could not be completed |

Overall: FAIL if anything is MISMATCH or INVALID_COMMITMENT; otherwise INCOMPLETE if anything
is not MATCH, or if nothing was checked; otherwise PASS. A deleted chunk is thus INCOMPLETE
and never PASS: a prover who withholds what would convict it gains nothing by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from transcript.errors import LimitError, MalformedError, MissingError, TranscriptError


class Verdict(StrEnum):
    """What one check found."""

    MATCH = "MATCH"
    MISMATCH = "MISMATCH"
    NON_RESPONSE = "NON_RESPONSE"
    INVALID_COMMITMENT = "INVALID_COMMITMENT"
    DECLARED_FAULT = "DECLARED_FAULT"
    INCONCLUSIVE = "INCONCLUSIVE"


class Overall(StrEnum):
    """What an audit found."""

    PASS = "PASS"  # noqa: S105  # a verdict, not a password
    FAIL = "FAIL"
    INCOMPLETE = "INCOMPLETE"


FAILING = frozenset({Verdict.MISMATCH, Verdict.INVALID_COMMITMENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its stable name, verdict, a sentence, and the evidence as strings."""

    name: str
    verdict: Verdict
    detail: str
    evidence: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether this is a MATCH."""
        return self.verdict is Verdict.MATCH


def match(name: str, detail: str, **evidence: str) -> Check:
    """Return a MATCH."""
    return Check(name=name, verdict=Verdict.MATCH, detail=detail, evidence=evidence)


def compared(name: str, detail: str, *, expected: str, found: str) -> Check:
    """Return MATCH if both strings are equal, else MISMATCH with both as evidence."""
    if expected == found:
        return match(name, detail, value=found)
    return Check(
        name=name,
        verdict=Verdict.MISMATCH,
        detail=f"not so: {detail}",
        evidence={"expected": expected, "found": found},
    )


def from_error(name: str, error: TranscriptError) -> Check:
    """Turn a fault of the prover's bytes into a check: missing, or an invalid commitment."""
    missing = isinstance(error, MissingError)
    return Check(
        name=name,
        verdict=Verdict.NON_RESPONSE if missing else Verdict.INVALID_COMMITMENT,
        detail=str(error),
        evidence={"code": error.code, **error.evidence},
    )


def from_stored(name: str, error: TranscriptError) -> Check:
    """As `from_error` for what the store holds: there, undecodable bytes are just other bytes."""
    if not isinstance(error, MalformedError | LimitError):
        return from_error(name, error)
    return Check(
        name=name,
        verdict=Verdict.MISMATCH,
        detail=f"the stored bytes are not those that were committed: {error}",
        evidence={"code": error.code, **error.evidence},
    )


def overall(verdicts: Iterable[Verdict]) -> Overall:
    """Combine verdicts by the rule in the module's docstring."""
    found = set(verdicts)
    if found & FAILING:
        return Overall.FAIL
    return Overall.PASS if found == {Verdict.MATCH} else Overall.INCOMPLETE


def exit_code(result: Overall) -> int:
    """Return the command line's exit code: 0 verified, 1 not verified."""
    return 0 if result is Overall.PASS else 1
