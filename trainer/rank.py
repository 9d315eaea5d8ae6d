"""One rank of a run: executes steps, packs and hashes its arena, writes what is recorded.

Before it says anything of a step it computes a few blocks of it again (`trainer.recheck`). If
one differs, the step is executed again from its state; if that one is right the run goes on.

A rank holds the whole state (data parallelism) and its own batches. It signs nothing and
appends nothing: what it returns per step is a few digests, which the committer joins into
the step's leaf.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.data import batch_at
from trainer.dataset import read_dataset
from trainer.device_probe import answers, open_device
from trainer.engine import Executed, Snapshot, open_engine
from trainer.errors import SilentFaultError
from trainer.faults import first_difference
from trainer.graph import StepGraph
from trainer.ops import threads as op_threads
from trainer.plan import kept_states, layouts_of, open_for_writing
from trainer.recheck import Recheck, WrongElement
from trainer.recorder import Recorder
from trainer.trace import derive_graph
from transcript.errors import MalformedError, MissingError
from transcript.leaves import arena_root
from transcript.log import StepLeaf
from transcript.run import RunFolder
from transcript.statements import read_registration
from transcript.store import RunStore

Arrays = Mapping[str, NDArray[np.int32]]
Scalars = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """What one rank says about one step. Digests are hex; f32 values are their bits, in hex.

    Times and `fault` are not committed: `record_seconds` is packing, hashing and writing,
    `recheck_seconds` the re-check, `fault` what it found and a second execution put right.
    `differs` says where a step that was logged before differs from what it gives now. The last
    step's `probe` is what the device answered after it (`trainer.device_probe`).
    """

    rank: int
    step: int
    state_before: str
    state_after: str
    batch: str
    scalars: tuple[str, ...]
    arena: str
    metrics: Mapping[str, str]
    compute_seconds: float
    record_seconds: float
    recheck_seconds: float = 0.0
    fault: str = ""
    differs: Mapping[str, str] = field(default_factory=dict)
    probe: bytes = b""

    def metric(self, name: str) -> float:
        """Return one metric as a number, for people to look at."""
        return float(np.uint32(int(self.metrics[name], 16)).view(np.float32))


class RankTrainer:
    """Trains one rank; `run_step` is called once per step, in order.

    Args:
        config: the run.
        folder: a folder that `trainer.prepare.prepare_run` has prepared.
        rank: from 0.
        threads: threads of the emulated device and of host hashing; all CPUs by default.

    Raises:
        trainer.kernels.errors.EnvironmentMissingError: `device: cuda` without CuPy or a GPU.
        transcript.errors.TranscriptError: the folder is not a prepared run.

    """

    def __init__(
        self, config: RunConfig, folder: RunFolder, *, rank: int = 0, threads: int | None = None
    ) -> None:
        self.config, self.rank = config, rank
        self._workers = op_threads.resolve(threads)
        self.graph: StepGraph = derive_graph(config)
        self._layouts = layouts_of(self.graph)
        self._batch_layout = self.graph.layout("batch")
        self._folder = folder
        self._recorder = Recorder(
            open_for_writing(config, folder, self._layouts), rank=rank, threads=self._workers
        )
        constants = step_constants(config.model, config.train.world)
        self._engine = open_engine(config.numerics, self.graph, constants, self._recorder, threads)
        registration = read_registration(folder).predicate
        self._run_id = registration.run_id
        self._recheck = Recheck(
            self.graph,
            config.numerics,
            products=config.recheck.products,
            run_id=self._run_id,
            rank=rank,
        )
        self._dataset = read_dataset(folder, registration.dataset.tokens, self._workers)
        self._recorded = frozenset(config.record.recorded(config.train.steps))
        self._kept = frozenset(kept_states(config))
        self._logged: Mapping[int, StepLeaf] = {}
        self.restore(0)

    def expect(self, logged: Iterable[StepLeaf]) -> None:
        """Say what the log holds: of these steps nothing is written that has another root.

        What is stored may be all that shows how a logged step came to be.
        """
        self._logged = {leaf.step: leaf for leaf in logged}

    def restore(self, step: int) -> None:
        """Go back to the kept state before `step`.

        Raises:
            MissingError: the state before `step` was not kept.

        """
        reader = RunStore.open(self._folder.store, self._layouts)
        self.step, self._state_root = step, self._engine.adopt(reader.read_state(step))

    def run_step(self) -> RankStep:
        """Execute the next step, have what is recorded written, and return its digests.

        Raises:
            emulator_ext.errors.NonFiniteError: NaN or Inf in the step; nothing of it is kept.
            SilentFaultError: the device computed a product wrongly, twice, or once where other
                ranks have used it already; nothing of the step is kept.
            transcript.errors.StorageError: this or an earlier step could not be written.

        """
        step, before = self.step, self._state_root
        batch = batch_at(self._dataset.tokens, self._dataset.root, self.config, step, self.rank)
        scalars = step_scalars(self.config.optim, self.config.train.steps, step)
        snapshot = self._engine.snapshot()
        executed = self._engine.run(batch, scalars, keep=step in self._recorded)
        checking = time.perf_counter()
        wrong = self._first_wrong(step, snapshot)
        checked = time.perf_counter()
        if wrong is not None:
            executed = self._again(step, snapshot, wrong, batch, scalars)
        started = time.perf_counter()
        self.step, self._state_root = step + 1, executed.state
        batch_bytes = self._batch_layout.pack(batch)
        differs = self._differs(step, executed)
        self._write(step, executed)
        return RankStep(
            rank=self.rank,
            step=step,
            state_before=before,
            state_after=executed.state,
            batch=arena_root(batch_bytes, self._batch_layout, self._workers).hex(),
            scalars=tuple(f"{bits:08x}" for bits in scalars.view(np.uint32)),
            arena=executed.arena,
            metrics=executed.metrics,
            compute_seconds=executed.compute_seconds,
            record_seconds=executed.record_seconds + time.perf_counter() - started,
            recheck_seconds=checked - checking,
            fault=_event(step, self.rank, wrong) if wrong else "",
            differs=differs,
            probe=self._probe(executed) if self.step == self.config.train.steps else b"",
        )

    def _probe(self, executed: Executed) -> bytes:
        """Ask the device after the last step; the question follows from the state as logged."""
        logged = self._logged.get(self.step - 1)
        numerics = self.config.numerics
        return answers(
            numerics,
            open_device(numerics, self._workers),
            run_id=self._run_id,
            moment="end",
            root=logged.state_after if logged else executed.state,
        )

    def _first_wrong(self, step: int, snapshot: Snapshot) -> WrongElement | None:
        return self._recheck.first_wrong(step, self._engine.arena(), snapshot.tensors)

    def _again(
        self, step: int, snapshot: Snapshot, wrong: WrongElement, batch: Arrays, scalars: Scalars
    ) -> Executed:
        """Execute a step once more from its state and return what is right now.

        With several ranks the sums over all of them hold the wrong product already, so one
        rank alone cannot put it right.
        """
        self._engine.rewind(snapshot)
        if self.config.train.world > 1:
            raise _silent_fault(step, self.rank, wrong, "other ranks have used it")
        executed = self._engine.run(batch, scalars, keep=step in self._recorded)
        still = self._first_wrong(step, snapshot)
        if still is not None:
            self._engine.rewind(snapshot)
            raise _silent_fault(step, self.rank, still, "also when it was executed again")
        return executed

    def _differs(self, step: int, executed: Executed) -> dict[str, str]:
        """Say where the stored arena of a logged step differs from the one just computed."""
        logged = self._logged.get(step)
        if logged is None or logged.arenas[self.rank] == executed.arena:
            return {}
        store = RunStore.open(self._folder.store, self._layouts)
        try:
            kept = store.read_arena(self.rank, step)
        except (MissingError, MalformedError):
            return {}
        if arena_root(kept, self._layouts.arena, self._workers).hex() != logged.arenas[self.rank]:
            return {}
        return first_difference(self.graph, kept, self._engine.arena().cpu().numpy())

    def _write(self, step: int, executed: Executed) -> None:
        logged = self._logged.get(step)
        if step in self._recorded and (
            logged is None or logged.arenas[self.rank] == executed.arena
        ):
            self._recorder.write_arena(step)
        if (
            self.rank == 0
            and self.step in self._kept
            and (logged is None or logged.state_after == executed.state)
        ):
            self._recorder.write_state(self.step, self._engine.packed_state())
        # The committer signs a tree head over these steps next: no power cut may unsay it.
        if self.config.record.signs(self.step, self.config.train.steps):
            self._recorder.flush()


def _place(step: int, rank: int, wrong: WrongElement) -> str:
    return (
        f"step {step}, rank {rank}: element {list(wrong.index)} of {wrong.value} is "
        f"{wrong.arena_bits}, computed again {wrong.recomputed_bits}"
    )


def _event(step: int, rank: int, wrong: WrongElement) -> str:
    return f"{_place(step, rank, wrong)}; the step was executed again and is right now"


def _silent_fault(step: int, rank: int, wrong: WrongElement, why: str) -> SilentFaultError:
    return SilentFaultError(
        f"{_place(step, rank, wrong)}, {why}",
        step=step,
        evidence={"step": str(step), "rank": str(rank), **wrong.evidence()},
    )
