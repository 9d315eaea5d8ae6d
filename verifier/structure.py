"""The cheap checks, over the whole run: everything but the arithmetic inside the steps.

A run is a training run or a generated text; what each derives is its subject's matter.

Each has a stable name and its own verdict, and one that fails does not keep the others from
being made. docs/audit.md lists them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from trainer.dataset import read_dataset
from trainer.errors import TrainerError
from transcript.errors import MissingError, StorageError, TranscriptError
from transcript.leaves import arena_root
from transcript.log import LogReader
from transcript.log_reader import checkpoint_sizes
from transcript.run import GRAPH_LIMIT
from transcript.statements import Commitment
from verifier.commitment import OpenedCommitment
from verifier.context import RunContext
from verifier.every_step import StepScan
from verifier.evidence import level
from verifier.subject import Group
from verifier.verdict import Check, Verdict, compared, from_error, from_stored, match


@dataclass(slots=True)
class Structure:
    """What the checks over the whole run found.

    Attributes:
        checks: all of them, in order.
        losses: f32 bits by step; empty if the steps have no loss.
        text: the exported text, if there is one.

    """

    checks: list[Check] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    text: bytes = b""


def check_structure(
    context: RunContext, commitment: OpenedCommitment, log: LogReader | None, threads: int
) -> Structure:
    """Make all checks that need no replay.

    Args:
        context: the run, as registered.
        commitment: what was committed at its end.
        log: its log; None if it could not be opened.
        threads: for hashing.

    Raises:
        StorageError: the disk or object store fails: no verdict follows from that.

    """
    found = Structure()
    checker = _Checker(context=context, commitment=commitment.predicate, threads=threads)
    found.checks += [context.signature, commitment.signature]
    for group in checker.groups():
        found.checks += guarded(group.name, group.function, group.fault)
    if log is not None:
        scan = StepScan(context, log)
        found.checks += guarded("log.root", lambda: checker.log(log))
        found.checks += guarded("log.leaf", scan.run)
        found.checks += guarded("state.final", lambda: checker.ends(scan))
        found.losses = scan.losses
    ends = context.subject.ends(context, commitment.predicate)
    for group in ends.groups():
        found.checks += guarded(group.name, group.function, group.fault)
    found.text = ends.text
    return found


def guarded(
    name: str,
    function: Callable[[], Iterable[Check]],
    fault: Callable[[str, TranscriptError], Check] = from_error,
) -> list[Check]:
    """Run checks; a fault in the prover's bytes that stops them becomes the check `name`.

    What was checked before the fault stays.
    """
    checks: list[Check] = []
    try:
        checks.extend(function())
    except StorageError:
        raise
    except TranscriptError as error:
        checks.append(fault(name, error))
    except TrainerError as error:
        checks.append(Check(name=name, verdict=Verdict.INVALID_COMMITMENT, detail=str(error)))
    return checks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checker:
    context: RunContext
    commitment: Commitment
    threads: int

    def groups(self) -> list[Group]:
        """List the checks that need neither log nor exported files: claims, then stored bytes."""
        claims = [
            Group(name="registration.config", function=self._config),
            Group(name="commitment.registration", function=self._commitment),
            Group(name="numerics.evidence", function=self._numerics),
            Group(name="graph.digest", function=self._graph),
            Group(name="graph.file", function=self._graph_file),
        ]
        stored = [
            ("constants.root", self._constants),
            ("initial_state", self._initial_state),
            ("dataset.root", self._dataset),
            ("store.plan", self._store_plan),
            ("constants.stored", self._stored_constants),
            ("state.stored", self._final_state),
        ]
        return claims + [Group(name=n, function=f, fault=from_stored) for n, f in stored]

    def _config(self) -> Iterable[Check]:
        registration, plan = self.context.registration, self.context.plan
        yield compared(
            "registration.config",
            "arch, profile, ranks, steps and recording are the configuration's",
            expected=f"{plan.numerics.arch} {plan.numerics.profile} {plan.world} {plan.steps} "
            f"{plan.record.stated}",
            found=f"{registration.arch} {registration.profile} {registration.world} "
            f"{registration.steps} {registration.record}",
        )

    def _commitment(self) -> Iterable[Check]:
        context, commitment = self.context, self.commitment
        yield compared(
            "commitment.registration",
            f"the commitment names this {context.plan.words.noun}, its registration and its "
            "number of steps",
            expected=f"{context.run_id} {context.registration_digest} {context.plan.steps}",
            found=f"{commitment.run_id} {commitment.registration} {commitment.steps}",
        )

    def _numerics(self) -> Iterable[Check]:
        numerics = self.context.plan.numerics
        known = level(numerics)
        what = f"profile {numerics.profile} on {numerics.arch}: {known}"
        if known == "unknown":
            # no such instruction: nobody can have trained so, and every replay would be undecided
            yield Check(name="numerics.evidence", verdict=Verdict.INVALID_COMMITMENT, detail=what)
        else:
            yield match("numerics.evidence", f"the arithmetic is known ({what})", level=known)

    def _graph(self) -> Iterable[Check]:
        yield compared(
            "graph.digest",
            "the registered step graph is the one that the configuration gives",
            expected=self.context.graph.digest,
            found=self.context.registration.graph_digest,
        )

    def _graph_file(self) -> Iterable[Check]:
        folder = self.context.folder
        yield compared(
            "graph.file",
            "graph.json is that graph",
            expected=self.context.graph.digest,
            found=hashlib.sha256(folder.read(folder.graph, GRAPH_LIMIT)).hexdigest(),
        )

    def _constants(self) -> Iterable[Check]:
        """Put the tables that the configuration gives in the place of the stored ones."""
        context, layout = self.context, self.context.layouts.constants
        given = layout.unpack_all(context.store().read_constants()) if context.given else {}
        packed = layout.pack({**given, **context.tables})
        yield compared(
            "constants.root",
            "the registered tables are those that the configuration gives",
            expected=arena_root(packed, layout, self.threads).hex(),
            found=context.registration.constants_root,
        )

    def _stored_constants(self) -> Iterable[Check]:
        stored = self.context.store().read_constants()
        yield compared(
            "constants.stored",
            f"the stored {self.context.plan.words.constants} are the registered ones",
            expected=self.context.registration.constants_root,
            found=arena_root(stored, self.context.layouts.constants, self.threads).hex(),
        )

    def _initial_state(self) -> Iterable[Check]:
        context, layout = self.context, self.context.layouts.state
        packed = layout.pack(context.subject.initial_state(context.tokens))
        yield compared(
            "initial_state",
            context.plan.words.start,
            expected=arena_root(packed, layout, self.threads).hex(),
            found=context.registration.initial_state_root,
        )

    def _dataset(self) -> Iterable[Check]:
        dataset = self.context.registration.dataset
        found = read_dataset(self.context.folder, dataset.tokens, self.threads)
        yield compared(
            "dataset.root",
            f"the {dataset.tokens:,} {self.context.plan.words.data} have the registered root",
            expected=dataset.root,
            found=found.root,
        )

    def _store_plan(self) -> Iterable[Check]:
        """Everything that the policy promises has its place in the store."""
        plan, store = self.context.plan, self.context.store()
        promised = {*plan.record.recorded(plan.steps)}
        states = {*plan.record.kept(plan.steps)}
        missing = [
            f"{what} {min(gone)}"
            for what, gone in (
                ("step", promised - {*store.recorded}),
                ("state", states - {*store.states}),
                ("rank", {*range(plan.world)} - {*range(store.world)}),
            )
            if gone
        ]
        if missing:
            raise MissingError(f"not recorded as registered: {', '.join(missing)}")
        yield match("store.plan", f"{len(promised):,} steps were recorded as registered")

    def log(self, log: LogReader) -> Iterable[Check]:
        """Check size, root and every signed tree head."""
        head = self.commitment.log
        if len(log) < head.size:
            raise MissingError(f"the log has {len(log)} entries, {head.size} were committed")
        yield compared(
            "log.size",
            "the log has one entry per step",
            expected=str(self.context.plan.steps),
            found=str(len(log)),
        )
        yield compared(
            "log.root",
            "the log's entries have the committed root",
            expected=head.root,
            found=log.tree.root().hex(),
        )
        yield from guarded("log.checkpoints", lambda: self._checkpoints(log))

    def _checkpoints(self, log: LogReader) -> Iterable[Check]:
        steps, every = self.context.plan.steps, self.context.plan.record.checkpoint_every
        due = {*range(every, steps + 1, every), steps}
        missing = due - {*checkpoint_sizes(log.folder)}
        if missing:
            raise MissingError(f"no signed tree head over {min(missing)} steps")
        heads = log.verify_checkpoints(self.context.key)
        what = f"{len(heads):,} signed tree heads are prefixes"
        what = "the one signed tree head is a prefix" if len(heads) == 1 else what
        yield match("log.checkpoints", f"{what} of the final log")

    def ends(self, scan: StepScan) -> Iterable[Check]:
        """Check that the log ends where the commitment says."""
        yield compared(
            "state.final",
            "the last step ends with the committed final state",
            expected=self.commitment.final_state_root,
            found=scan.last.state_after if scan.last else "",
        )

    def _final_state(self) -> Iterable[Check]:
        packed = self.context.store().read_state(self.context.plan.steps)
        yield compared(
            "state.stored",
            "the stored final state has the committed root",
            expected=self.commitment.final_state_root,
            found=arena_root(packed, self.context.layouts.state, self.threads).hex(),
        )
