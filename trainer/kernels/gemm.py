"""GEMMs of every profile of NUMERICS 2 by `cuda/pack.cu` and `cuda/gemm*.cu`.

Both operands of a tensor-core product are first brought into planes: 16-bit, K contiguous, rows
padded to whole tiles. The product kernel then has one form for every transposition and batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from trainer.kernels.device import Runtime, Scalar
from trainer.kernels.errors import KernelError
from trainer.kernels.tiles import BLOCK_K, TILES, Route, Tile, choose, require_capability

STRIP: Final = 8  # kStrip of stages.cuh
PACK_ROWS: Final = 32  # kTileRows of pack.cu
PACK_K: Final = 64  # kTileK of pack.cu, and the block of the exact profile
PACK_THREADS: Final = 256
MAXIMA_SLICE: Final = 512  # K of one block of row_maxima: enough blocks for one tall matrix
FP32_TILE: Final = 64
FP32_THREADS: Final = 256

MAX_K: Final = 1 << 30  # k_padded is an int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A's rows or B's columns along K: f32 [batch, rows, k] by strides in elements."""

    data: Tensor  # keeps the memory alive until the launch is enqueued
    batch: int
    batch1: int
    stride0: int
    stride1: int
    row_stride: int
    k_stride: int
    rows: int
    k: int

    @classmethod
    def of(cls, x: Tensor) -> Operand:
        """View f32 [..., rows, k]; more than two strides of leading dimensions cost a copy."""
        leading = _merged(list(zip(x.shape[:-2], x.stride()[:-2], strict=True)))
        if len(leading) > 2:
            x = x.contiguous()
            leading = _merged(list(zip(x.shape[:-2], x.stride()[:-2], strict=True)))
        (size0, stride0), (size1, stride1) = [*[(1, 0)] * (2 - len(leading)), *leading]
        return cls(
            data=x, batch=size0 * size1, batch1=size1, stride0=stride0, stride1=stride1,
            row_stride=x.stride(-2), k_stride=x.stride(-1), rows=x.shape[-2], k=x.shape[-1],
        )  # fmt: skip

    def arguments(self) -> tuple[Tensor | Scalar, ...]:
        """Return the kernel parameters that OPERAND (operand.cuh) declares."""
        numbers = (
            self.batch1, self.stride0, self.stride1, self.row_stride, self.k_stride, self.rows,
            self.k,
        )  # fmt: skip
        return (self.data, *map(np.int64, numbers))


