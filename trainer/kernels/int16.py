"""INT16 vectors and their products by `cuda/int16.cu` and `cuda/gemm_int16.cu`.

Both operands of a product become planes of f16 digits, K contiguous and padded to whole tiles, as
those of `trainer.kernels.gemm` do; the tensor core multiplies digits, so that every sum is an
integer that f32 holds, and one kernel joins the sums and rounds once. No bit depends on the GPU.
Formulas and limits: docs/formats/operators.md, "INT16 vectors".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from emulator_ext import OperandError
from trainer.kernels.device import Grid, Runtime, Scalar

WARP: Final = 32
PACK_THREADS: Final = 256  # kThreads of int16.cu
TRANSPOSED_TILE: Final = 32  # kTile of int16.cu
TILE: Final = 64  # kTile of gemm_int16.cu
BLOCK_K: Final = 32  # kBlockK
STAGES: Final = 2  # kStages of gemm_int16.cu
THREADS: Final = 256  # kThreads of gemm_int16.cu
MOST_WIDTH: Final = 1024  # kInt16Width of pinned_int16.h
MOST_KEYS: Final = 32_768  # kInt24Keys

Arguments = tuple[Tensor | Scalar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planes:
    """f16 digits [digits, batch, rows padded, k padded], and each row's exponent, int32."""

    data: Tensor
    unit: Tensor  # [batch, rows padded]
    batch: int
    rows: int
    k: int

    @classmethod
    def empty(cls, rt: Runtime, digits: int, batch: int, rows: int, k: int) -> _Planes:
        padded = (batch, _ceil(rows, TILE) * TILE)
        data = rt.empty(digits, *padded, _ceil(k, BLOCK_K) * BLOCK_K, dtype=torch.uint16)
        unit = rt.zeros(*padded, dtype=torch.int32)
        return cls(data=data, unit=unit, batch=batch, rows=rows, k=k)

    @property
    def sizes(self) -> tuple[np.int64, ...]:
        """What the kernels of int16.cu take between operands and planes."""
        return tuple(np.int64(n) for n in (self.batch, self.rows, self.k, *self.data.shape[2:]))

    @property
    def plane(self) -> np.int64:
        return np.int64(self.data[0].numel())

    @property
    def grid(self) -> Grid:
        """A warp for each row, padding included."""
        return _warps(self.unit.numel())


def int16_quantise(rt: Runtime, x: Tensor) -> tuple[Tensor, Tensor]:
    """X [..., K] -> codes u16 [..., K], scales u8 [..., 1]."""
    codes, scales = _quantised(rt, x, "int16_quantise")
    rt.finish()
    return codes, scales


def int16_hold(rt: Runtime, x: Tensor) -> Tensor:
    """X [..., K] -> what its codes stand for, f32 [..., K]."""
    x = x.contiguous()
    y, (rows, width) = rt.empty(*x.shape), _matrix(x)
    sizes = (np.int64(rows), np.int64(width))
    fault = rt.fault("int16_hold")
    rt.launch("int16_hold", _warps(rows), PACK_THREADS, x, *sizes, y, *fault)
    rt.finish()
    return y


def int16_scores(rt: Runtime, q: Tensor, k: Tensor, k_scale: Tensor) -> Tensor:
    """Q [..., M, K], k u16 [..., N, K], k_scale u8 [..., N, 1] -> [..., M, N]."""
    op = "int16_scores"
    _require_width(op, q)
    return _product(rt, op, q, _row_planes(rt, op, q), _key_planes(rt, k, k_scale))


def int16_dot(rt: Runtime, q: Tensor, k: Tensor, profile: str, arch: str) -> Tensor:
    """Q [..., M, K], k [..., N, K] -> [..., M, N]; quantising held rows gives their codes."""
    del profile, arch  # of the gradients
    op = "int16_dot"
    _require_width(op, q)
    return _product(rt, op, q, _row_planes(rt, op, q), _row_planes(rt, op, k))


def int16_mix(rt: Runtime, p: Tensor, v: Tensor, v_scale: Tensor) -> Tensor:
    """P [..., M, N], v u16 [..., N, K], v_scale u8 [..., N, 1] -> [..., M, K]."""
    op = "int16_mix"
    _require_keys(op, p)
    return _product(rt, op, p, _weight_planes(rt, op, p, v_scale), _value_planes(rt, v))


