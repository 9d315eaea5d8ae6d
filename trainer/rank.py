"""One rank of a run: executes steps, packs and hashes its arena, writes what is recorded.

A rank holds the whole state (data parallelism) and its own batches. It signs nothing and
appends nothing: what it returns per step is a few digests, which the committer joins into
the step's leaf.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainer.config import RunConfig
from trainer.constants import step_scalars
from trainer.data import batch_at
from trainer.dataset import read_dataset
from trainer.engine import open_engine
from trainer.graph import StepGraph
from trainer.ops import threads as op_threads
from trainer.plan import kept_states, layouts_of, open_for_writing, read_registration
from trainer.recorder import Recorder
from trainer.trace import derive_graph
from transcript.leaves import arena_root
from transcript.run import RunFolder
from transcript.store import RunStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """What one rank says about one step. Digests are hex; f32 values are their bits, in hex.

    `compute_seconds` and `record_seconds` (packing, hashing, writing) are not committed.
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
        self._engine = open_engine(config, self.graph, self._recorder, threads)
        registration = read_registration(folder).predicate
        self._dataset = read_dataset(folder, registration.dataset.tokens, self._workers)
        self._recorded = frozenset(config.record.recorded(config.train.steps))
        self._kept = frozenset(kept_states(config))
        self.restore(0)

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
            transcript.errors.StorageError: this or an earlier step could not be written.

        """
        step, before = self.step, self._state_root
        batch = batch_at(self._dataset.tokens, self._dataset.root, self.config, step, self.rank)
        scalars = step_scalars(self.config.optim, self.config.train.steps, step)
        executed = self._engine.run(batch, scalars, keep=step in self._recorded)
        started = time.perf_counter()
        self.step, self._state_root = step + 1, executed.state
        batch_bytes = self._batch_layout.pack(batch)
        self._write(step)
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
        )

    def _write(self, step: int) -> None:
        if step in self._recorded:
            self._recorder.write_arena(step)
        if self.rank == 0 and self.step in self._kept:
            self._recorder.write_state(self.step, self._engine.packed_state())
        if self.step == self.config.train.steps:
            self._recorder.flush()
