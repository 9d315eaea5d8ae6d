"""Answering a challenge: steps that were not recorded are executed again and written out.

A run that records on challenge has the roots of every step in its log, and the state before
every n-th. From the newest of these before a challenged step all ranks execute again, in this
process; every root on the way has to be the one in the log. Arena and state before each
challenged step go into a store of the run's own format, which an auditor reads like the run's.
Where a root differs, nothing can be shown from there to the next kept state. Nothing is signed:
the log binds it already.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator_ext import pinned
from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.data import batch_at
from trainer.dataset import TokenStore, read_dataset
from trainer.engine import Executed, open_engine
from trainer.errors import ConfigError, DivergenceError
from trainer.graph import StepGraph
from trainer.ops import collective
from trainer.ops import threads as op_threads
from trainer.plan import kept_states, layouts_of
from trainer.recorder import Recorder
from trainer.trace import derive_graph
from transcript.log import LogReader, StepLeaf
from transcript.run import RunFolder
from transcript.statements import read_registration
from transcript.store import RunStore

STORE = "store.zarr"
Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revealed:
    """An answer.

    Attributes:
        folder: where it lies.
        steps: those that it holds, ascending.
        withheld: those that it cannot hold, and why.
        executed: how many steps were executed again.

    """

    folder: Path
    steps: tuple[int, ...]
    withheld: Mapping[int, str]
    executed: int


def stretches(kept: Sequence[int], steps: Sequence[int]) -> list[range]:
    """Return what has to be executed for `steps`: ranges that each begin at a kept state.

    Args:
        kept: steps t whose state before t is kept, ascending, the first of them 0.
        steps: ascending.

    """
    ends: dict[int, int] = {}
    for step in steps:
        ends[max(t for t in kept if t <= step)] = step
    return [range(start, end + 1) for start, end in ends.items()]


def executions(config: RunConfig, steps: Sequence[int]) -> int:
    """Return how many steps have to be executed to reveal `steps`, ascending."""
    return sum(map(len, stretches(kept_states(config), steps)))


def reveal(
    folder: RunFolder,
    steps: Sequence[int],
    out: Path,
    *,
    threads: int | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Revealed:
    """Execute steps again and write those that come out as committed to a new folder.

    Args:
        folder: a finished run that records on challenge.
        steps: those that were drawn, ascending.
        out: the new folder.
        threads: of each rank, and for hashing; all CPUs by default.
        on_step: called with how many steps are executed so far.

    Raises:
        ConfigError: the run records otherwise, or has no such step.
        transcript.errors.TranscriptError: a state, the log or the data cannot be read or written.

    """
    registration = read_registration(folder).predicate
    config = RunConfig.from_document(registration.config, name=str(folder.registration))
    if config.record.policy != "on_challenge":
        raise ConfigError(f"{folder.root}: records {config.record.stated}: nothing to reveal")
    if not steps or not 0 <= steps[0] <= steps[-1] < config.train.steps:
        raise ConfigError(f"{folder.root}: has steps 0 to {config.train.steps - 1} only")
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with LogReader(folder.log, registration.run_id) as log:
            dataset = read_dataset(folder, registration.dataset.tokens, op_threads.resolve(threads))
            team = _Team(config, folder, partial, steps, dataset, threads)
            team.run(log, on_step or (lambda _: None))
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Revealed(
        folder=out,
        steps=tuple(step for step in steps if step not in team.withheld),
        withheld=team.withheld,
        executed=team.executed,
    )


class _Team:
    """All ranks of a run, in threads of this process, with a store for what they reveal."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        out: Path,
        steps: Sequence[int],
        dataset: TokenStore,
        threads: int | None,
    ) -> None:
        self._config, self._steps = config, frozenset(steps)
        graph = derive_graph(config)
        self._layouts = layouts_of(graph)
        self._stretches = stretches(kept_states(config), steps)
        self._kept = RunStore.open(folder.store, self._layouts)
        self._store = RunStore.create(
            out / STORE, self._layouts, recorded=steps, states=steps, world=config.train.world
        )
        constants = step_constants(config.model, config.train.world)
        self._store.write_constants(self._layouts.constants.pack(constants))
        self.withheld: dict[int, str] = {}
        self.executed = 0
        self._shown: set[int] = set()
        exchange = Exchange(config.train.world)
        self._ranks = [
            _Rank(config, graph, self._store, rank, dataset, threads, exchange)
            for rank in range(config.train.world)
        ]

    def run(self, log: LogReader, on_step: Callable[[int], None]) -> None:
        """Execute all stretches, each as far as it comes out as committed."""
        with ThreadPoolExecutor(len(self._ranks)) as pool:
            for stretch in self._stretches:
                try:
                    self._stretch(pool, stretch, log, on_step)
                except DivergenceError as error:
                    self._withhold(stretch, str(error))
        for rank in self._ranks:
            rank.recorder.flush()

    def _stretch(
        self,
        pool: ThreadPoolExecutor,
        stretch: range,
        log: LogReader,
        on_step: Callable[[int], None],
    ) -> None:
        state = self._kept.read_state(stretch.start)
        roots = [rank.adopt(state) for rank in self._ranks]
        _same(stretch.start, "state before", log.leaf(stretch.start).state_before, roots[0])
        for step in stretch:
            self._step(pool, log.leaf(step))
            self._shown.add(step)
            self.executed += 1
            on_step(self.executed)

    def _withhold(self, stretch: range, why: str) -> None:
        lost = (self._steps & {*stretch}) - self._shown
        self.withheld.update(dict.fromkeys(sorted(lost), why))

    def _step(self, pool: ThreadPoolExecutor, leaf: StepLeaf) -> None:
        wanted = leaf.step in self._steps
        if wanted:
            self._ranks[0].write_state(leaf.step)
        futures = [pool.submit(rank.run, leaf.step, keep=wanted) for rank in self._ranks]
        done = [future.exception() for future in futures]
        # a rank whose peer failed is let go of; what the peer says is what happened
        for error in sorted(filter(None, done), key=_is_broken):
            raise error
        for rank, future in enumerate(futures):
            executed = future.result()
            _same(leaf.step, f"arena of rank {rank}", leaf.arenas[rank], executed.arena)
            _same(leaf.step, f"state after on rank {rank}", leaf.state_after, executed.state)
        if wanted:
            for member in self._ranks:
                member.recorder.write_arena(leaf.step)


