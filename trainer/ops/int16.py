"""INT16 vectors: keys and values of a cache, and the exact products of attention over them.

A vector of the last axis is held as int16 values q by their bits (uint16 "codes") and one
uint8 scale: x ~ q * 2^(scale - 127). Sums of products of q are integers, exact on every
tensor core. Formulas: docs/formats/operators.md.

A cache is made of codes, and nothing over codes has a derivative. Training holds queries, keys
and values in f32 (`int16_hold`) and multiplies what is held (`int16_dot`, `int16_blend`): the
same products, with straight-through gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from emulator_ext import pinned
from trainer.ops import tensors, threads
from trainer.ops.matmul import gemm
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


def int16_hold(x: Tensor) -> Tensor:
    """Return what the INT16 vectors of x f32 [..., K] stand for; the gradient is passed on."""
    return _hold(x)  # type: ignore[no-any-return]


def int16_dot(q: Tensor, k: Tensor, profile: str, arch: str) -> Tensor:
    """Return the INT16 scores of held rows: f32 [..., M, K] and [..., N, K] -> [..., M, N].

    The gradients are GEMMs of the profile over the held values.
    """
    return _dot(q, k, profile, arch)  # type: ignore[no-any-return]


def int16_blend(p: Tensor, v: Tensor, profile: str, arch: str) -> Tensor:
    """Return the INT16 mixture of held rows: f32 [..., M, N] and [..., N, K] -> [..., M, K].

    The gradients are GEMMs of the profile over p and the held values.
    """
    return _blend(p, v, profile, arch)  # type: ignore[no-any-return]


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


def _hold_cpu(x: Tensor) -> Tensor:
    (rows,) = tensors.f32("int16_hold", x)
    codes, scales = pinned.int16_quantise(rows, threads=threads.current())
    return tensors.tensor_of(pinned.int16_dequantise(codes, scales, threads=threads.current()))


def _hold_fake(x: Tensor) -> Tensor:
    tensors.require("int16_hold", torch.float32, x)
    return x.new_empty(x.shape)


def _dot_cpu(q: Tensor, k: Tensor, profile: str, arch: str) -> Tensor:
    del profile, arch
    left, right = tensors.f32("int16_dot", q, k)
    codes, scales = pinned.int16_quantise(right, threads=threads.current())
    scores = pinned.int16_scores(left, codes, scales, threads=threads.current())
    return tensors.tensor_of(scores)


def _dot_fake(q: Tensor, k: Tensor, profile: str, arch: str) -> Tensor:
    del profile, arch
    _require_pair("int16_dot", q, k, q.shape[-1] == k.shape[-1])
    return q.new_empty((*q.shape[:-1], k.shape[-2]))


def _blend_cpu(p: Tensor, v: Tensor, profile: str, arch: str) -> Tensor:
    del profile, arch
    left, right = tensors.f32("int16_blend", p, v)
    codes, scales = pinned.int16_quantise(right, threads=threads.current())
    mixed = pinned.int16_mix(left, codes, scales, threads=threads.current())
    return tensors.tensor_of(mixed)


def _blend_fake(p: Tensor, v: Tensor, profile: str, arch: str) -> Tensor:
    del profile, arch
    _require_pair("int16_blend", p, v, p.shape[-1] == v.shape[-2])
    return p.new_empty((*p.shape[:-1], v.shape[-1]))


def _require_pair(op: str, a: Tensor, b: Tensor, meets: bool) -> None:  # noqa: FBT001
    """Check two f32 operands, for fake tensors."""
    tensors.require(op, torch.float32, a, b)
    fits = meets and a.ndim >= 2 and a.shape[:-2] == b.shape[:-2]
    tensors.require_shape(op, holds=fits, found=f"{tuple(a.shape)} {tuple(b.shape)}")


class _HoldGradient:
    def save(self, ctx: Any, args: tuple[Any, ...], result: Tensor) -> None:
        del ctx, args, result

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        del ctx
        return grads


class _DotGradient:
    def save(self, ctx: Any, args: tuple[Any, ...], result: Tensor) -> None:
        del result
        ctx.save_for_backward(args[0], args[1])
        ctx.numerics = args[2:]

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,) = grads
        q, k = ctx.saved_tensors
        if g is None:
            return None, None, None, None
        dq = gemm(g, k, *ctx.numerics)
        return dq, gemm(g.transpose(-1, -2), q, *ctx.numerics), None, None


class _BlendGradient:
    def save(self, ctx: Any, args: tuple[Any, ...], result: Tensor) -> None:
        del result
        ctx.save_for_backward(args[0], args[1])
        ctx.numerics = args[2:]

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,) = grads
        p, v = ctx.saved_tensors
        if g is None:
            return None, None, None, None
        dp = gemm(g, v.transpose(-1, -2), *ctx.numerics)
        return dp, gemm(p.transpose(-1, -2), g, *ctx.numerics), None, None


_quantise = register(
    "int16_quantise(Tensor x) -> (Tensor, Tensor)",
    _quantise_cpu,
    _quantise_fake,
)
_scores = register(
    "int16_scores(Tensor q, Tensor k, Tensor k_scale) -> Tensor",
    _scores_cpu,
    _scores_fake,
)
_mix = register(
    "int16_mix(Tensor p, Tensor v, Tensor v_scale) -> Tensor",
    _mix_cpu,
    _mix_fake,
)
_hold = register("int16_hold(Tensor x) -> Tensor", _hold_cpu, _hold_fake, _HoldGradient())
_dot = register(
    "int16_dot(Tensor q, Tensor k, str profile, str arch) -> Tensor",
    _dot_cpu,
    _dot_fake,
    _DotGradient(),
)
_blend = register(
    "int16_blend(Tensor p, Tensor v, str profile, str arch) -> Tensor",
    _blend_cpu,
    _blend_fake,
    _BlendGradient(),
)
