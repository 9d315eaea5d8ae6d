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
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.data import batch_at
from trainer.dataset import read_dataset
from trainer.errors import ConfigError
from trainer.executor import execute
from trainer.graph import StepGraph
from trainer.ops import threads as op_threads
from trainer.plan import kept_states, layouts_of, open_for_writing, read_registration
from trainer.recorder import Recorder
from trainer.trace import derive_graph
from transcript.layout import Layout
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
        threads: threads of the emulated device and of hashing; all CPUs by default.

    Raises:
        ConfigError: `device: cuda`, which this class cannot serve.
        transcript.errors.TranscriptError: the folder is not a prepared run.

    """

    def __init__(
        self, config: RunConfig, folder: RunFolder, *, rank: int = 0, threads: int | None = None
    ) -> None:
        if config.numerics.device != "emulated":
            raise ConfigError(f"device {config.numerics.device} is not built in this version")
        self.config, self.rank, self.threads = config, rank, threads
        self._workers = op_threads.resolve(threads)
        self.graph: StepGraph = derive_graph(config)
        self._layouts = layouts_of(self.graph)
        self._batch_layout = self.graph.layout("batch")
        self._folder = folder
        self._recorder = Recorder(
            open_for_writing(config, folder, self._layouts), rank=rank, threads=self._workers
        )
        registration = read_registration(folder).predicate
        self._dataset = read_dataset(folder, registration.dataset.tokens, self._workers)
        constants = step_constants(config.model, config.train.world)
        self._constants = {name: torch.from_numpy(a) for name, a in constants.items()}
        self._recorded = frozenset(config.record.recorded(config.train.steps))
        self._kept = frozenset(kept_states(config))
        self.restore(0)

    def restore(self, step: int) -> None:
        """Go back to the kept state before `step`.

        Raises:
            MissingError: the state before `step` was not kept.

        """
        reader = RunStore.open(self._folder.store, self._layouts)
        self._adopt(step, reader.read_state(step))

    def run_step(self) -> RankStep:
        """Execute the next step, have what is recorded written, and return its digests.

        Raises:
            emulator_ext.errors.NonFiniteError: NaN or Inf in the step; nothing of it is kept.
            transcript.errors.StorageError: this or an earlier step could not be written.

        """
        step, before = self.step, self._state_root
        batch = batch_at(self._dataset.tokens, self._dataset.root, self.config, step, self.rank)
        scalars = step_scalars(self.config.optim, self.config.train.steps, step)
        started = time.perf_counter()
        self._recorder.seconds = 0.0
        with op_threads.use(self.threads):
            result = execute(
                self.graph,
                state=self._state,
                batch={name: torch.from_numpy(a) for name, a in batch.items()},
                constants=self._constants,
                scalars=torch.from_numpy(scalars),
                sink=self._recorder.sink,
            )
        executed = time.perf_counter()
        arena, batch_root = self._recorder.root(), self._pack_batch(batch)
        self._adopt(step + 1, self._pack_state(result.state))
        self._write(step)
        recorded = time.perf_counter() - executed
        return RankStep(
            rank=self.rank,
            step=step,
            state_before=before,
            state_after=self._state_root,
            batch=batch_root,
            scalars=tuple(f"{bits:08x}" for bits in scalars.view(np.uint32)),
            arena=arena,
            metrics={name: _bits(tensor) for name, tensor in result.metrics.items()},
            compute_seconds=executed - started - self._recorder.seconds,
            record_seconds=recorded + self._recorder.seconds,
        )

    def _write(self, step: int) -> None:
        if step in self._recorded:
            self._recorder.write_arena(step)
        if self.rank == 0 and self.step in self._kept:
            self._recorder.write_state(self.step, self._state_bytes)
        if self.step == self.config.train.steps:
            self._recorder.flush()

    def _root(self, buffer: NDArray[np.uint8], layout: Layout) -> str:
        return arena_root(buffer, layout, self._workers).hex()

    def _pack_batch(self, batch: Mapping[str, NDArray[np.int32]]) -> str:
        return self._root(self._batch_layout.pack(batch), self._batch_layout)

    def _pack_state(self, state: Mapping[str, Tensor]) -> NDArray[np.uint8]:
        return self._layouts.state.pack({name: t.numpy() for name, t in state.items()})

    def _adopt(self, step: int, packed: NDArray[np.uint8]) -> None:
        layout = self._layouts.state
        self.step, self._state_bytes = step, packed
        self._state_root = self._root(packed, layout)
        self._state = {
            entry.name: torch.from_numpy(layout.unpack(packed, entry.name))
            for entry in layout.entries
        }


def _bits(scalar: Tensor) -> str:
    return f"{int(scalar.numpy().view(np.uint32)):08x}"
