"""What one step is replayed on: the committed bytes, opened against the roots of its leaf.

Every array is read once into memory and hashed there; what is hashed is what is replayed. The
batch and the scalars are derived again, and only compared with what the leaf says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transcript.errors import StorageError, TranscriptError
from transcript.layout import Layout
from transcript.leaves import arena_root
from transcript.log import StepLeaf
from transcript.store import RunStore
from verifier.context import RunContext
from verifier.subject import Arrays
from verifier.verdict import Check, compared, from_stored

Bytes = NDArray[np.uint8]


class StopError(Exception):
    """A check failed that the rest of a replay cannot do without; it is among the checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What one step is replayed on; arenas and batches by rank."""

    leaf: StepLeaf
    store: RunStore
    state: dict[str, Tensor]
    constants: dict[str, Tensor]
    arenas: list[Bytes]
    batches: list[dict[str, Tensor]]
    scalars: Tensor

    def named(self, rank: int) -> dict[str, Tensor]:
        """Return everything that the step of a rank reads, by name."""
        batch = self.batches[rank]
        return {**self.state, **batch, **self.constants, "scalars": self.scalars}


@dataclass(frozen=True, slots=True)
class InputOpener:
    """Opens one step's inputs; comparisons go to `checks`, recomputed roots to `roots`."""

    context: RunContext
    threads: int
    checks: list[Check]
    roots: dict[str, str]

    def open(self, step: int, line: bytes, registration: str) -> StepInputs:
        """Open everything that step `step` reads, whose line of the log is `line`.

        Raises:
            StopError: something does not open its root, or is not what the schedule dictates.
            TranscriptError: something is missing or malformed.

        """
        context = self.context
        leaf = self._leaf(step, line, registration)
        store = context.steps_store()
        layouts = context.layouts
        state = self._opened(
            "step.state_before",
            "state_before",
            (layouts.state, leaf.state_before),
            lambda: store.read_state(step),
        )
        arenas = [
            self._opened(
                "step.arena",
                f"arenas/{rank}",
                (layouts.arena, root),
                partial(store.read_arena, rank, step),
            )
            for rank, root in enumerate(leaf.arenas)
        ]
        return StepInputs(
            leaf=leaf,
            store=store,
            state=tensors(layouts.state.unpack_all(state)),
            constants=self._constants(store),
            arenas=arenas,
            batches=[self._batch(leaf, rank) for rank in range(len(arenas))],
            scalars=self._scalars(leaf),
        )

    def _require(self, check: Check) -> None:
        self.checks.append(check)
        if not check.ok:
            raise StopError

    def _leaf(self, step: int, line: bytes, registration: str) -> StepLeaf:
        """Parse the leaf and check that it is of this run, graph and world."""
        context = self.context
        self._require(
            compared(
                "step.registration",
                "the registration is the one that the audit began with",
                expected=registration,
                found=context.registration_digest,
            )
        )
        leaf = StepLeaf.parse(line, step=step, run_id=context.run_id)
        expected = f"{registration} {context.graph.digest} {context.plan.world}"
        self._require(
            compared(
                "step.leaf",
                "the log's entry names this registration, this graph and every rank",
                expected=expected,
                found=f"{leaf.registration} {leaf.graph_digest} {len(leaf.arenas)}",
            )
        )
        return leaf

    def _opened(
        self, name: str, what: str, committed: tuple[Layout, str], read: Callable[[], Bytes]
    ) -> Bytes:
        """Read stored bytes and compare their root with the committed one, `what` of the leaf."""
        layout, root = committed
        try:
            data = read()
        except StorageError:
            raise
        except TranscriptError as error:
            self.checks.append(from_stored(name, error))
            raise StopError from None
        found = self.roots[what] = arena_root(data, layout, self.threads).hex()
        detail = f"the stored bytes have the committed root ({what})"
        self._require(compared(name, detail, expected=root, found=found))
        return data

    def _batch(self, leaf: StepLeaf, rank: int) -> dict[str, Tensor]:
        """Derive a rank's batch from the token store and compare it with the committed root."""
        context = self.context
        arrays = context.batch(leaf.step, rank)
        layout = context.graph.layout("batch")
        root = self.roots[f"batches/{rank}"] = arena_root(layout.pack(arrays), layout).hex()
        self._require(
            compared(
                "step.batch",
                context.plan.words.batch.format(rank=rank),
                expected=root,
                found=leaf.batches[rank],
            )
        )
        return tensors(arrays)

    def _constants(self, store: RunStore) -> dict[str, Tensor]:
        """Return the derived tables, beside constants of the prover's if there are any."""
        context, layout = self.context, self.context.layouts.constants
        if not context.given:
            return tensors(context.tables)
        packed = self._opened(
            "step.constants",
            "constants",
            (layout, context.registration.constants_root),
            store.read_constants,
        )
        return tensors({**layout.unpack_all(packed), **context.tables})

    def _scalars(self, leaf: StepLeaf) -> Tensor:
        """Compare the committed scalars with the schedule, and return the schedule's."""
        scalars = self.context.subject.scalars(leaf.step)
        self.checks.append(
            compared(
                "step.scalars",
                self.context.plan.words.scalars,
                expected=" ".join(f32_bits(scalars)),
                found=" ".join(leaf.scalars),
            )
        )
        return torch.from_numpy(scalars)


def tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Wrap arrays by name, without a copy."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def f32_bits(array: NDArray[np.float32]) -> list[str]:
    """Return the bits of each element, 8 hexadecimal digits, in C order."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    return [f"{int(bits):08x}" for bits in flat]
