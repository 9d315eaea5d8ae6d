"""From gradients to the next state: the ranks' sum, clipping and AdamW. None has a derivative.

Formulas: docs/formats/operators.md.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from emulator_ext import pinned
from emulator_ext.errors import OperandError
from trainer.ops import collective, tensors, threads
from trainer.ops.registry import register


def all_reduce(flat: Tensor, world: int) -> Tensor:
    """Return the sum of f32 [n] over `world` ranks: a copy for one rank.

    Raises:
        UnsupportedError: several ranks and no communicator; see `trainer.ops.collective`.

    """
    return _all_reduce(flat, world)  # type: ignore[no-any-return]


def sum_squares(x: Tensor) -> Tensor:
    """Return the sum of squares of all elements, f32 []."""
    return _sum_squares(x)  # type: ignore[no-any-return]


def clip_coefficient(sum_squares: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
    """Return norm = sqrt(sum_squares) and min(1, max_norm / norm), f32 [] each."""
    return _clip_coefficient(sum_squares, max_norm)  # type: ignore[no-any-return]


def adamw(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    coefficient: Tensor,
    scalars: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return parameter and moments after a step; p, g, m, v f32 of one shape.

    `coefficient` f32 [] scales the gradient; `scalars` f32 [3] are the learning rate and the
    two bias corrections. The four attributes are rounded to f32.
    """
    return _adamw(  # type: ignore[no-any-return]
        p, g, m, v, coefficient, scalars, beta1, beta2, eps, weight_decay
    )


def _all_reduce_cpu(flat: Tensor, world: int) -> Tensor:
    (own,) = tensors.f32("all_reduce", flat)
    if world == 1:
        return tensors.tensor_of(own.copy())
    total = collective.current(world).all_reduce(np.ascontiguousarray(own))
    if total.shape != own.shape or total.dtype != own.dtype:
        msg = f"bitwitness::all_reduce: the communicator returned {total.dtype} {total.shape}"
        raise OperandError(msg)
    return tensors.tensor_of(total.copy() if np.may_share_memory(total, own) else total)


def _all_reduce_fake(flat: Tensor, world: int) -> Tensor:
    del world
    tensors.require("all_reduce", torch.float32, flat)
    return flat.new_empty(flat.shape)


def _sum_squares_cpu(x: Tensor) -> Tensor:
    (elements,) = tensors.f32("sum_squares", x)
    return tensors.tensor_of(pinned.sum_squares(elements, threads=threads.current()))


def _sum_squares_fake(x: Tensor) -> Tensor:
    tensors.require("sum_squares", torch.float32, x)
    return x.new_empty(())


def _clip_coefficient_cpu(sum_squares: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
    (total,) = tensors.f32("clip_coefficient", sum_squares)
    norm, coefficient = pinned.clip_coefficient(total, max_norm)
    return tensors.tensor_of(norm), tensors.tensor_of(coefficient)


def _clip_coefficient_fake(sum_squares: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
    del max_norm
    tensors.require("clip_coefficient", torch.float32, sum_squares)
    return sum_squares.new_empty(()), sum_squares.new_empty(())


def _adamw_cpu(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    coefficient: Tensor,
    scalars: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    old_p, grad, old_m, old_v, clip, rates = tensors.f32("adamw", p, g, m, v, coefficient, scalars)
    hyper = (beta1, beta2, eps, weight_decay)
    new_p, new_m, new_v = pinned.adamw(
        old_p, grad, old_m, old_v, clip, rates, *hyper, threads=threads.current()
    )
    return tensors.tensor_of(new_p), tensors.tensor_of(new_m), tensors.tensor_of(new_v)


def _adamw_fake(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    coefficient: Tensor,
    scalars: Tensor,
    *hyper: float,
) -> tuple[Tensor, Tensor, Tensor]:
    del hyper
    tensors.require("adamw", torch.float32, p, g, m, v, coefficient, scalars)
    fits = p.shape == g.shape == m.shape == v.shape
    tensors.require_shape("adamw", holds=fits, found=f"{[tuple(t.shape) for t in (p, g, m, v)]}")
    return p.new_empty(p.shape), p.new_empty(p.shape), p.new_empty(p.shape)


_all_reduce = register(
    "all_reduce(Tensor flat, int world) -> Tensor", _all_reduce_cpu, _all_reduce_fake
)
_sum_squares = register("sum_squares(Tensor x) -> Tensor", _sum_squares_cpu, _sum_squares_fake)
_clip_coefficient = register(
    "clip_coefficient(Tensor sum_squares, float max_norm) -> (Tensor, Tensor)",
    _clip_coefficient_cpu,
    _clip_coefficient_fake,
)
_adamw = register(
    "adamw(Tensor p, Tensor g, Tensor m, Tensor v, Tensor coefficient, Tensor scalars, "
    "float beta1, float beta2, float eps, float weight_decay) -> (Tensor, Tensor, Tensor)",
    _adamw_cpu,
    _adamw_fake,
)
