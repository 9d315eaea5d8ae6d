"""INT16 vectors: keys and values of a cache, and the exact products of attention over them.

A vector of the last axis is held as int16 values q by their bits (uint16 "codes") and one
uint8 scale: x ~ q * 2^(scale - 127). Sums of products of q are integers, exact on every
tensor core. Formulas: docs/formats/operators.md. None has a derivative.
"""

from __future__ import annotations

import torch
from torch import Tensor

from emulator_ext import pinned
from trainer.ops import tensors, threads
from trainer.ops.registry import register


def int16_quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes uint16 [..., K] and scales uint8 [..., 1] of x f32 [..., K]."""
    return _quantise(x)  # type: ignore[no-any-return]


def int16_scores(q: Tensor, k: Tensor, k_scale: Tensor) -> Tensor:
    """Return the dot products of rows, f32 [..., M, N].

    q f32 [..., M, K] is quantised first; k uint16 [..., N, K], k_scale uint8 [..., N, 1].
    """
    return _scores(q, k, k_scale)  # type: ignore[no-any-return]


def int16_mix(p: Tensor, v: Tensor, v_scale: Tensor) -> Tensor:
    """Return p v, f32 [..., M, K]: p f32 [..., M, N], v uint16 [..., N, K], v_scale [..., N, 1].

    The scales are folded into p, whose rows are then held in 24 bits.
    """
    return _mix(p, v, v_scale)  # type: ignore[no-any-return]


def _quantise_cpu(x: Tensor) -> tuple[Tensor, Tensor]:
    (rows,) = tensors.f32("int16_quantise", x)
    codes, scales = pinned.int16_quantise(rows, threads=threads.current())
    return tensors.tensor_of(codes), tensors.tensor_of(scales[..., None])


def _quantise_fake(x: Tensor) -> tuple[Tensor, Tensor]:
    tensors.require("int16_quantise", torch.float32, x)
    tensors.require_shape("int16_quantise", holds=x.ndim >= 1, found=f"{tuple(x.shape)}")
    scales = x.new_empty((*x.shape[:-1], 1), dtype=torch.uint8)
    return x.new_empty(x.shape, dtype=torch.uint16), scales


def _scores_cpu(q: Tensor, k: Tensor, k_scale: Tensor) -> Tensor:
    (rows,) = tensors.f32("int16_scores", q)
    codes, scales = tensors.int16("int16_scores", k, k_scale)
    scores = pinned.int16_scores(rows, codes, scales[..., 0], threads=threads.current())
    return tensors.tensor_of(scores)


def _scores_fake(q: Tensor, k: Tensor, k_scale: Tensor) -> Tensor:
    _require_stacks("int16_scores", q, k, k_scale, q.shape[-1] == k.shape[-1])
    return q.new_empty((*q.shape[:-1], k.shape[-2]))


def _mix_cpu(p: Tensor, v: Tensor, v_scale: Tensor) -> Tensor:
    (rows,) = tensors.f32("int16_mix", p)
    codes, scales = tensors.int16("int16_mix", v, v_scale)
    mixed = pinned.int16_mix(rows, codes, scales[..., 0], threads=threads.current())
    return tensors.tensor_of(mixed)


def _mix_fake(p: Tensor, v: Tensor, v_scale: Tensor) -> Tensor:
    _require_stacks("int16_mix", p, v, v_scale, p.shape[-1] == v.shape[-2])
    return p.new_empty((*p.shape[:-1], v.shape[-1]))


def _require_stacks(op: str, x: Tensor, codes: Tensor, scales: Tensor, meets: bool) -> None:  # noqa: FBT001
    """Check an f32 operand against INT16 vectors, for fake tensors."""
    tensors.require(op, torch.float32, x)
    tensors.require(op, torch.uint16, codes)
    tensors.require(op, torch.uint8, scales)
    leading = x.ndim >= 2 and x.shape[:-2] == codes.shape[:-2]
    fits = meets and leading and scales.shape == (*codes.shape[:-1], 1)
    found = f"{tuple(x.shape)} {tuple(codes.shape)} {tuple(scales.shape)}"
    tensors.require_shape(op, holds=fits, found=found)


_quantise = register(
    "int16_quantise(Tensor x) -> (Tensor, Tensor)",
    _quantise_cpu,
    _quantise_fake,
    emulated_only=True,
)
_scores = register(
    "int16_scores(Tensor q, Tensor k, Tensor k_scale) -> Tensor",
    _scores_cpu,
    _scores_fake,
    emulated_only=True,
)
_mix = register(
    "int16_mix(Tensor p, Tensor v, Tensor v_scale) -> Tensor",
    _mix_cpu,
    _mix_fake,
    emulated_only=True,
)
