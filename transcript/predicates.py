"""What the statements about a run say: registration, declared fault, commitment, audit result.

Numbers that are not whole are decimal strings, digests are 64 hexadecimal digits of SHA-256, times
are RFC 3339 in UTC to the second. Each predicate also says what its statement is about: subjects
follow from the fields, so that the two cannot disagree. docs/formats/statements.md is the contract.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from transcript import canonical
from transcript.layout import ALGORITHM
from transcript.model import (
    MAX_WORLD,
    Count,
    Decimal,
    Digest,
    Digests,
    Document,
    Name,
    Positive,
    RunId,
    Text,
    Timestamp,
)

PREFIX: Final = "https://bitwitness.dev/"
CheckVerdict = Literal[
    "MATCH", "MISMATCH", "NON_RESPONSE", "INVALID_COMMITMENT", "DECLARED_FAULT", "INCONCLUSIVE"
]
OverallVerdict = Literal["PASS", "FAIL", "INCOMPLETE"]
RecordPolicy = Annotated[str, Field(pattern=r"^(all|on_challenge|every:[1-9][0-9]{0,8})$")]
Subjects = tuple[tuple[str, str], ...]


class Dataset(Document):
    """The token store: the root over its tokens and their number."""

    root: Digest
    tokens: Positive


class LogHead(Document):
    """The log's root and size when the run ended."""

    root: Digest
    size: Positive


class WeightFile(Document):
    """An exported file, by its path inside the run's folder."""

    path: Name
    sha256: Digest

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if any(part in {"", ".", ".."} for part in self.path.split("/")):
            raise ValueError("a path with empty or climbing parts")
        return self


Weights = Annotated[tuple[WeightFile, ...], Field(strict=False, max_length=10_000)]
Faults = Annotated[tuple[Digest, ...], Field(strict=False, max_length=10_000)]


class Registration(Document):
    """What a run will do, signed before its step 0.

    `probes` has what each rank's device answered before that (device-probe.md), or nothing.
    """

    PREDICATE: ClassVar[str] = PREFIX + "registration/v2"

    run_id: RunId
    attempt: Positive
    previous: Digest | None = None
    created: Timestamp
    config: dict[str, Any]
    dataset: Dataset
    graph_digest: Digest
    constants_root: Digest
    initial_state_root: Digest
    arch: Name
    profile: Name
    world: Annotated[int, Field(ge=1, le=MAX_WORLD)]
    steps: Positive
    record: RecordPolicy
    code_version: Text
    public_key: Annotated[str, Field(max_length=2000)]
    probes: Digests = ()
    digest_algorithm: Literal["sha256-rfc9162-tile64-v1"] = ALGORITHM

    @model_validator(mode="after")
    def _canonical_config(self) -> Self:
        canonical.dumps(self.config)  # raises a ValueError for a float
        return self

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if (self.attempt == 1) != (self.previous is None):
            raise ValueError("every attempt but the first names the one before")
        if len(self.probes) not in {0, self.world}:
            raise ValueError("either every rank's device was probed, or none")
        return self

    @property
    def kind(self) -> Literal["training", "generation"]:
        """What the run is; the configuration of a generation says so."""
        return "generation" if self.config.get("kind") == "generation" else "training"

    def subjects(self) -> Subjects:
        """Name the configuration, the graph and the dataset."""
        return (
            ("config", sha256(canonical.dumps(self.config)).hexdigest()),
            ("graph.json", self.graph_digest),
            ("dataset", self.dataset.root),
        )


class DeclaredFault(Document):
    """A logged step that its own trainer found wrong, and says so before anybody asks.

    `rank` is whose arena, or null where it is not known or all share it; `operator` is empty
    where it is not known. `leaf` is the RFC 9162 hash of the log's entry.
    """

    PREDICATE: ClassVar[str] = PREFIX + "declared-fault/v1"

    run_id: RunId
    registration: Digest
    step: Count
    rank: Annotated[int, Field(ge=0, lt=MAX_WORLD)] | None = None
    operator: Text = ""
    leaf: Digest
    detail: Text
    evidence: Annotated[dict[Name, Text], Field(max_length=64)]
    created: Timestamp

    def subjects(self) -> Subjects:
        """Name the registration and the log's entry."""
        return (("registration", self.registration), ("leaf", self.leaf))


