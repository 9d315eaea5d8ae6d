"""From checks and step reports to the signed result and the report's data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property

from transcript.keys import PrivateKey, PublicKey
from transcript.model import utc_now
from transcript.predicates import AuditResult, CheckResult, SampledStep
from transcript.predicates import Beacon as StatedBeacon
from transcript.statements import Commitment, sign_statement
from verifier import bounds
from verifier.beacon import Beacon, utc
from verifier.challenge import Challenge
from verifier.commitment import OpenedCommitment
from verifier.context import RunContext
from verifier.cost import step_macs
from verifier.errors import one_line
from verifier.evidence import level
from verifier.files import PROOF_FILE
from verifier.report_data import FORMAT, Draw, ReportData, RunFacts, Signature
from verifier.sampling import random_draws, worth
from verifier.step_report import StepReport
from verifier.verdict import Check, Overall, Verdict, match, overall
from verifier.weights import parameter_count

_MAX_TEXT = 1900


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """Everything an audit found, and what follows from it.

    Attributes:
        context: the run.
        commitment: what was committed.
        challenge: how the steps were drawn.
        delta: 1 - confidence.
        pinned: whether the auditor knew the trainer's key beforehand.
        structure: the checks over the whole run.
        losses: committed losses by step, as f32 bits.
        text: the exported text, if there is one.
        reports: of all challenged steps, ascending.
        proof: whether there is a fraud proof beside the result.

    """

    context: RunContext
    commitment: OpenedCommitment
    challenge: Challenge
    delta: Decimal
    pinned: bool
    structure: tuple[Check, ...]
    losses: tuple[str, ...]
    text: bytes
    reports: tuple[StepReport, ...]
    proof: bool

    @cached_property
    def created(self) -> str:
        """When the audit was concluded."""
        return utc_now()

    @property
    def overall(self) -> Overall:
        """What all checks together mean."""
        return overall(
            [check.verdict for check in self.structure]
            + [check.verdict for report in self.reports for check in report.checks]
        )

    @property
    def draws(self) -> int:
        """How many steps were drawn at random."""
        return random_draws(len(self.context.plan.challenged), len(self.reports))

    @property
    def f_max(self) -> Decimal | None:
        """The bound; None unless everything matched.

        A prover may choose which samples it answers, so clean answers beside missing ones
        bound nothing.
        """
        if self.overall is not Overall.PASS:
            return None
        plan, between = self.context.plan, max(len(self.context.plan.challenged) - 2, 0)
        draws = worth(plan.challenged, len(self.reports), border=plan.border)
        # all drawn is all looked at, whatever the draws are worth
        left = self.draws < between
        return bounds.f_max(draws, self.delta, population=between if left else draws)

    def report_data(self, key: PublicKey) -> ReportData:
        """Return what report.json holds."""
        beacon = self.challenge.beacon
        return ReportData(
            format=FORMAT,
            run=self._facts(),
            signatures=self._signatures(key),
            overall=self.overall,
            draw=Draw(
                seed=self.challenge.seed.hex(),
                nonce=self.challenge.nonce.hex(),
                beacon_kind=beacon.kind,
                beacon_value=beacon.value.hex(),
                beacon=beacon.description,
                drand=beacon.round.answer if beacon.round else None,
                steps=tuple(report.step for report in self.reports),
                random_draws=self.draws,
                delta=str(self.delta),
                f_max=None if self.f_max is None else str(self.f_max),
            ),
            checks=self.structure,
            steps=self.reports,
            losses=self.losses,
            evidence=level(self.context.plan.numerics),
            not_checked=tuple(self.not_checked()),
            commands=self._commands(),
            text=self.context.subject.text_facts(self.text),
        )

    def sign(self, key: PrivateKey, report: bytes) -> bytes:
        """Return the audit result in its signed envelope; `report` is report.json."""
        beacon = self.challenge.beacon
        result = AuditResult(
            run_id=self.context.run_id,
            commitment=self.commitment.digest,
            weights=self.commitment.predicate.weights,
            verifier_key=key.public.key_id,
            nonce=self.challenge.nonce.hex(),
            beacon=StatedBeacon(
                source=one_line(beacon.description, _MAX_TEXT), value=beacon.value.hex()
            ),
            seed=self.challenge.seed.hex(),
            structure=tuple(_stated(check) for check in self.structure),
            steps=tuple(
                SampledStep(
                    step=report.step,
                    checks=tuple(_stated(check) for check in report.checks),
                    roots=dict(report.roots),
                )
                for report in self.reports
            ),
            verdict=self.overall.value,
            sampled=len(self.reports),
            total=self.context.plan.steps,
            delta=str(self.delta),
            # Without a bound, the share of bad steps is still at most all of them.
            f_max=str(self.f_max if self.f_max is not None else Decimal(1)),
            coverage=self._coverage(),
            not_checked=tuple(one_line(text, _MAX_TEXT) for text in self.not_checked()),
            report=hashlib.sha256(report).hexdigest(),
            created=self.created,
        )
        return sign_statement(result, key)[0]

    def not_checked(self) -> Iterator[str]:
        """Yield what this audit does not show, one sentence each."""
        steps, recorded = self.context.plan.steps, len(self.context.plan.challenged)
        left = recorded - len(self.reports)
        if left > 0:
            yield (
                f"The arithmetic of {left:,} recorded steps that were not drawn, beyond what the "
                "sample says of them."
            )
        if steps > recorded:
            yield (
                f"The arithmetic of {steps - recorded:,} steps that the registered policy did not "
                "record: they cannot be replayed, were never among those drawn, and the bound "
                "does not speak of them; neither does anything show that "
                f"{self.context.plan.words.unrecorded}."
            )
        yield self.challenge.caveat()
        if not self.pinned:
            yield (
                "Who the trainer is: its key was taken from the registration itself, so this shows "
                "that one party signed everything, and not which."
            )
        if self.context.registration.attempt > 1:
            yield (
                f"What became of {self.context.registration.attempt - 1} earlier attempts that the "
                "trainer says it made at this run."
            )
        yield from self.context.plan.words.limits

    def _facts(self) -> RunFacts:
        plan = self.context.plan
        return RunFacts(
            run_id=self.context.run_id,
            name=plan.name or self.context.run_id,
            steps=plan.steps,
            recorded=len(plan.challenged),
            ranks=plan.world,
            parameters=parameter_count(plan.model),
            source=one_line(plan.source),
            device=plan.numerics.device,
            arch=plan.numerics.arch,
            profile=plan.numerics.profile,
            macs_per_step=step_macs(self.context.graph) * plan.world,
        )

    def _signatures(self, key: PublicKey) -> tuple[Signature, ...]:
        registration, commitment = self.context.registration, self.commitment.predicate
        trainer = self.context.key.key_id
        return (
            Signature(
                what="Registration, before the first step",
                key_id=trainer,
                time=registration.created,
                digest=self.context.registration_digest,
                pinned=self.pinned,
            ),
            Signature(
                what="Commitment, after the last step",
                key_id=trainer,
                time=commitment.created,
                digest=self.commitment.digest,
                pinned=self.pinned,
            ),
            Signature(
                what="This audit's result",
                key_id=key.key_id,
                time=self.created,
                digest="",
                pinned=True,
            ),
        )

    def _coverage(self) -> dict[str, str | int]:
        """Return what was computed again; multiply-accumulates as strings: they pass 2^53."""
        plan = self.context.plan
        total = step_macs(self.context.graph) * plan.world * plan.steps
        return {
            "macs": str(sum(report.macs for report in self.reports)),
            "macs_total": str(total),
            "operators": sum(report.operators for report in self.reports),
            "values": sum(report.values for report in self.reports),
            "elements": sum(report.elements for report in self.reports),
            "elements_differing": sum(report.differing for report in self.reports),
            "random_draws": self.draws,
            "recorded_steps": len(self.context.plan.challenged),
        }

    def _commands(self) -> tuple[str, ...]:
        beacon = self.challenge.beacon
        given = f" --beacon-hex {beacon.value.hex()}" if beacon.value else ""
        again = f"--steps {len(self.reports)} --nonce {self.challenge.nonce.hex()}{given}"
        return (
            "bitwitness verify audit-result.dsse.json",
            *((f"bitwitness verify {PROOF_FILE}",) if self.proof else ()),
            "jq -r .payload audit-result.dsse.json | base64 -d | jq -r .predicate.report",
            "sha256sum report.json",
            f"bitwitness audit {self.context.plan.words.folder} {again}",
        )


def check_beacon(beacon: Beacon, commitment: Commitment) -> list[Check]:
    """Compare the time of a drand round with the commitment's own; no check without one."""
    if beacon.time is None:
        return []
    due = utc(beacon.time)
    detail = f"the beacon was due at {due}, the commitment says {commitment.created}"
    if beacon.time > _seconds(commitment.created):
        return [match("challenge.beacon", detail)]
    return [
        Check(
            name="challenge.beacon",
            verdict=Verdict.INCONCLUSIVE,
            detail=f"{detail}: it could be known when the run was committed",
        )
    ]


def _seconds(time: str) -> float:
    """Return seconds since 1970; a time that is none is later than everything."""
    try:
        moment = datetime.strptime(time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return float("inf")
    return moment.timestamp()


def _stated(check: Check) -> CheckResult:
    return CheckResult(
        name=check.name, verdict=check.verdict.value, detail=one_line(check.detail, _MAX_TEXT)
    )
