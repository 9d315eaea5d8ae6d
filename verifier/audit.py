"""An audit from beginning to end: structure, challenge, replay, signed result, report.

Who runs the replays is the caller's business: `Audit.run` takes any mapper, and what it maps is
a plain function over picklable tasks. Nothing here knows of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Self

from trainer.ops import threads as op_threads
from transcript.errors import MissingError, StorageError, TranscriptError
from transcript.files import write_atomic
from transcript.keys import PrivateKey, PublicKey
from transcript.log import LogReader
from verifier.attempts import check_attempts
from verifier.beacon import NO_BEACON, Beacon
from verifier.challenge import Challenge, check_nonce, fresh_nonce
from verifier.challenge_file import ChallengeRequest, dump_request, find_answer
from verifier.commitment import OpenedCommitment, open_commitment
from verifier.conclusion import Conclusion, check_beacon
from verifier.context import RunContext, open_context
from verifier.cost import check_budget, step_macs
from verifier.declared import DeclaredFaults, declared_faults
from verifier.device_probe import check_probes
from verifier.errors import OptionError, ProofFileError
from verifier.files import CHALLENGE_FILE, PROOF_FILE, REPORT_JSON, RESULT_FILE, VERIFIER_KEY_FILE
from verifier.prove import make_proof, provable
from verifier.replay import ReplayTask, run_task
from verifier.report import write_report
from verifier.report_data import to_json
from verifier.sampling import sample_steps
from verifier.step_report import StepReport
from verifier.structure import Structure, check_structure, guarded
from verifier.verdict import Check, Verdict, from_error

MAX_SAMPLES = 4096

Mapper = Callable[[Callable[[ReplayTask], StepReport], Iterable[ReplayTask]], Iterable[StepReport]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """How an audit is made.

    Attributes:
        steps: how many steps to replay, first and last included; all if there are no more.
        beacon: public randomness that is younger than the commitment.
        nonce: the verifier's own, 8 to 64 bytes; fresh by default.
        delta: 1 - confidence of the bound.
        threads: threads of one replay and of hashing; all CPUs by default.
        budget: greatest number of multiply-accumulates to replay; None for no limit.
        trusted: keys one of which must be the registered one; any key by default.
        run: of a generated text, the training run whose weights it used; by default the one in
            whose folder it lies.
        revealed: of a run that records on challenge, the folder of the trainer's answer; by
            default the one in the run's own folder that is named after the seed.

    """

    steps: int = 8
    beacon: Beacon = NO_BEACON
    nonce: bytes = field(default_factory=fresh_nonce)
    delta: Decimal = Decimal("0.01")
    threads: int | None = None
    budget: int | None = None
    trusted: tuple[PublicKey, ...] = ()
    run: Path | None = None
    revealed: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_SAMPLES:
            raise OptionError(f"between 1 and {MAX_SAMPLES} steps are sampled, not {self.steps}")
        if not 0 < self.delta < 1:
            raise OptionError(f"delta lies between 0 and 1, {self.delta} does not")
        check_nonce(self.nonce)


class Audit:
    """One audit of one run or generation; make one with `open`, use it as a context manager.

    The order is structure (optional to call: `conclude` makes it if need be), run, conclude.
    """

    def __init__(
        self, context: RunContext, commitment: OpenedCommitment, options: AuditOptions
    ) -> None:
        self.context, self.commitment, self.options = context, commitment, options
        self._log: LogReader | None = None
        self._log_fault: Check | None = None
        try:
            self._log = context.log()
        except StorageError:
            raise
        except TranscriptError as error:
            self._log_fault = from_error("log.leaf", error)

    @classmethod
    def open(cls, folder: Path, options: AuditOptions | None = None) -> Self:
        """Open a run for audit; its cost is weighed before anything else is read.

        Raises:
            RunError: no registration or commitment that can be read.
            OptionError: `options.run` is given for a training run, or an answer is given, and there
                is none, or the run recorded its steps.
            BudgetError: the audit would cost more than the budget, or the run is too large.
            StorageError: the disk or object store fails.

        """
        options = options or AuditOptions()
        context = open_context(folder, options.trusted, run=options.run)
        check_budget(
            macs_per_step=step_macs(context.graph) * context.plan.world,
            steps=min(options.steps, len(context.plan.challenged)),
            budget=options.budget,
        )
        _check_answer(context, options.revealed)
        audit = cls(context, open_commitment(context.folder, context.key), options)
        audit.context = replace(context, revealed=options.revealed or audit._find_answer())
        return audit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._log is not None:
            self._log.__exit__()

    @cached_property
    def challenge(self) -> Challenge:
        """Where the seed came from."""
        return Challenge(
            commitment_digest=bytes.fromhex(self.commitment.digest),
            beacon=self.options.beacon,
            nonce=self.options.nonce,
        )

    @property
    def open_challenge(self) -> bool:
        """Whether the trainer still has to reveal the challenged steps."""
        return self._on_challenge and self.context.revealed is None

    @property
    def _on_challenge(self) -> bool:
        return self.context.plan.record.policy == "on_challenge"

    def _find_answer(self) -> Path | None:
        """Return the answer to this challenge that lies in the run's folder, if there is one."""
        if not self._on_challenge:
            return None
        return find_answer(self.context.folder.root, self.challenge.seed)

    @cached_property
    def _structure(self) -> Structure:
        threads = op_threads.resolve(self.options.threads)
        found = check_structure(self.context, self.commitment, self._log, threads)
        found.checks += [self._log_fault] if self._log_fault else []
        found.checks += check_beacon(self.options.beacon, self.commitment.predicate)
        found.checks += self._faults.checks
        if self.context.plan.tracked:
            found.checks += check_probes(self.context, self.commitment.predicate)
            found.checks += guarded("registration.attempts", lambda: check_attempts(self.context))
        return found

    @cached_property
    def _faults(self) -> DeclaredFaults:
        return declared_faults(self.context, self.commitment, self._log)

    def structure(self) -> list[Check]:
        """Make the checks over the whole run; see `check_structure`."""
        return list(self._structure.checks)

    def samples(self) -> list[int]:
        """Return the challenged steps, ascending."""
        plan = self.context.plan
        return sample_steps(
            self.challenge.seed, plan.challenged, self.options.steps, border=plan.border
        )

    def tasks(self) -> list[ReplayTask]:
        """Return what is to be replayed: the samples that the log has an entry for.

        As long as the trainer has not revealed them, there is nothing to be replayed.
        """
        if self.open_challenge:
            return []
        return [self._task(step, line) for step, line in self._lines().items()]

    def run(
        self,
        mapper: Mapper = map,
        progress: Callable[[StepReport], None] | None = None,
    ) -> list[StepReport]:
        """Replay all samples.

        Args:
            mapper: like the builtin `map`; the order of its results does not matter.
            progress: called with each report as it arrives.

        Raises:
            StorageError, RunError: as `ReplayTask.run`; and whatever the mapper raises.

        """
        reports = self._unanswered()
        for replayed in mapper(run_task, self.tasks()):
            report = self._faults.excuse(replayed)
            reports.append(report)
            if progress is not None:
                progress(report)
        return sorted(reports, key=lambda report: report.step)

    def conclude(self, reports: Iterable[StepReport], out: Path, key: PrivateKey) -> Path:
        """Sign the result and write it, with its report and copies of what it refers to.

        Args:
            reports: of all samples.
            out: folder, made if need be.
            key: the verifier's.

        Returns:
            OUT/audit-result.dsse.json. If a matrix product was false, OUT/fraud-proof.json too.

        Raises:
            OptionError: the reports are not those of the samples.
            StorageError: the folder cannot be written.

        """
        ordered = sorted(reports, key=lambda report: report.step)
        if [report.step for report in ordered] != self.samples():
            raise OptionError("the step reports are not those of the challenged steps")
        proof = self._proof(ordered)
        conclusion = Conclusion(
            context=self.context,
            commitment=self.commitment,
            challenge=self.challenge,
            delta=self.options.delta,
            pinned=bool(self.options.trusted),
            structure=tuple(self._structure.checks),
            losses=tuple(self._structure.losses),
            text=self._structure.text,
            reports=tuple(ordered),
            proof=proof is not None,
        )
        data = to_json(conclusion.report_data(key.public))
        result = out / RESULT_FILE
        self._copy_statements(out)
        write_atomic(out / VERIFIER_KEY_FILE, key.public.pem().encode())
        write_atomic(out / REPORT_JSON, data)
        if self._on_challenge:
            write_atomic(out / CHALLENGE_FILE, dump_request(self._request()))
        if proof is not None:
            write_atomic(out / PROOF_FILE, proof)
        write_atomic(result, conclusion.sign(key, data))
        write_report(out)
        return result

    def _lines(self) -> dict[int, bytes]:
        """Return the log's lines of the samples, as far as there are such lines."""
        if self._log is None:
            return {}
        return {step: self._log.line(step) for step in self.samples() if step < len(self._log)}

    def _task(self, step: int, line: bytes) -> ReplayTask:
        return ReplayTask(
            folder=self.context.folder.root,
            step=step,
            leaf=line,
            registration=self.context.registration_digest,
            threads=self.options.threads,
            revealed=self.context.revealed,
        )

    def _request(self) -> ChallengeRequest:
        return ChallengeRequest.of(
            self.challenge, self.context.run_id, self.options.steps, self.samples()
        )

    def _unanswered(self) -> list[StepReport]:
        """Report the samples that nobody revealed, or that the log has no entry for."""
        if self.open_challenge:
            return [StepReport(step=step, checks=(_not_revealed(),)) for step in self.samples()]
        answered = self._lines()
        missing = [step for step in self.samples() if step not in answered]
        return [StepReport(step=step, checks=(_no_leaf(step),)) for step in missing]

    def _proof(self, reports: Iterable[StepReport]) -> bytes | None:
        """Make a fraud proof of the first difference that can be proved, if there is one."""
        for report in reports:
            for difference in filter(provable, self._faults.unexcused(report)):
                # a run that lacks a tree head, say, or that commits to another cache than its
                # products read, convicts nobody without the run itself
                with suppress(TranscriptError, ProofFileError):
                    return make_proof(
                        self.context.folder.root, report.step, difference, self.context.revealed
                    )
        return None

    def _copy_statements(self, out: Path) -> None:
        folder = self.context.folder
        for path in (folder.registration, folder.commitment):
            # Copies are a convenience: their digests stand in the result.
            with suppress(TranscriptError):
                write_atomic(out / path.name, folder.read(path))


def _check_answer(context: RunContext, revealed: Path | None) -> None:
    """Refuse an answer that is none, or that nobody asked for."""
    if revealed is None:
        return
    if context.plan.record.policy != "on_challenge":
        raise OptionError("the run recorded its steps: there is nothing to be revealed")
    if not revealed.is_dir():
        raise OptionError(f"{revealed}: no such folder of revealed steps")


def _not_revealed() -> Check:
    detail = f"recorded on challenge and not revealed yet: {CHALLENGE_FILE} asks for it"
    return Check(name="step.response", verdict=Verdict.NON_RESPONSE, detail=detail)


def _no_leaf(step: int) -> Check:
    return from_error("step.response", MissingError(f"the log has no entry for step {step}"))
