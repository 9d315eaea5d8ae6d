"""Replay of one step: every operator again, on exactly the bytes that were committed.

Nothing that the prover wrote decides what is computed: graph, constants, batch and schedule are
derived again from the registered configuration. Whatever is wrong with the prover's bytes
becomes a check with a verdict, never an exception.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from emulator_ext import EmulatorError, NonFiniteError, OperandError
from trainer.errors import TrainerError
from trainer.executor import StepResult, execute
from trainer.ops import collective
from trainer.ops import threads as op_threads
from transcript.errors import StorageError, TranscriptError
from transcript.leaves import arena_root
from verifier.compare import CommittedSums, Comparer, compare_states
from verifier.context import RunContext, open_context
from verifier.cost import step_macs
from verifier.element_evidence import ElementEvidence
from verifier.evidence import level
from verifier.inputs import Bytes, InputOpener, StepInputs, StopError, f32_bits
from verifier.plausible import judge_numerics
from verifier.step_report import MAX_DIFFERENCES, Difference, StepReport, one_per_name
from verifier.verdict import Check, Verdict, compared, from_error, match


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    """One step to replay, as it travels to a worker.

    Attributes:
        folder: the run's folder, as the worker sees it.
        step: which.
        leaf: the step's line of the log as the structure checks saw it: the worker does not
            read the log again, so nobody can show it another one.
        registration: digest of the registration that the auditor read, hex.
        threads: threads of the emulator and of hashing; all CPUs by default.
        revealed: the folder that has the step, if not the run's own store.

    """

    folder: Path
    step: int
    leaf: bytes
    registration: str
    threads: int | None = None
    revealed: Path | None = None

    def run(self) -> StepReport:
        """Replay the step on all its ranks.

        Raises:
            RunError: the registration cannot be read.
            StorageError: the disk or object store fails.

        """
        started = time.monotonic_ns()
        context = open_context(self.folder, revealed=self.revealed)
        tally = _Tally()
        try:
            _replay(context, self, tally)
        except StopError:
            pass
        except StorageError:
            raise
        except TranscriptError as error:
            tally.checks.append(from_error("step.response", error))
        except TrainerError as error:
            tally.checks.append(
                Check(name="step.response", verdict=Verdict.INCONCLUSIVE, detail=str(error))
            )
        return tally.report(self.step, (time.monotonic_ns() - started) // 1_000_000)


def run_task(task: ReplayTask) -> StepReport:
    """Replay one task: a function that any mapper can be given."""
    return task.run()


def replay_step(folder: Path, step: int, threads: int | None = None) -> StepReport:
    """Replay one step of a run as its log stands now, on all its ranks; errors as `ReplayTask`."""
    context = open_context(folder)
    try:
        with context.log() as log:
            line = log.line(step)
    except StorageError:
        raise
    except TranscriptError as error:
        return StepReport(step=step, checks=(from_error("step.response", error),))
    task = ReplayTask(
        folder=folder,
        step=step,
        leaf=line,
        registration=context.registration_digest,
        threads=threads,
    )
    return task.run()


@dataclass(slots=True)
class _Tally:
    """What a replay has found so far."""

    checks: list[Check] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    roots: dict[str, str] = field(default_factory=dict)
    operators: int = 0
    values: int = 0
    elements: int = 0
    differing: int = 0
    macs: int = 0

    def count(self, comparer: Comparer) -> None:
        self.values += comparer.values
        self.elements += comparer.elements
        self.differing += comparer.differing
        self.differences += comparer.differences

    def report(self, step: int, milliseconds: int) -> StepReport:
        return StepReport(
            step=step,
            checks=one_per_name(self.checks),
            differences=tuple(self.differences[:MAX_DIFFERENCES]),
            roots=self.roots,
            operators=self.operators,
            values=self.values,
            elements=self.elements,
            differing=self.differing,
            macs=self.macs,
            milliseconds=milliseconds,
        )


def _replay(context: RunContext, task: ReplayTask, tally: _Tally) -> None:
    threads = op_threads.resolve(task.threads)
    opener = InputOpener(context, threads, tally.checks, tally.roots)
    inputs = opener.open(task.step, task.leaf, task.registration)
    with op_threads.use(task.threads):
        after = [_replay_rank(context, inputs, rank, tally) for rank in range(len(inputs.arenas))]
    _judge_values(tally)
    tally.checks += judge_numerics(tally.differences)
    _judge_metrics(context, inputs, tally)
    for packed in after:
        if packed is not None and not _judge_state(context, inputs, packed, tally):
            break


def _replay_rank(context: RunContext, inputs: StepInputs, rank: int, tally: _Tally) -> Bytes | None:
    """Run the graph for one rank; return the state after, packed, or None if it aborted."""
    graph, arena = context.graph, inputs.arenas[rank]
    evidence = ElementEvidence(graph, context.plan.numerics, arena, inputs.named(rank))
    comparer = Comparer(graph, arena, rank, evidence, evidence.plausible)
    try:
        result = _execute(context, inputs, rank, comparer)
    except EmulatorError as error:
        tally.checks.append(_aborted(error, context, rank))
        return None
    finally:
        tally.count(comparer)
    tally.operators += len(graph.nodes)
    tally.macs += step_macs(graph)
    return context.layouts.state.pack({n: t.numpy() for n, t in result.state.items()})


def _execute(context: RunContext, inputs: StepInputs, rank: int, sink: Comparer) -> StepResult:
    with collective.use(CommittedSums(context.graph, inputs.arenas)):
        return execute(
            context.graph,
            state=inputs.state,
            batch=inputs.batches[rank],
            constants=inputs.constants,
            scalars=inputs.scalars,
            sink=sink,
        )


def _judge_values(tally: _Tally) -> None:
    """Make one check of all committed values: the gravest of the differences decides."""
    if not tally.differing:
        detail = f"all {tally.values:,} committed values are what the operators give"
        tally.checks.append(match("step.values", detail))
        return
    known = [d for d in tally.differences if d.evidence in {"exact", "recorded"}]
    first = (known or tally.differences)[0]
    tally.checks.append(
        Check(
            name="step.values",
            verdict=Verdict.MISMATCH if known else Verdict.INCONCLUSIVE,
            detail=f"{tally.differing:,} of {tally.elements:,} committed elements are not what "
            f"their operators give, first in {first.value}, which {first.op} makes",
            evidence={
                "rank": str(first.rank),
                "value": first.value,
                "operator": first.op,
                "node": str(first.node),
                "index": str(list(first.index)),
                "committed": first.committed_bits,
                "recomputed": first.recomputed_bits,
                "numerics": first.evidence,
            },
        )
    )


def _judge_metrics(context: RunContext, inputs: StepInputs, tally: _Tally) -> None:
    """Compare the metrics in the log with those that the arena of rank 0 holds."""
    graph = context.graph
    held = {
        name: f32_bits(graph.arena.unpack(inputs.arenas[0], graph.values[value].name))[0]
        for name, value in graph.metrics.items()
    }
    tally.checks.append(
        compared(
            "step.metrics",
            "the metrics in the log are those that the arena holds",
            expected=_shown(held),
            found=_shown(inputs.leaf.metrics),
        )
    )


def _judge_state(context: RunContext, inputs: StepInputs, packed: Bytes, tally: _Tally) -> bool:
    """Compare the state that the operators give with the root that was committed."""
    root = arena_root(packed, context.layouts.state).hex()
    tally.roots["state_after"] = root
    check = compared(
        "step.state_after",
        "the state after the step has the committed root",
        expected=root,
        found=inputs.leaf.state_after,
    )
    if not check.ok:
        where = _locate_in_state(context, inputs, packed, tally)
        check = replace(
            check, detail=f"{check.detail}; first in {where}" if where else check.detail
        )
    tally.checks.append(check)
    return check.ok


def _locate_in_state(
    context: RunContext, inputs: StepInputs, recomputed: Bytes, tally: _Tally
) -> str:
    """Say where the states differ, if the one after was kept and opens the committed root."""
    layout, leaf = context.layouts.state, inputs.leaf
    kept = None
    # The roots differ whatever lies there; without it there is just nothing to look closer at.
    with contextlib.suppress(TranscriptError):
        kept = inputs.store.read_state(leaf.step + 1)
    if kept is None or arena_root(kept, layout).hex() != leaf.state_after:
        return ""
    comparer = Comparer(context.graph, kept, -1, lambda _node, _index: "exact")
    first = compare_states(comparer, layout, kept, recomputed)
    tally.count(comparer)
    return first


def _aborted(error: EmulatorError, context: RunContext, rank: int) -> Check:
    """Return the check for operators that refuse what was committed: training stops there, too."""
    known = level(context.plan.numerics) in {"exact", "recorded"}
    # indices come from the batch alone, whatever is known of the tensor cores
    stopped = isinstance(error, OperandError) or (known and isinstance(error, NonFiniteError))
    return Check(
        name="step.finite",
        verdict=Verdict.MISMATCH if stopped else Verdict.INCONCLUSIVE,
        detail=f"rank {rank} cannot be computed from what was committed: {error}",
        evidence={"code": error.code},
    )


def _shown(metrics: Mapping[str, str]) -> str:
    return " ".join(f"{name}={bits}" for name, bits in sorted(metrics.items()))
