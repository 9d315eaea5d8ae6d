"""Faults that the trainer declared itself, before it could know which steps are drawn.

A declaration counts if the commitment lists its digest: the challenge is drawn from the
commitment. What differs at that step and rank is then DECLARED_FAULT instead of MISMATCH. It
excuses arithmetic alone: not the schedule, nor bytes that are missing or have another root. And
an audit of a run with a declared fault is never a PASS, whether the step was drawn or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from transcript.errors import MissingError, ProofError, StorageError, TranscriptError
from transcript.log import LogReader
from transcript.statements import DeclaredFault, open_statement
from verifier.commitment import OpenedCommitment
from verifier.context import RunContext
from verifier.step_report import MAX_DIFFERENCES, Difference, StepReport
from verifier.verdict import FAILING, Check, Verdict, from_error

NAME = "faults.declared"
EXCUSABLE = frozenset(
    {"step.values", "step.numerics", "step.finite", "step.metrics", "step.state_after"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredFaults:
    """The declarations that count, by step, and what is to be said of them all."""

    world: int
    checks: tuple[Check, ...] = ()
    by_step: Mapping[int, tuple[DeclaredFault, ...]] = field(default_factory=dict)

    def excuse(self, report: StepReport) -> StepReport:
        """Return a step's report with what was declared faulty said to be just that."""
        if report.step not in self.by_step:
            return report
        checks = tuple(
            self._excused(check) if self._covers(check, report) else check
            for check in report.checks
        )
        return replace(report, checks=checks)

    def unexcused(self, report: StepReport) -> tuple[Difference, ...]:
        """Return the differences of a report that can still convict."""
        if report.step not in self.by_step:
            return report.differences
        return tuple(d for d in report.differences if not self._rank_declared(d.rank, report.step))

    def _covers(self, check: Check, report: StepReport) -> bool:
        failed = check.verdict in FAILING or check.verdict is Verdict.INCONCLUSIVE
        if check.name not in EXCUSABLE or not failed:
            return False
        if self._rank_declared(-1, report.step):
            return True
        if check.name == "step.metrics":
            return self._rank_declared(0, report.step)
        # a report that is cut might hide another rank's difference
        whole = 0 < len(report.differences) < MAX_DIFFERENCES
        values = check.name in {"step.values", "step.numerics"} and whole
        return values and not self.unexcused(report)

    def _rank_declared(self, rank: int, step: int) -> bool:
        """Whether a rank is declared faulty at a step; -1 asks for what all ranks share."""
        ranks = {fault.rank for fault in self.by_step[step]}
        return None in ranks or rank in ranks or (self.world == 1 and bool(ranks))

    def _excused(self, check: Check) -> Check:
        detail = f"as the trainer declared before the challenge: {check.detail}"
        return replace(check, verdict=Verdict.DECLARED_FAULT, detail=detail)


def declared_faults(
    context: RunContext, commitment: OpenedCommitment, log: LogReader | None
) -> DeclaredFaults:
    """Read the faults that a commitment lists.

    Raises:
        StorageError: the disk fails.

    """
    world = context.plan.world
    by_step: dict[int, tuple[DeclaredFault, ...]] = {}
    checks: list[Check] = []
    for digest in commitment.predicate.faults:
        try:
            fault = _open(context, digest, log)
        except StorageError:
            raise
        except TranscriptError as error:
            checks.append(from_error(NAME, error))
        else:
            by_step[fault.step] = (*by_step.get(fault.step, ()), fault)
    checks += _said(by_step, context.plan.steps)
    return DeclaredFaults(world=world, checks=tuple(checks), by_step=by_step)


def _open(context: RunContext, digest: str, log: LogReader | None) -> DeclaredFault:
    path = context.folder.fault(digest)
    file = str(path)
    signed = open_statement(context.folder.read(path), DeclaredFault, [context.key], file=file)
    fault = signed.predicate
    if signed.digest != digest:
        raise ProofError(f"is statement {signed.digest[:16]}, another than was listed", file=file)
    if (fault.run_id, fault.registration) != (context.run_id, context.registration_digest):
        raise ProofError("is about another run", file=file)
    if log is None or fault.step >= len(log):
        raise MissingError(f"is about step {fault.step}, which the log does not have", file=file)
    if log.tree.leaf(fault.step).hex() != fault.leaf:
        raise ProofError(f"is about another step {fault.step} than was logged", file=file)
    return fault


def _said(by_step: Mapping[int, tuple[DeclaredFault, ...]], steps: int) -> Iterator[Check]:
    if not by_step:
        return
    first = by_step[min(by_step)][0]
    what = first.operator or "an operator that is not known"
    detail = (
        f"{len(by_step):,} of {steps:,} steps were declared faulty by the trainer itself before "
        f"the challenge, the first of them step {first.step} ({what})"
    )
    evidence = {"steps": " ".join(map(str, sorted(by_step)))[:1000]}
    yield Check(name=NAME, verdict=Verdict.DECLARED_FAULT, detail=detail, evidence=evidence)
