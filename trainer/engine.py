"""What executes steps and hashes them, of training and of generation: a CPU, or a GPU.

Both run the same graph through the same executor and must give the same roots. A GPU keeps
state and arena to itself; they come to the host only when they are to be written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.config import NumericsConfig
from trainer.executor import execute
from trainer.graph import StepGraph
from trainer.ops import threads as op_threads
from trainer.recorder import Buffer, Recorder
from transcript.leaves import arena_root

if TYPE_CHECKING:
    from trainer.kernels.device import Runtime

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """One executed step: roots and f32 metric bits in hex, and where the time went."""

    arena: str
    state: str
    metrics: Mapping[str, str]
    compute_seconds: float
    record_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A state as an engine keeps it: tensors by name and, on the CPU, their leaf order."""

    tensors: Mapping[str, Tensor]
    packed: Buffer


class Engine(Protocol):
    """One device; it owns the state."""

    def adopt(self, packed: Buffer) -> str:
        """Take a state in leaf order, uint8 [state bytes], and return its root in hex."""

    def run(self, batch: Arrays, scalars: NDArray[np.float32], *, keep: bool) -> Executed:
        """Execute one step; `keep` leaves its arena with the recorder, to be written.

        Raises:
            emulator_ext.errors.NonFiniteError: NaN or Inf in the step; the state is as before.

        """

    def packed_state(self) -> Buffer:
        """Return the present state in leaf order, uint8 [state bytes], on the host."""

    def snapshot(self) -> Snapshot:
        """Return the present state: what a step that has to be executed again goes back to."""

    def rewind(self, snapshot: Snapshot) -> None:
        """Go back to a state of this engine."""

    def arena(self) -> Tensor:
        """Return the last step's arena, uint8 [arena bytes], where the device keeps it."""


def open_engine(
    numerics: NumericsConfig,
    graph: StepGraph,
    constants: Arrays,
    recorder: Recorder,
    threads: int | None,
) -> Engine:
    """Return the engine of `numerics.device` for any step graph.

    Args:
        numerics: device, architecture and profile.
        graph: the steps.
        constants: what every step reads, by name.
        recorder: takes the arenas that are to be written.
        threads: of the emulated device and of host hashing; all CPUs if None.

    Raises:
        trainer.kernels.errors.EnvironmentMissingError: `device: cuda` without CuPy or a GPU.
        emulator_ext.errors.UnsupportedError: the GPU is not of the configured architecture.

    """
    runtime = require_device(numerics)
    if runtime is None:
        return EmulatedEngine(graph, constants, recorder, threads)
    return DeviceEngine(runtime, graph, constants, recorder)


def require_device(numerics: NumericsConfig) -> Runtime | None:
    """Return the GPU that `numerics.device` asks for, None for the emulated device.

    Raises:
        trainer.kernels.errors.EnvironmentMissingError: `device: cuda` without CuPy or a GPU.
        emulator_ext.errors.UnsupportedError: the GPU is not of the configured architecture.

    """
    if numerics.device == "emulated":
        return None
    from trainer.kernels import register

    runtime = register.require()
    found = register.architecture(torch.cuda.current_device())
    register.require_arch(profile=numerics.profile, wanted=numerics.arch, found=found)
    return runtime


class EmulatedEngine:
    """The pinned operators on the CPU, packing into the recorder's arena as they go."""

    def __init__(
        self, graph: StepGraph, constants: Arrays, recorder: Recorder, threads: int | None
    ) -> None:
        self._graph, self._recorder, self._threads = graph, recorder, threads
        self._workers = op_threads.resolve(threads)
        self._layout = graph.layout("state")
        self._constants = _tensors(constants)
        self._packed = np.zeros(0, np.uint8)
        self._state: Mapping[str, Tensor] = {}

    def adopt(self, packed: Buffer) -> str:
        """Take a state; see `Engine`."""
        self._packed = packed
        self._state = _tensors(self._layout.unpack_all(packed))
        return arena_root(packed, self._layout, self._workers).hex()

    def run(self, batch: Arrays, scalars: NDArray[np.float32], *, keep: bool) -> Executed:
        """Execute one step; see `Engine`."""
        del keep  # the arena is filled in any case: its root needs it
        started = time.perf_counter()
        self._recorder.seconds = 0.0
        with op_threads.use(self._threads):
            result = execute(
                self._graph,
                state=self._state,
                batch=_tensors(batch),
                constants=self._constants,
                scalars=torch.from_numpy(scalars),
                sink=self._recorder.sink,
            )
        executed = time.perf_counter()
        arena = self._recorder.root()
        state = self.adopt(self._layout.pack({n: t.numpy() for n, t in result.state.items()}))
        packing = self._recorder.seconds
        return Executed(
            arena=arena,
            state=state,
            metrics=_metric_bits(result.metrics),
            compute_seconds=executed - started - packing,
            record_seconds=time.perf_counter() - executed + packing,
        )

    def packed_state(self) -> Buffer:
        """Return the present state; see `Engine`."""
        return self._packed

    def snapshot(self) -> Snapshot:
        """Return the present state; see `Engine`."""
        return Snapshot(tensors=self._state, packed=self._packed)

    def rewind(self, snapshot: Snapshot) -> None:
        """Go back to a state; see `Engine`."""
        self._state, self._packed = snapshot.tensors, snapshot.packed

    def arena(self) -> Tensor:
        """Return the arena that is being filled; see `Engine`."""
        return torch.from_numpy(self._recorder.arena)


class DeviceEngine:
    """A GPU through the kernels: executed, packed and hashed there."""

    def __init__(
        self, runtime: Runtime, graph: StepGraph, constants: Arrays, recorder: Recorder
    ) -> None:
        from trainer.kernels.step import DeviceStep

        self._recorder = recorder
        self._layout = graph.layout("state")
        self._step = DeviceStep(runtime, graph, constants)
        self._state: Mapping[str, Tensor] = {}

    def adopt(self, packed: Buffer) -> str:
        """Take a state; see `Engine`."""
        self._state = self._step.to_device(self._layout.unpack_all(packed))
        return self._step.state_root(self._state).hex()

    def run(self, batch: Arrays, scalars: NDArray[np.float32], *, keep: bool) -> Executed:
        """Execute one step; see `Engine`. Hashing on the device counts as computing."""
        started = time.perf_counter()
        result = self._step.run(self._state, batch, scalars)
        executed = time.perf_counter()
        self._state = result.state
        if keep:
            self._recorder.fill(self._step.arena.cpu().numpy())
        return Executed(
            arena=result.arena_root.hex(),
            state=result.state_root.hex(),
            metrics=_metric_bits(result.metrics),
            compute_seconds=executed - started,
            record_seconds=time.perf_counter() - executed,
        )

    def packed_state(self) -> Buffer:
        """Return the present state; see `Engine`."""
        packed: Buffer = self._step.packed_state.cpu().numpy()
        return packed

    def snapshot(self) -> Snapshot:
        """Return the present state; see `Engine`. Its leaf order is made anew by each step."""
        return Snapshot(tensors=self._state, packed=np.zeros(0, np.uint8))

    def rewind(self, snapshot: Snapshot) -> None:
        """Go back to a state; see `Engine`."""
        self._state = snapshot.tensors

    def arena(self) -> Tensor:
        """Return the arena on the device; see `Engine`."""
        return self._step.arena


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _metric_bits(metrics: Mapping[str, Tensor]) -> dict[str, str]:
    return {
        name: f"{int(tensor.cpu().numpy().view(np.uint32)):08x}" for name, tensor in metrics.items()
    }
