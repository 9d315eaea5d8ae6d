"""The matrix product, by a profile of NUMERICS section 2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import emulator_ext
from trainer.ops import tensors, threads
from trainer.ops.registry import register


def gemm(a: Tensor, b: Tensor, profile: str, arch: str) -> Tensor:
    """Return a b, f32 [..., M, K] x [..., K, N] -> [..., M, N], any strides.

    Leading dimensions must be equal. The gradients are products of the same profile over
    transposed views.

    Raises:
        OperandError: dtype or shapes do not fit.
        UnsupportedError: no such profile or architecture.
        NonFiniteError: an operand or the product holds NaN or Inf.

    """
    return _gemm(a, b, profile, arch)  # type: ignore[no-any-return]


def _cpu(a: Tensor, b: Tensor, profile: str, arch: str) -> Tensor:
    x, y = tensors.f32("gemm", a, b)
    product = emulator_ext.gemm(x, y, profile=profile, arch=arch, threads=threads.current())
    return tensors.tensor_of(product)


def _fake(a: Tensor, b: Tensor, profile: str, arch: str) -> Tensor:
    del profile, arch
    tensors.require("gemm", torch.float32, a, b)
    fits = a.ndim >= 2 and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
    tensors.require_shape("gemm", holds=fits, found=f"{tuple(a.shape)} {tuple(b.shape)}")
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


class _Gradient:
    def save(self, ctx: Any, args: tuple[Any, ...], result: Tensor) -> None:
        del result
        ctx.save_for_backward(args[0], args[1])
        ctx.numerics = args[2:]

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,) = grads
        a, b = ctx.saved_tensors
        da = db = None
        if g is not None and ctx.needs_input_grad[0]:
            da = _gemm(g, b.transpose(-1, -2), *ctx.numerics)
        if g is not None and ctx.needs_input_grad[1]:
            db = _gemm(a.transpose(-1, -2), g, *ctx.numerics)
        return da, db, None, None


_gemm = register(
    "gemm(Tensor a, Tensor b, str profile, str arch) -> Tensor", _cpu, _fake, _Gradient()
)