def int16_blend(rt: Runtime, p: Tensor, v: Tensor, profile: str, arch: str) -> Tensor:
    """P [..., M, N], v [..., N, K] -> [..., M, K]."""
    del profile, arch  # of the gradients
    op = "int16_blend"
    _require_keys(op, p)
    codes, scales = _quantised(rt, v, op)
    return _product(rt, op, p, _weight_planes(rt, op, p, scales), _value_planes(rt, codes))


def _quantised(rt: Runtime, x: Tensor, op: str) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    rows, width = _matrix(x)
    codes = rt.empty(*x.shape, dtype=torch.uint16)
    scales = rt.empty(*x.shape[:-1], 1, dtype=torch.uint8)
    args = (x, np.int64(rows), np.int64(width), codes, scales, *rt.fault(op))
    rt.launch("int16_quantise", _warps(rows), PACK_THREADS, *args)
    return codes, scales


def _row_planes(rt: Runtime, op: str, x: Tensor) -> _Planes:
    planes = _Planes.empty(rt, 2, *_stack(x))
    args: Arguments = (x.contiguous(), *planes.sizes, planes.data, planes.unit, *rt.fault(op))
    rt.launch("int16_row_digits", planes.grid, PACK_THREADS, *args)
    return planes


def _key_planes(rt: Runtime, codes: Tensor, scales: Tensor) -> _Planes:
    planes = _Planes.empty(rt, 2, *_stack(codes))
    args: Arguments = (
        codes.contiguous(),
        scales.contiguous(),
        *planes.sizes,
        planes.data,
        planes.unit,
    )
    rt.launch("int16_key_digits", planes.grid, PACK_THREADS, *args)
    return planes


def _value_planes(rt: Runtime, codes: Tensor) -> _Planes:
    """Transpose codes [..., N, K] to planes of K rows; their scales are in the weights."""
    batch, keys, width = _stack(codes)
    planes = _Planes.empty(rt, 2, batch, width, keys)
    rows, k = planes.data.shape[2:]
    grid = (rows // TRANSPOSED_TILE * (k // TRANSPOSED_TILE), batch, 1)
    args: Arguments = (codes.contiguous(), *planes.sizes[1:], planes.data)
    rt.launch("int16_value_digits", grid, PACK_THREADS, *args)
    return planes


def _weight_planes(rt: Runtime, op: str, p: Tensor, scales: Tensor) -> _Planes:
    planes = _Planes.empty(rt, 3, *_stack(p))
    operands = (p.contiguous(), scales.contiguous())
    args: Arguments = (*operands, *planes.sizes, planes.data, planes.unit, *rt.fault(op))
    rt.launch("int16_weight_digits", planes.grid, PACK_THREADS, *args)
    return planes


def _product(rt: Runtime, op: str, like: Tensor, a: _Planes, b: _Planes) -> Tensor:
    """Multiply planes row by row: f32 [..., M, rows of b], leading dimensions as `like`."""
    d = rt.empty(*like.shape[:-1], b.rows)
    digits = a.data.shape[0]
    kernel = {2: "gemm_int16_scores", 3: "gemm_int16_mix"}[digits]
    sizes: tuple[Scalar, ...] = (np.int64(a.rows), np.int64(b.rows), np.int32(a.data.shape[-1]))
    grid = (_ceil(b.rows, TILE), _ceil(a.rows, TILE), a.batch)
    rt.launch(
        kernel, grid, THREADS,
        a.data, b.data, a.plane, b.plane, a.unit, b.unit, d, *sizes, *rt.fault(op),
        shared=STAGES * (digits + 2) * TILE * BLOCK_K * 2,
    )  # fmt: skip
    rt.finish()
    return d


def _require_width(op: str, q: Tensor) -> None:
    if q.shape[-1] > MOST_WIDTH:
        msg = f"{op}: heads of {q.shape[-1]}; sums are exact up to {MOST_WIDTH}"
        raise OperandError(msg)


def _require_keys(op: str, p: Tensor) -> None:
    if p.shape[-1] > MOST_KEYS:
        msg = f"{op}: contexts of {p.shape[-1]}; sums are exact up to {MOST_KEYS}"
        raise OperandError(msg)


def _stack(x: Tensor) -> tuple[int, int, int]:
    """Return the extents of [..., A, B] as [N, A, B]."""
    return x.shape[:-2].numel(), x.shape[-2], x.shape[-1]


def _matrix(x: Tensor) -> tuple[int, int]:
    """Return the extents of [..., A] as [N, A]."""
    return x.shape[:-1].numel(), x.shape[-1]


def _warps(rows: int) -> Grid:
    return (_ceil(rows * WARP, PACK_THREADS), 1, 1)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