class Commitment(Document):
    """What a run did, signed at its end.

    `probes` as in the registration, but after the last step; `faults` has the digest of every
    fault that was declared until then: one that is declared later was not bound in time.
    """

    PREDICATE: ClassVar[str] = PREFIX + "commitment/v2"

    run_id: RunId
    registration: Digest
    created: Timestamp
    steps: Positive
    log: LogHead
    final_state_root: Digest
    weights: Weights
    probes: Digests = ()
    faults: Faults = ()

    @model_validator(mode="after")
    def _one_leaf_per_step(self) -> Self:
        if self.log.size != self.steps:
            raise ValueError("the log has one leaf per step")
        if list(self.faults) != sorted(set(self.faults)):
            raise ValueError("declared faults are not ascending")
        return self

    def subjects(self) -> Subjects:
        """Name the registration, the log and every exported file."""
        files = tuple((item.path, item.sha256) for item in self.weights)
        return (("registration", self.registration), ("log", self.log.root), *files)


class Beacon(Document):
    """The public randomness that the challenge was drawn from; `value` is empty without one."""

    source: Text
    value: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,512}$")]


class CheckResult(Document):
    """One check by its stable name."""

    name: Name
    verdict: CheckVerdict
    detail: Text = ""


class SampledStep(Document):
    """A replayed step: its checks, and the roots that the replay came to, by name."""

    step: Count
    checks: Annotated[tuple[CheckResult, ...], Field(strict=False, min_length=1, max_length=4096)]
    roots: Annotated[dict[Name, Digest], Field(max_length=2 * MAX_WORLD)]


class AuditResult(Document):
    """What a verifier found, bound to its own nonce.

    `sampled` of `total` steps were replayed; with confidence 1 - `delta`, the share of bad steps is
    at most `f_max`.
    """

    PREDICATE: ClassVar[str] = PREFIX + "audit-result/v1"

    run_id: RunId
    commitment: Digest
    weights: Weights
    verifier_key: Digest
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{16,128}$")]
    beacon: Beacon
    seed: Digest
    structure: Annotated[tuple[CheckResult, ...], Field(strict=False, max_length=4096)]
    steps: Annotated[tuple[SampledStep, ...], Field(strict=False, max_length=100_000)]
    verdict: OverallVerdict
    sampled: Count
    total: Positive
    delta: Decimal
    f_max: Decimal
    coverage: Annotated[dict[Name, str | int], Field(max_length=256)]
    not_checked: Annotated[tuple[Text, ...], Field(strict=False, max_length=256)]
    report: Digest
    created: Timestamp

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.sampled != len(self.steps) or self.sampled > self.total:
            raise ValueError("sampled is not the number of steps listed, or is beyond total")
        if [item.step for item in self.steps] != sorted({item.step for item in self.steps}):
            raise ValueError("sampled steps are not ascending")
        if self.verdict != overall(self.verdicts()):
            raise ValueError("the verdict does not follow from the checks")
        return self

    def verdicts(self) -> list[CheckVerdict]:
        """List the verdict of every check."""
        checks = [*self.structure, *(check for item in self.steps for check in item.checks)]
        return [check.verdict for check in checks]

    def subjects(self) -> Subjects:
        """Name the commitment, the report's data and the files that were exported."""
        files = tuple((item.path, item.sha256) for item in self.weights)
        return (("commitment", self.commitment), ("report.json", self.report), *files)


def overall(verdicts: list[CheckVerdict]) -> OverallVerdict:
    """Combine verdicts: FAIL on proof of a lie, PASS if all is checked and matches."""
    if {"MISMATCH", "INVALID_COMMITMENT"} & set(verdicts):
        return "FAIL"
    return "PASS" if set(verdicts) == {"MATCH"} else "INCOMPLETE"


Predicate = Registration | DeclaredFault | Commitment | AuditResult