class _Rank:
    """One rank: the engine of `trainer.rank`, with its own recorder."""

    def __init__(
        self,
        config: RunConfig,
        graph: StepGraph,
        store: RunStore,
        rank: int,
        dataset: TokenStore,
        threads: int | None,
        exchange: Exchange,
    ) -> None:
        self._config, self._rank, self._dataset, self._exchange = config, rank, dataset, exchange
        self.recorder = Recorder(store, rank=rank, threads=op_threads.resolve(threads))
        constants = step_constants(config.model, config.train.world)
        self._engine = open_engine(config.numerics, graph, constants, self.recorder, threads)

    def adopt(self, packed: NDArray[np.uint8]) -> str:
        """Take a state and return its root, hex."""
        return self._engine.adopt(packed)

    def write_state(self, step: int) -> None:
        """Have the present state written as that before `step`."""
        self.recorder.write_state(step, self._engine.packed_state())

    def run(self, step: int, *, keep: bool) -> Executed:
        """Execute one step, together with the other ranks."""
        config = self._config
        batch = batch_at(self._dataset.tokens, self._dataset.root, config, step, self._rank)
        scalars = step_scalars(config.optim, config.train.steps, step)
        with self._exchange.seat(self._rank):
            return self._engine.run(batch, scalars, keep=keep)


class Exchange:
    """A communicator between threads: each rank brings its vector, all get the pinned sum."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world)
        self._shards: list[Vector] = [np.zeros(0, np.float32)] * world

    @contextmanager
    def seat(self, rank: int) -> Iterator[None]:
        """Let `all_reduce` of this thread go through the exchange, as that rank.

        A rank that fails lets the others go, with BrokenBarrierError.
        """
        try:
            with collective.use(_Seat(self, rank)):
                yield
        except BaseException:
            self._barrier.abort()
            raise

    def all_reduce(self, rank: int, flat: Vector) -> Vector:
        """Return the sum over all ranks, f32 [n]."""
        self._shards[rank] = flat
        self._barrier.wait()
        total = pinned.tree_sum(np.stack(self._shards))
        self._barrier.wait()
        return total


@dataclass(frozen=True, slots=True)
class _Seat:
    exchange: Exchange
    rank: int

    def all_reduce(self, flat: Vector) -> Vector:
        return self.exchange.all_reduce(self.rank, flat)


def _is_broken(error: BaseException | None) -> bool:
    return isinstance(error, threading.BrokenBarrierError)


def _same(step: int, what: str, committed: str, found: str) -> None:
    if committed != found:
        raise DivergenceError(
            f"step {step}: the {what} was committed as {committed[:16]}..., executed again it is "
            f"{found[:16]}...: what was committed cannot be revealed"
        )
