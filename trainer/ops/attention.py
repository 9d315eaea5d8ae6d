"""What attention needs beside its two products: the rotary embedding and the causal softmax.

Formulas: docs/formats/operators.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from emulator_ext import pinned
from trainer.ops import tensors, threads
from trainer.ops.registry import register


def rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:  # noqa: FBT001
    """Rotate the pairs (i, i + D/2) of x f32 [..., T, D]; cos and sin are [T, D/2].

    `inverse` rotates back, which is also the gradient.
    """
    return _rope(x, cos, sin, inverse)  # type: ignore[no-any-return]


def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    """Return softmax(scores * scale) of each row of f32 [..., T, T] up to its diagonal.

    Entries above the diagonal are 0 and never read. `scale` is rounded to f32.
    """
    return _causal_softmax(scores, scale)  # type: ignore[no-any-return]


def causal_softmax_backward(p: Tensor, dp: Tensor, scale: float) -> Tensor:
    """Return the gradient of the scores, [..., T, T], zero above the diagonal."""
    return _causal_softmax_backward(p, dp, scale)  # type: ignore[no-any-return]


def _rope_cpu(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:  # noqa: FBT001
    rows, cosines, sines = tensors.f32("rope", x, cos, sin)
    return tensors.tensor_of(pinned.rope(rows, cosines, sines, inverse, threads=threads.current()))


def _rope_fake(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:  # noqa: FBT001
    del inverse
    tensors.require("rope", torch.float32, x, cos, sin)
    table = (x.shape[-2], x.shape[-1] // 2) if x.ndim >= 2 and x.shape[-1] % 2 == 0 else None
    fits = tuple(cos.shape) == tuple(sin.shape) == table
    tensors.require_shape("rope", holds=fits, found=f"{tuple(x.shape)} {tuple(cos.shape)}")
    return x.new_empty(x.shape)


class _RopeGradient:
    def save(self, ctx: Any, args: tuple[Any, ...], result: Tensor) -> None:
        del result
        ctx.save_for_backward(args[1], args[2])
        ctx.inverse = args[3]

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,) = grads
        dx = None if g is None else _rope(g, *ctx.saved_tensors, not ctx.inverse)
        return dx, None, None, None


def _softmax_cpu(scores: Tensor, scale: float) -> Tensor:
    (rows,) = tensors.f32("causal_softmax", scores)
    return tensors.tensor_of(pinned.causal_softmax(rows, scale, threads=threads.current()))


def _softmax_fake(scores: Tensor, scale: float) -> Tensor:
    del scale
    tensors.require("causal_softmax", torch.float32, scores)
    fits = scores.ndim >= 2 and scores.shape[-1] == scores.shape[-2]
    tensors.require_shape("causal_softmax", holds=fits, found=f"{tuple(scores.shape)}")
    return scores.new_empty(scores.shape)


def _softmax_backward_cpu(p: Tensor, dp: Tensor, scale: float) -> Tensor:
    rows, grad = tensors.f32("causal_softmax_backward", p, dp)
    dscores = pinned.causal_softmax_backward(rows, grad, scale, threads=threads.current())
    return tensors.tensor_of(dscores)


def _softmax_backward_fake(p: Tensor, dp: Tensor, scale: float) -> Tensor:
    del scale
    tensors.require("causal_softmax_backward", torch.float32, p, dp)
    return p.new_empty(p.shape)


class _SoftmaxGradient:
    def save(self, ctx: Any, args: tuple[Any, ...], result: Tensor) -> None:
        ctx.save_for_backward(result)
        ctx.scale = args[1]

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,) = grads
        p = ctx.saved_tensors[0]
        return None if g is None else _causal_softmax_backward(p, g, ctx.scale), None


_rope = register(
    "rope(Tensor x, Tensor cos, Tensor sin, bool inverse) -> Tensor",
    _rope_cpu,
    _rope_fake,
    _RopeGradient(),
)
_causal_softmax_backward = register(
    "causal_softmax_backward(Tensor p, Tensor dp, float scale) -> Tensor",
    _softmax_backward_cpu,
    _softmax_backward_fake,
)
_causal_softmax = register(
    "causal_softmax(Tensor scores, float scale) -> Tensor",
    _softmax_cpu,
    _softmax_fake,
    _SoftmaxGradient(),
)
