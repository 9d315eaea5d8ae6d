"""Gradients of the pinned operators against float64 autograd of the textbook formulas.

The tolerance is on the largest error relative to the largest gradient: 2e-6, about ten times
what f32 rounding was measured to give at these sizes (at most 2e-7 for any operand).
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from emulator_ext import UnsupportedError
from trainer import ops

RELATIVE = 2e-6


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator)


def integers(size, *shape):
    generator = torch.Generator().manual_seed(size)
    return torch.randint(0, size, shape, generator=generator, dtype=torch.int32)


def textbook_rmsnorm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w


def textbook_rope(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def textbook_softmax(scores):
    above = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax((scores * 0.25).masked_fill(above, -torch.inf), dim=-1)


def textbook_swiglu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


ANGLES = torch.arange(12 * 4).reshape(12, 4) * 0.1
COS, SIN = ANGLES.cos(), ANGLES.sin()
TOKENS, TARGETS = integers(11, 40), integers(300, 40)

# name: pinned, textbook, differentiable operands
CASES = {
    "gemm": (
        lambda a, b: ops.gemm(a, b, "heal", "hopper"),
        torch.matmul,
        (normal(2, 9, 40), normal(2, 40, 17)),
    ),
    "gemm of transposed views": (
        lambda a, b: ops.gemm(a.transpose(0, 1), b.transpose(0, 1), "heal", "hopper"),
        lambda a, b: a.T @ b.T,
        (normal(40, 9), normal(17, 40)),
    ),
    "rmsnorm": (
        lambda x, w: ops.rmsnorm(x, w, 1e-5)[0],
        textbook_rmsnorm,
        (normal(33, 300), normal(300)),
    ),
    "rope": (
        lambda x: ops.rope(x, COS, SIN, inverse=False),
        lambda x: textbook_rope(x, COS.double(), SIN.double()),
        (normal(2, 3, 12, 8),),
    ),
    "causal_softmax": (
        lambda s: ops.causal_softmax(s, 0.25),
        textbook_softmax,
        (normal(2, 3, 33, 33) * 3,),
    ),
    "swiglu": (ops.swiglu, textbook_swiglu, (normal(20, 96) * 3,)),
    "embedding": (
        lambda t: ops.embedding(TOKENS, t),
        lambda t: functional.embedding(TOKENS.long(), t),
        (normal(11, 24),),
    ),
    "cross_entropy": (
        lambda x: ops.cross_entropy(x, TARGETS),
        lambda x: functional.cross_entropy(x, TARGETS.long()),
        (normal(40, 300) * 3,),
    ),
}


def value_and_gradients(function, operands, weights):
    leaves = [t.clone().requires_grad_() for t in operands]
    value = function(*leaves)
    return value, torch.autograd.grad(value, leaves, weights)


def relative_error(got, exact):
    return ((got.double() - exact).abs().max() / exact.abs().max()).item()


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_the_textbook_ones(name):
    """Value and every gradient agree with float64 autograd to f32 rounding."""
    pinned, textbook, operands = CASES[name]
    weights = normal(*textbook(*operands).shape, seed=1)
    value, gradients = value_and_gradients(pinned, operands, weights)
    exact, expected = value_and_gradients(
        textbook, [t.double() for t in operands], weights.double()
    )
    assert relative_error(value.detach(), exact.detach()) < RELATIVE
    for got, want in zip(gradients, expected, strict=True):
        assert got.dtype == torch.float32
        assert relative_error(got, want) < RELATIVE


def test_rope_inverse_undoes_the_rotation():
    """Rotating back gives the operand, to f32 rounding, and its gradient rotates forward."""
    x = normal(3, 12, 8).requires_grad_()
    back = ops.rope(ops.rope(x, COS, SIN, inverse=False), COS, SIN, inverse=True)
    assert relative_error(back.detach(), x.detach().double()) < RELATIVE
    (gradient,) = torch.autograd.grad(ops.rope(x, COS, SIN, inverse=True), x, x.detach())
    assert torch.equal(gradient, ops.rope(x.detach(), COS, SIN, inverse=False))


def test_adamw_is_torchs_adamw():
    """Three steps of clipping and AdamW agree with torch's in float64, to f32 rounding."""
    p, m, v = normal(30, 7), torch.zeros(30, 7), torch.zeros(30, 7)
    reference = torch.nn.Parameter(p.double())
    optimizer = torch.optim.AdamW(
        [reference], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
    )
    for step in (1, 2, 3):
        g = normal(30, 7, seed=step)
        _, clip = ops.clip_coefficient(ops.sum_squares(g), 1.0)
        scalars = torch.tensor([0.01, 1 / (1 - 0.9**step), 1 / (1 - 0.95**step)])
        p, m, v = ops.adamw(p, g, m, v, clip, scalars, 0.9, 0.95, 1e-8, 0.1)
        reference.grad = g.double()
        torch.nn.utils.clip_grad_norm_([reference], 1.0)
        optimizer.step()
    assert relative_error(p, reference.detach()) < RELATIVE


MATRIX = normal(3, 4).requires_grad_()
REFUSALS = {
    "rmsnorm_backward": lambda: ops.rmsnorm_backward(MATRIX, MATRIX, MATRIX[0], MATRIX[:, 0]),
    "causal_softmax_backward": lambda: ops.causal_softmax_backward(MATRIX, MATRIX, 1.0),
    "swiglu_backward": lambda: ops.swiglu_backward(MATRIX, MATRIX),
    "embedding_backward": lambda: ops.embedding_backward(TOKENS[:3], MATRIX, 11),
    "cross_entropy_backward": lambda: ops.cross_entropy_backward(MATRIX.sum(), MATRIX, TOKENS[:3]),
    "all_reduce": lambda: ops.all_reduce(MATRIX, 1),
    "sum_squares": lambda: ops.sum_squares(MATRIX),
    "clip_coefficient": lambda: ops.clip_coefficient(MATRIX.sum(), 1.0),
    "adamw": lambda: ops.adamw(
        MATRIX, MATRIX, MATRIX, MATRIX, MATRIX.sum(), MATRIX[0, :3], 0.9, 0.9, 1e-8, 0.0
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_operators_without_derivative_say_so(name):
    """Differentiating through a backward or optimiser operator is refused by name."""
    with pytest.raises(UnsupportedError, match=f"bitwitness::{name} has no derivative"):
        REFUSALS[name]()


def test_second_derivatives_are_refused():
    """A backward pass that would itself be differentiated is refused, not silently cut."""
    x = normal(4, 6).requires_grad_()
    with pytest.raises(UnsupportedError, match="swiglu_backward has no derivative"):
        torch.autograd.grad(ops.swiglu(x).sum(), x, create_graph=True)


def test_gradient_of_an_unused_first_result():
    """The reciprocal of RMSNorm's root mean square carries no gradient."""
    x = normal(4, 6).requires_grad_()
    y, rstd = ops.rmsnorm(x, torch.ones(6), 1e-5)
    assert y.requires_grad
    assert not rstd.requires_grad
    expected = torch.rsqrt((x.detach().double() ** 2).mean(-1) + 1e-5)
    assert relative_error(rstd, expected) < RELATIVE
