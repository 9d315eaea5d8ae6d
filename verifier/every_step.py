"""Checks over all steps of the log: one pass over the leaves, one verdict per kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trainer.errors import DataError
from transcript.errors import StorageError, TranscriptError
from transcript.leaves import arena_root
from transcript.log import LogReader, StepLeaf
from verifier.context import RunContext
from verifier.inputs import f32_bits
from verifier.verdict import Check, Verdict, from_error, match


@dataclass(slots=True)
class EveryStep:
    """One kind of comparison over many steps: how often it fails, and where it does first."""

    name: str
    detail: str
    steps: int = 0
    bad: int = 0
    first: dict[str, str] = field(default_factory=dict)

    def see(self, step: int, *, expected: str, found: str) -> None:
        """Take note of one step."""
        self.steps += 1
        if expected == found:
            return
        self.bad += 1
        if not self.first:
            self.first = {"step": str(step), "expected": expected, "found": found}

    def check(self) -> Check:
        """Return the check over all steps seen."""
        if not self.steps:
            detail = f"no step to check it on: {self.detail}"
            return Check(name=self.name, verdict=Verdict.INCONCLUSIVE, detail=detail)
        if not self.bad:
            return match(self.name, f"{self.detail}, at all {self.steps:,} steps")
        return Check(
            name=self.name,
            verdict=Verdict.MISMATCH,
            detail=f"not so at {self.bad:,} of {self.steps:,} steps, first at step "
            f"{self.first['step']}: {self.detail}",
            evidence=self.first,
        )


class StepScan:
    """Walks the log once and keeps what the report needs of it.

    Args:
        context: the run.
        log: its log, open.

    """

    def __init__(self, context: RunContext, log: LogReader) -> None:
        self._context, self._log = context, log
        self.losses: list[str] = []
        self.last: StepLeaf | None = None
        self._unparsed: Check | None = None
        words = context.plan.words
        self._binding = EveryStep(
            "log.leaf", f"entries name this {words.noun}, registration and graph"
        )
        self._chain = EveryStep("state.chain", "each step begins with the state of the one before")
        self._scalars = EveryStep("scalars.schedule", words.scalars)
        self._batches = EveryStep("batch.schedule", words.batches)
        self._no_batches: Check | None = None

    def run(self) -> list[Check]:
        """Return the checks over all steps."""
        for leaf in self._leaves():
            self._bind(leaf)
            self._follow(leaf)
            self._schedule(leaf)
        return [
            self._unparsed or self._binding.check(),
            self._chain.check(),
            self._scalars.check(),
            self._no_batches or self._batches.check(),
        ]

    def _leaves(self) -> Iterator[StepLeaf]:
        """Yield the leaves in order, up to the first that is none."""
        for step in range(len(self._log)):
            try:
                yield self._log.leaf(step)
            except StorageError:
                raise
            except TranscriptError as error:
                self._unparsed = from_error("log.leaf", error)
                return

    def _bind(self, leaf: StepLeaf) -> None:
        context = self._context
        metrics = " ".join(sorted(context.graph.metrics))
        world = context.plan.world
        self._binding.see(
            leaf.step,
            expected=f"{context.registration_digest} {context.graph.digest} {world} {metrics}",
            found=f"{leaf.registration} {leaf.graph_digest} {len(leaf.arenas)} "
            f"{' '.join(sorted(leaf.metrics))}",
        )
        if "loss" in context.graph.metrics:
            self.losses.append(leaf.metrics.get("loss", ""))

    def _follow(self, leaf: StepLeaf) -> None:
        expected = self.last.state_after if self.last else self._context.registration
        root = expected if isinstance(expected, str) else expected.initial_state_root
        self._chain.see(leaf.step, expected=root, found=leaf.state_before)
        self.last = leaf

    def _schedule(self, leaf: StepLeaf) -> None:
        scalars, world = self._context.subject.scalars(leaf.step), self._context.plan.world
        self._scalars.see(
            leaf.step, expected=" ".join(f32_bits(scalars)), found=" ".join(leaf.scalars)
        )
        if self._no_batches:
            return
        try:
            expected = " ".join(self._batch_root(leaf.step, r) for r in range(world))
        except StorageError:
            raise
        except TranscriptError as error:
            self._no_batches = from_error("batch.schedule", error)
            return
        except DataError as error:
            self._no_batches = Check(
                name="batch.schedule", verdict=Verdict.INVALID_COMMITMENT, detail=str(error)
            )
            return
        self._batches.see(leaf.step, expected=expected, found=" ".join(leaf.batches))

    def _batch_root(self, step: int, rank: int) -> str:
        layout = self._context.graph.layout("batch")
        return arena_root(layout.pack(self._context.batch(step, rank)), layout).hex()