def gemm(
    rt: Runtime,
    a: Tensor,
    b: Tensor,
    profile: str,
    *,
    route: Route | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """D = A B by a profile.

    Args:
        rt: where to run.
        a: f32 [..., M, K], any strides.
        b: f32 [..., K, N], equal leading dimensions, any strides.
        profile: "heal", "bf16", "fp32" or "exact".
        route: of the tensor-core profiles; None takes that of `tiles.ROUTE_VARIABLE`, or "mma".
        tile: the kernel's instance, chosen by route and size if None.
        Neither changes a bit.

    Returns:
        f32 [..., M, N], contiguous; zeros if K is 0.

    Raises:
        KernelError: other shapes, dtypes or profile, or a route that does not exist here.
        NonFiniteError: an input or the product holds NaN or infinity.

    """
    _require_shapes(a, b, profile)
    if profile == "fp32" and (route or tile):
        raise KernelError("gemm fp32: uses no tensor core, so it has no route and no tiles")
    left, right = Operand.of(a), Operand.of(b.transpose(-1, -2))
    d = rt.empty(*a.shape[:-1], b.shape[-1])
    if left.k == 0:
        return d.zero_()
    if d.numel() == 0:
        return d
    operator = f"gemm {profile}"
    if profile == "fp32":
        _fp32(rt, left, right, d, operator)
    else:
        capability = rt.device.capability
        products = (left.batch, left.rows, right.rows)
        tile = tile or choose(profile, products, capability, route)
        require_capability(tile, capability)
        _tensor_core(rt, tile, left, right, d, operator)
    rt.finish()
    return d


def _require_shapes(a: Tensor, b: Tensor, profile: str) -> None:
    names = ", ".join([*TILES, "fp32"])
    if profile not in names.split(", "):
        raise KernelError(f"gemm: no kernel for profile {profile!r}; there are {names}")
    if a.dtype != torch.float32 or b.dtype != torch.float32:
        raise KernelError(f"gemm {profile}: operands are f32, not {a.dtype} and {b.dtype}")
    shapes = f"[..., M, K] and [..., K, N], got {list(a.shape)} and {list(b.shape)}"
    if a.ndim < 2 or b.ndim < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise KernelError(f"gemm {profile}: takes {shapes}")
    if a.shape[-1] > MAX_K:
        raise KernelError(f"gemm {profile}: K is at most {MAX_K}: {shapes}")


def _fp32(rt: Runtime, left: Operand, right: Operand, d: Tensor, operator: str) -> None:
    grid = (_ceil(right.rows, FP32_TILE), _ceil(left.rows, FP32_TILE), left.batch)
    rt.launch(
        "gemm_fp32", grid, FP32_THREADS,
        *left.arguments(), *right.arguments(), d, *rt.fault(operator),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planes:
    """16-bit elements [planes, batch, tiles * tile rows, k_padded], and what scales them."""

    data: Tensor
    amax: Tensor | None  # heal: [batch, rows]; exact: [batch, blocks, rows]; greatest magnitudes
    tiles: int

    @property
    def stride(self) -> np.int64:
        return np.int64(self.data[0].numel())


def _tensor_core(
    rt: Runtime, tile: Tile, left: Operand, right: Operand, d: Tensor, operator: str
) -> None:
    pack = {1: _bf16_plane, 2: _heal_planes, 3: _exact_planes}[tile.planes]
    a = pack(rt, left, tile.rows, operator)
    b = pack(rt, right, tile.columns, operator)
    grid = (STRIP * b.tiles, _ceil(a.tiles, STRIP), left.batch)
    scaling = () if a.amax is None or b.amax is None else (a.stride, b.stride, a.amax, b.amax)
    rt.launch(
        tile.kernel, grid, tile.threads,
        a.data, b.data, *scaling, d, np.int64(left.rows), np.int64(right.rows),
        np.int32(a.data.shape[-1]), np.int32(a.tiles), np.int32(b.tiles),
        *rt.fault(operator), shared=tile.shared,
    )  # fmt: skip


def _bf16_plane(rt: Runtime, x: Operand, tile_rows: int, operator: str) -> _Planes:
    data, tiles = _room(rt, x, tile_rows, 1, BLOCK_K)
    rows, k = data.shape[-2:]
    sizes = (np.int64(rows), np.int64(k))
    args = (*x.arguments(), data, *sizes, *rt.fault(operator))
    rt.launch("bf16_plane", _pack_grid(x, rows, k), PACK_THREADS, *args)
    return _Planes(data=data, amax=None, tiles=tiles)


def _heal_planes(rt: Runtime, x: Operand, tile_rows: int, operator: str) -> _Planes:
    data, tiles = _room(rt, x, tile_rows, 2, BLOCK_K)
    rows, k = data.shape[-2:]
    amax = rt.zeros(x.batch, rows, dtype=torch.int32)
    grid = (rows // PACK_ROWS * _ceil(x.k, MAXIMA_SLICE), x.batch, 1)
    sizes = (np.int64(rows), np.int64(MAXIMA_SLICE))
    args = (*x.arguments(), amax, *sizes, *rt.fault(operator))
    rt.launch("row_maxima", grid, PACK_THREADS, *args)
    args = (*x.arguments(), amax, data, np.int64(rows), np.int64(k))
    rt.launch("heal_planes", _pack_grid(x, rows, k), PACK_THREADS, *args)
    return _Planes(data=data, amax=amax, tiles=tiles)


def _exact_planes(rt: Runtime, x: Operand, tile_rows: int, operator: str) -> _Planes:
    data, tiles = _room(rt, x, tile_rows, 3, PACK_K)
    rows, k = data.shape[-2:]
    amax = rt.empty(x.batch, k // PACK_K, rows, dtype=torch.int32)
    sizes = (np.int64(rows), np.int64(k))
    args = (*x.arguments(), amax, data, *sizes, *rt.fault(operator))
    rt.launch("exact_planes", _pack_grid(x, rows, k), PACK_THREADS, *args)
    return _Planes(data=data, amax=amax, tiles=tiles)


def _room(rt: Runtime, x: Operand, tile_rows: int, planes: int, block_k: int) -> tuple[Tensor, int]:
    """Allocate planes of whole tiles and whole blocks of K; return them and the tiles."""
    tiles = _ceil(x.rows, tile_rows)
    shape = (planes, x.batch, tiles * tile_rows, _ceil(x.k, block_k) * block_k)
    return rt.empty(*shape, dtype=torch.uint16), tiles


def _pack_grid(x: Operand, rows: int, k: int) -> tuple[int, int, int]:
    return (rows // PACK_ROWS * _ceil(k, PACK_K), x.batch, 1)


def _merged(dimensions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join neighbouring (size, stride) dimensions that step through memory as one."""
    merged: list[tuple[int, int]] = []
    for size, stride in dimensions:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
