"""Replay of one generated token, on exactly the bytes that were committed.

As `verifier.replay` for training steps: graph, batch and tables are derived again, the state
before, the arena and the parameters are opened against their roots, every operator runs
again, and the first difference is located.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emulator_ext import EmulatorError, NonFiniteError
from trainer.errors import TrainerError
from trainer.executor import Sink
from trainer.generate.config import GenerationConfig
from trainer.generate.decode import run_step, tensors
from trainer.generate.step import batch_of, derive_decode_graph, state_declared
from trainer.graph import Node, StepGraph, Value
from trainer.model import parameter_specs
from trainer.ops import threads as op_threads
from trainer.plan import layouts_of
from transcript.errors import StorageError, TranscriptError
from transcript.keys import PublicKey
from transcript.layout import Layout
from transcript.leaves import arena_root
from transcript.log import LogReader, StepLeaf
from transcript.run import RunFolder
from transcript.statements import Registration, open_registration
from transcript.store import Layouts, RunStore
from verifier.compare import Comparer
from verifier.context import MAX_LAYERS, MAX_ROPE_ENTRIES
from verifier.cost import step_macs
from verifier.errors import BudgetError, RunError
from verifier.evidence import ElementEvidence, level
from verifier.inputs import StopError
from verifier.plausible import judge_numerics
from verifier.step_report import StepReport
from verifier.verdict import Check, Verdict, compared, from_error, from_stored, match

Bytes = NDArray[np.uint8]
Arrays = Mapping[str, NDArray[np.generic]]

# What a replay holds at once: state before and after, the arena, the constants, twice over.
_COPIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationContext:
    """One generation, as registered; graph and layouts are derived from its configuration."""

    folder: RunFolder
    registration: Registration
    registration_digest: str
    key: PublicKey
    signature: Check
    config: GenerationConfig
    graph: StepGraph
    layouts: Layouts

    @property
    def run_id(self) -> str:
        """The generation's name in every leaf and tree head."""
        return self.registration.run_id

    def store(self) -> RunStore:
        """Open the store; TranscriptError if it is missing or another than was derived."""
        return RunStore.open(self.folder.store, self.layouts)


def open_generation(root: Path, trusted: tuple[PublicKey, ...] = ()) -> GenerationContext:
    """Read a generation's registration and derive what follows from it.

    Raises:
        RunError: there is none that can be read and whose signature is good.
        BudgetError: the configuration is too large to derive anything from.
        StorageError: the disk fails.

    """
    folder = RunFolder(Path(root))
    file = str(folder.registration)
    try:
        signed = open_registration(folder.read(folder.registration), trusted, file=file)
        config = GenerationConfig.from_document(signed.predicate.config, name=f"{file}: config")
        check_size(config)
        graph = derive_decode_graph(config)
    except StorageError:
        raise
    except (TranscriptError, TrainerError) as error:
        raise RunError(str(error)) from None
    key = signed.signers[0]
    whose = "a key that the auditor trusts" if trusted else "the key that it names"
    detail = f"the registration is signed by {whose}"
    return GenerationContext(
        folder=folder,
        registration=signed.predicate,
        registration_digest=signed.digest,
        key=key,
        signature=match("registration.signature", detail, key=key.key_id),
        config=config,
        graph=graph,
        layouts=layouts_of(graph),
    )


