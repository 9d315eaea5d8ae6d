"""What a launcher needs of a device, and what all launches of a process share.

A kernel that meets NaN, Inf or an index outside its table writes its operator's code into one
status word; the first on the stream stays. Reading the word waits for the device, so a caller that
runs a whole step defers the check to its end: the step is then aborted before anything of it is
committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from emulator_ext import NonFiniteError, OperandError
from trainer.kernels.errors import KernelError

Scalar = np.int32 | np.int64 | np.uint32 | np.uint64 | np.float32
Grid = tuple[int, int, int]

MAX_GRID_YZ = 65_535


class Device(Protocol):
    """Launches kernels by name, in order."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors must live."""
        ...

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA's compute capability, which says what instructions there are."""
        ...

    def launch(
        self, kernel: str, grid: Grid, block: int, arguments: Sequence[Scalar], shared: int
    ) -> None:
        """Enqueue one kernel; pointers are `uint64`, `shared` is dynamic shared memory in bytes."""
        ...


class Runtime:
    """A device and its status word."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._operators: list[str] = []
        self._deferred = False
        self._status = torch.zeros(1, dtype=torch.int32, device=device.torch_device)

    @property
    def torch_device(self) -> torch.device:
        """Where tensors must live."""
        return self.device.torch_device

    def launch(
        self,
        kernel: str,
        grid: Grid,
        block: int,
        *arguments: Tensor | Scalar,
        shared: int = 0,
    ) -> None:
        """Enqueue a kernel; tensors are passed as pointers. An empty grid launches nothing.

        Raises:
            KernelError: the grid is larger than CUDA allows in its second or third dimension.

        """
        if 0 in grid:
            return
        if max(grid[1:]) > MAX_GRID_YZ:
            raise KernelError(f"{kernel}: operands are too large, they need a grid of {grid}")
        scalars = [np.uint64(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments]
        self.device.launch(kernel, grid, block, scalars, shared)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return an uninitialised tensor on the device."""
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a tensor of zeros on the device."""
        return torch.zeros(shape, dtype=dtype, device=self.torch_device)

    def fault(self, operator: str) -> tuple[Tensor, np.uint32]:
        """Return the last two parameters of a kernel: the status word and the operator's number.

        Operators are numbered from 1 in order of first use.
        """
        if operator not in self._operators:
            self._operators.append(operator)
        return self._status, np.uint32(self._operators.index(operator) + 1)

    def finish(self) -> None:
        """End an operator: check the status word unless checks are deferred."""
        if not self._deferred:
            self.check()

    def check(self) -> None:
        """Wait for the device and raise for the first operator that failed, if any did.

        Raises:
            NonFiniteError: a result is NaN or infinite.
            OperandError: a token or target is outside its table.

        """
        code, out_of_range = divmod(int(self._status.item()), 2)
        if not code:
            return
        self._status.zero_()
        operator = self._operators[code - 1]
        if out_of_range:
            raise OperandError(f"{operator}: an index is outside its table")
        raise NonFiniteError(f"{operator}: a result is NaN or infinite")

    @contextmanager
    def deferred_checks(self) -> Iterator[None]:
        """Check once, on leaving, for everything that ran inside."""
        before, self._deferred = self._deferred, True
        try:
            yield
        finally:
            self._deferred = before
        self.finish()
