"""A step on the device, of training or of decoding: executed, packed and hashed there.

The step graph runs through `torch.ops.bitwitness` on CUDA tensors (`trainer.executor`). Each value
that belongs to the arena is packed into leaf order as it is produced, and the roots are computed
on the device: what comes back to the host is 64 bytes of roots, and whatever the caller copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.executor import execute
from trainer.graph import StepGraph, Value
from trainer.kernels.device import Runtime
from trainer.kernels.leaves import LeafHasher

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStepResult:
    """The state after, by name, and the metrics, on the device; the two roots, 32 bytes each."""

    state: dict[str, Tensor]
    metrics: dict[str, Tensor]
    arena_root: bytes
    state_root: bytes


class DeviceStep:
    """Runs one graph's steps on one device.

    Attributes:
        arena: uint8 [bytes] on the device, the last step's committed values in leaf order.
        packed_state: uint8 [bytes] on the device, the last hashed state in leaf order.

    """

    def __init__(self, rt: Runtime, graph: StepGraph, constants: Arrays) -> None:
        self._rt, self._graph = rt, graph
        self._constants = self.to_device(constants)
        self._arena_hasher = LeafHasher(rt, graph.arena)
        self._state_hasher = LeafHasher(rt, graph.layout("state"))
        self.packed_state = self._state_hasher.new_buffer()
        self.arena = self._arena_hasher.new_buffer()

    def to_device(self, arrays: Arrays) -> dict[str, Tensor]:
        """Copy host arrays to the device, by name."""
        device = self._rt.torch_device
        return {name: torch.from_numpy(np.asarray(a)).to(device) for name, a in arrays.items()}

    def run(
        self, state: Mapping[str, Tensor], batch: Arrays, scalars: NDArray[np.float32]
    ) -> DeviceStepResult:
        """Execute one step and commit it.

        Args:
            state: on the device, by name, as the graph declares it.
            batch: arrays by name.
            scalars: f32 [3]; [0] where the graph has none.

        Raises:
            NonFiniteError: an operator met or made NaN or Inf; nothing was hashed.
            GraphError: an input is missing or has another shape or dtype than declared.

        """
        inputs = self.to_device({**batch, "scalars": scalars})
        # One wait per step instead of one per operator; the arena counts only after it.
        with self._rt.deferred_checks():
            result = execute(
                self._graph,
                state=state,
                batch=inputs,
                constants=self._constants,
                scalars=inputs["scalars"],
                sink=self._record,
            )
        return DeviceStepResult(
            state=result.state,
            metrics=result.metrics,
            arena_root=self._arena_hasher.root(self.arena),
            state_root=self.state_root(result.state),
        )

    def state_root(self, state: Mapping[str, Tensor]) -> bytes:
        """Return the root of a state on the device."""
        for name, tensor in state.items():
            self._state_hasher.pack_into(self.packed_state, name, tensor)
        return self._state_hasher.root(self.packed_state)

    def _record(self, value: Value, tensor: Tensor) -> Tensor:
        self._arena_hasher.pack_into(self.arena, value.name, tensor)
        return tensor