def check_size(config: GenerationConfig) -> None:
    """Refuse a configuration that nothing should be derived from, by its numbers alone.

    Raises:
        BudgetError: too many layers, too long a context, or more memory than there is.

    """
    model = config.model
    _limit("layers", model.layers, MAX_LAYERS)
    _limit("entries of RoPE tables", model.context * model.head_size // 2, MAX_ROPE_ENTRIES)
    shapes = [shape for _, shape in state_declared(config).values()]
    shapes += [spec.shape for spec in parameter_specs(model)]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    _limit("bytes", _COPIES * 4 * sum(map(prod, shapes)), memory)


def _limit(what: str, needed: int, limit: int) -> None:
    if needed > limit:
        raise BudgetError(f"the generation needs {needed:,} {what}, the limit is {limit:,}")


def replay_generation_step(
    context: GenerationContext, step: int, threads: int | None = None
) -> StepReport:
    """Replay one recorded step.

    Raises:
        StorageError: the disk or object store fails.

    """
    started = time.monotonic_ns()
    replay = _Replay(context=context, step=step, workers=op_threads.resolve(threads))
    try:
        with op_threads.use(threads):
            replay.run()
    except StopError:
        pass
    except StorageError:
        raise
    except TranscriptError as error:
        replay.checks.append(from_error("step.response", error))
    return replay.report((time.monotonic_ns() - started) // 1_000_000)


@dataclass(slots=True, kw_only=True)
class _Replay:
    """One step under replay, and what was found."""

    context: GenerationContext
    step: int
    workers: int
    checks: list[Check] = field(default_factory=list)
    roots: dict[str, str] = field(default_factory=dict)
    comparer: Comparer | None = None

    def run(self) -> None:
        """Open, execute, compare; StopError when nothing further can be said."""
        context, layouts = self.context, self.context.layouts
        leaf = self._leaf()
        store = context.store()
        state = self._opened(
            "step.state_before",
            (layouts.state, leaf.state_before),
            lambda: store.read_state(self.step),
        )
        arena = self._opened(
            "step.arena",
            (layouts.arena, leaf.arenas[0]),
            lambda: store.read_arena(0, self.step),
        )
        constants = self._opened(
            "step.constants",
            (layouts.constants, context.registration.constants_root),
            store.read_constants,
        )
        inputs = layouts.state.unpack_all(state), layouts.constants.unpack_all(constants)
        after = self._execute(arena, *inputs)
        self._judge_values()
        self._judge_state(store, leaf, layouts.state.pack(after))

    def report(self, milliseconds: int) -> StepReport:
        """Return what was found."""
        comparer = self.comparer
        return StepReport(
            step=self.step,
            checks=tuple(self.checks),
            differences=tuple(comparer.differences) if comparer else (),
            roots=self.roots,
            operators=len(self.context.graph.nodes) if comparer else 0,
            values=comparer.values if comparer else 0,
            elements=comparer.elements if comparer else 0,
            differing=comparer.differing if comparer else 0,
            macs=step_macs(self.context.graph) if comparer else 0,
            milliseconds=milliseconds,
        )

    def _require(self, check: Check) -> None:
        self.checks.append(check)
        if not check.ok:
            raise StopError

    def _leaf(self) -> StepLeaf:
        context = self.context
        with LogReader(
            context.folder.log, context.run_id, max_leaves=context.config.steps + 1
        ) as log:
            leaf = log.leaf(self.step)
        layout = context.graph.layout("batch")
        self._require(
            compared(
                "step.leaf",
                "the log's entry names this registration and graph, and one rank",
                expected=f"{context.registration_digest} {context.graph.digest} 1",
                found=f"{leaf.registration} {leaf.graph_digest} {len(leaf.arenas)}",
            )
        )
        self._require(
            compared(
                "step.batch",
                "the step feeds the token at its own position",
                expected=arena_root(layout.pack(batch_of(self.step)), layout).hex(),
                found=leaf.batches[0],
            )
        )
        return leaf

    def _opened(self, name: str, committed: tuple[Layout, str], read: Callable[[], Bytes]) -> Bytes:
        """Read stored bytes and compare their root with the committed one."""
        layout, root = committed
        try:
            data = read()
        except StorageError:
            raise
        except TranscriptError as error:
            self.checks.append(from_stored(name, error))
            raise StopError from None
        found = self.roots[name.removeprefix("step.")] = arena_root(
            data, layout, self.workers
        ).hex()
        detail = "the stored bytes have the committed root"
        self._require(compared(name, detail, expected=root, found=found))
        return data

    def _execute(self, arena: Bytes, state: Arrays, constants: Arrays) -> Arrays:
        """Run the graph on the committed values; return the state after."""
        graph = self.context.graph

        def run(sink: Sink) -> dict[str, NDArray[np.generic]]:
            after = run_step(graph, tensors(state), tensors(constants), self.step, sink)
            return {name: tensor.numpy() for name, tensor in after.items()}

        def committed(value: Value, _tensor: Tensor) -> Tensor:
            return torch.from_numpy(graph.arena.unpack(arena, value.name))

        @cache
        def names() -> Arrays:
            """All values that operators read, by name: inputs, and what the state becomes."""
            made = zip(graph.state_after, run(committed).values(), strict=True)
            return {**state, **constants, **{graph.values[i].name: array for i, array in made}}

        @cache
        def elements() -> ElementEvidence:
            numerics = self.context.config.numerics
            return ElementEvidence(graph, numerics, arena, names())  # type: ignore[arg-type]  # GEMMs read f32

        def evidence(node: Node, index: tuple[int, ...]) -> str:
            return elements()(node, index)

        def plausible(node: Node, index: tuple[int, ...], old: float, new: float) -> bool:
            return elements().plausible(node, index, old, new)

        self.comparer = Comparer(graph, arena, 0, evidence, plausible)
        try:
            return run(self.comparer)
        except EmulatorError as error:
            self.checks.append(self._aborted(error))
            raise StopError from None

    def _aborted(self, error: EmulatorError) -> Check:
        """Return the check for operators that refuse what was committed."""
        known = level(self.context.config.numerics) in {"exact", "recorded"}
        stopped = known and isinstance(error, NonFiniteError)
        return Check(
            name="step.finite",
            verdict=Verdict.MISMATCH if stopped else Verdict.INCONCLUSIVE,
            detail=f"the step cannot be computed from what was committed: {error}",
            evidence={"code": error.code},
        )

    def _judge_values(self) -> None:
        """Make one check of all committed values: the gravest of the differences decides."""
        comparer = self.comparer
        if comparer is None or not comparer.differing:
            values = comparer.values if comparer else 0
            detail = f"all {values:,} committed values are what the operators give"
            self.checks.append(match("step.values", detail))
            return
        known = [d for d in comparer.differences if d.evidence in {"exact", "recorded"}]
        first = (known or comparer.differences)[0]
        self.checks.append(
            Check(
                name="step.values",
                verdict=Verdict.MISMATCH if known else Verdict.INCONCLUSIVE,
                detail=first.words(self.step),
                evidence={"value": first.value, "operator": first.op, "numerics": first.evidence},
            )
        )
        self.checks += judge_numerics(comparer.differences)

    def _judge_state(self, store: RunStore, leaf: StepLeaf, packed: Bytes) -> None:
        """Compare the state that the operators give with the root that was committed."""
        layout = self.context.layouts.state
        root = self.roots["state_after"] = arena_root(packed, layout, self.workers).hex()
        detail = "the state after the step has the committed root"
        check = compared("step.state_after", detail, expected=root, found=leaf.state_after)
        if not check.ok:
            where = _first_difference(store, leaf, layout, packed)
            check = Check(
                name=check.name,
                verdict=check.verdict,
                detail=f"{check.detail}{where}",
                evidence=check.evidence,
            )
        self.checks.append(check)


def _first_difference(store: RunStore, leaf: StepLeaf, layout: Layout, recomputed: Bytes) -> str:
    """Say where the kept state after differs, if it is there and opens the committed root."""
    # The roots differ whatever lies there; without it there is just nothing to look closer at.
    with contextlib.suppress(TranscriptError):
        kept = store.read_state(leaf.step + 1)
        if arena_root(kept, layout).hex() != leaf.state_after:
            return ""
        for entry in layout.entries:
            a, b = layout.unpack(kept, entry.name), layout.unpack(recomputed, entry.name)
            bits = np.dtype(f"u{a.itemsize}")
            different = np.argwhere(a.view(bits) != b.view(bits))
            if len(different):
                index = tuple(int(i) for i in different[0])
                return f"; first in {entry.name}{list(index)}: {a[index]}, recomputed {b[index]}"
    return ""
