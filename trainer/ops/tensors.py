"""From torch to numpy and back, without copying, and dtype checks that name the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emulator_ext.errors import OperandError


def f32(op: str, *tensors: Tensor) -> tuple[NDArray[np.float32], ...]:
    """View f32 CPU tensors as arrays, strides and all.

    Raises:
        OperandError: another dtype.

    """
    require(op, torch.float32, *tensors)
    return tuple(_array(t) for t in tensors)


def i32(op: str, tensor: Tensor) -> NDArray[np.int32]:
    """View an int32 CPU tensor as an array.

    Raises:
        OperandError: another dtype; int64 is not narrowed silently.

    """
    require(op, torch.int32, tensor)
    return _array(tensor)


def int16(op: str, codes: Tensor, scales: Tensor) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """View INT16 vectors as arrays: codes uint16 and scales uint8.

    Raises:
        OperandError: another dtype.

    """
    require(op, torch.uint16, codes)
    require(op, torch.uint8, scales)
    return _array(codes), _array(scales)


def require(op: str, dtype: torch.dtype, *tensors: Tensor) -> None:
    """Raise `OperandError` unless all tensors have the dtype; works on fake tensors."""
    for tensor in tensors:
        if tensor.dtype != dtype:
            msg = f"bitwitness::{op} takes {dtype}, got {tensor.dtype}"
            raise OperandError(msg)


def require_shape(op: str, *, holds: bool, found: str) -> None:
    """Raise `OperandError` naming the operator and the shapes unless a condition holds."""
    if not holds:
        msg = f"bitwitness::{op} cannot take shapes {found}"
        raise OperandError(msg)


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Wrap a result."""
    return torch.from_numpy(array)


def _array(tensor: Tensor) -> NDArray[Any]:
    # Inside an operator of a differentiated graph, inputs still carry requires_grad.
    return tensor.detach().numpy() if tensor.requires_grad else tensor.numpy()
