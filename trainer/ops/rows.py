"""Operators on rows: RMSNorm and SwiGLU. Formulas: docs/formats/operators.md."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from emulator_ext import pinned
from trainer.ops import tensors, threads
from trainer.ops.registry import register


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x / rms(x) * weight and 1 / rms(x): f32 [R, D], [D] -> [R, D], [R].

    The second result has no gradient. `eps` is rounded to f32.
    """
    return _rmsnorm(x, weight, eps)  # type: ignore[no-any-return]


def rmsnorm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x [R, D] and weight [D]."""
    return _rmsnorm_backward(dy, x, weight, rstd)  # type: ignore[no-any-return]


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up: f32 [R, 2F], the gate first -> [R, F]."""
    return _swiglu(gate_up)  # type: ignore[no-any-return]


def swiglu_backward(dy: Tensor, gate_up: Tensor) -> Tensor:
    """Return the gradient of gate_up [R, 2F] for dy [R, F]."""
    return _swiglu_backward(dy, gate_up)  # type: ignore[no-any-return]


def _rmsnorm_cpu(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows, scale = tensors.f32("rmsnorm", x, weight)
    y, rstd = pinned.rmsnorm(rows, scale, eps, threads=threads.current())
    return tensors.tensor_of(y), tensors.tensor_of(rstd)


def _rmsnorm_fake(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    del eps
    tensors.require("rmsnorm", torch.float32, x, weight)
    fits = x.ndim == 2 and weight.shape == x.shape[1:]
    tensors.require_shape("rmsnorm", holds=fits, found=f"{tuple(x.shape)} {tuple(weight.shape)}")
    return x.new_empty(x.shape), x.new_empty(x.shape[:1])


def _rmsnorm_backward_cpu(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    grad, rows, scale, reciprocal = tensors.f32("rmsnorm_backward", dy, x, weight, rstd)
    dx, dweight = pinned.rmsnorm_backward(grad, rows, scale, reciprocal, threads=threads.current())
    return tensors.tensor_of(dx), tensors.tensor_of(dweight)


def _rmsnorm_backward_fake(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    tensors.require("rmsnorm_backward", torch.float32, dy, x, weight, rstd)
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


class _RmsnormGradient:
    def save(self, ctx: Any, args: tuple[Any, ...], result: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(args[0], args[1], result[1])
        ctx.mark_non_differentiable(result[1])

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return None, None, None
        dx, dweight = _rmsnorm_backward(grads[0], *ctx.saved_tensors)
        return dx, dweight, None


def _swiglu_cpu(gate_up: Tensor) -> Tensor:
    (rows,) = tensors.f32("swiglu", gate_up)
    return tensors.tensor_of(pinned.swiglu(rows, threads=threads.current()))


def _swiglu_fake(gate_up: Tensor) -> Tensor:
    tensors.require("swiglu", torch.float32, gate_up)
    fits = gate_up.ndim == 2 and gate_up.shape[1] % 2 == 0
    tensors.require_shape("swiglu", holds=fits, found=f"{tuple(gate_up.shape)}")
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


def _swiglu_backward_cpu(dy: Tensor, gate_up: Tensor) -> Tensor:
    grad, rows = tensors.f32("swiglu_backward", dy, gate_up)
    return tensors.tensor_of(pinned.swiglu_backward(grad, rows, threads=threads.current()))


def _swiglu_backward_fake(dy: Tensor, gate_up: Tensor) -> Tensor:
    tensors.require("swiglu_backward", torch.float32, dy, gate_up)
    return gate_up.new_empty(gate_up.shape)


class _SwigluGradient:
    def save(self, ctx: Any, args: tuple[Any, ...], result: Tensor) -> None:
        del result
        ctx.save_for_backward(args[0])

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,) = grads
        return (None if g is None else _swiglu_backward(g, *ctx.saved_tensors),)


_rmsnorm_backward = register(
    "rmsnorm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)",
    _rmsnorm_backward_cpu,
    _rmsnorm_backward_fake,
)
_rmsnorm = register(
    "rmsnorm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    _rmsnorm_cpu,
    _rmsnorm_fake,
    _RmsnormGradient(),
)
_swiglu_backward = register(
    "swiglu_backward(Tensor dy, Tensor gate_up) -> Tensor",
    _swiglu_backward_cpu,
    _swiglu_backward_fake,
)
_swiglu = register("swiglu(Tensor gate_up) -> Tensor", _swiglu_cpu, _swiglu_fake, _SwigluGradient())
