"""The operators of decoding as torch operators."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from emulator_ext.errors import OperandError, UnsupportedError
from trainer import ops

GENERATOR = torch.Generator().manual_seed(5)


def normal(*shape):
    return torch.randn(shape, generator=GENERATOR)


CODES, SCALES = ops.int16_quantise(normal(2, 3, 7, 8))
POSITION = torch.tensor([4], dtype=torch.int32)
TOKENS = torch.tensor([[5, 6, 7, 8, 9, -1, -1], [5, 6, 7, 8, 9, 3, -1]], dtype=torch.int32)

NUMERICS = ("fp32", "hopper")

CALLS = {
    "int16_hold": (normal(2, 3, 8),),
    "int16_dot": (normal(2, 3, 5, 8), normal(2, 3, 7, 8), *NUMERICS),
    "int16_blend": (normal(2, 3, 5, 7), normal(2, 3, 7, 8), *NUMERICS),
    "int16_quantise": (normal(2, 3, 8),),
    "int16_scores": (normal(2, 3, 5, 8), CODES, SCALES),
    "int16_mix": (normal(2, 3, 5, 7), CODES, SCALES),
    "prefix_softmax": (normal(2, 3, 1, 7), POSITION, 0.3),
    "cache_write": (CODES, CODES[:, :, :1], POSITION),
    "token_at": (TOKENS, POSITION),
    "greedy": (normal(2, 11), TOKENS, POSITION),
}


@pytest.mark.parametrize("name", CALLS)
def test_torch_checks_the_registration(name):
    """Torch's own checker finds schema and fake registrations consistent."""
    utilities = ("test_schema", "test_faketensor", "test_autograd_registration")
    op = getattr(torch.ops.bitwitness, name).default
    differentiable = name in {"int16_hold", "int16_dot", "int16_blend"}
    arguments = [
        a.clone().requires_grad_() if differentiable and isinstance(a, torch.Tensor) else a
        for a in CALLS[name]
    ]
    torch.library.opcheck(op, tuple(arguments), test_utils=utilities)


@pytest.mark.parametrize("name", ["int16_quantise", "int16_scores", "int16_mix"])
def test_there_is_no_derivative(name):
    """Differentiating is refused by name."""
    x, *rest = CALLS[name]
    with pytest.raises(UnsupportedError, match=f"{name} has no derivative"):
        getattr(ops, name)(x.clone().requires_grad_(), *rest)


def test_held_products_are_those_of_the_cache():
    """Training's products over held values have the bits of the cache's over codes."""
    q, k = normal(2, 3, 5, 8), normal(2, 3, 7, 8)
    codes, scales = ops.int16_quantise(k)
    held = ops.int16_hold(k)
    for x in (q, ops.int16_hold(q)):
        scores = ops.int16_dot(x, held, *NUMERICS)
        assert torch.equal(scores, ops.int16_scores(q, codes, scales))
    p = normal(2, 3, 5, 7).abs()
    assert torch.equal(ops.int16_blend(p, held, *NUMERICS), ops.int16_mix(p, codes, scales))


def test_gradients_pass_straight_through():
    """Holding passes the gradient on; products have the GEMMs' gradients at the held values."""
    q, k = normal(2, 5, 8).requires_grad_(), normal(2, 7, 8).requires_grad_()
    g = normal(2, 5, 7)
    held_q, held_k = ops.int16_hold(q), ops.int16_hold(k)
    scores = ops.int16_dot(held_q, held_k, *NUMERICS)
    dq, dk = torch.autograd.grad(scores, (q, k), g)
    assert torch.equal(dq, ops.gemm(g, held_k.detach(), *NUMERICS))
    assert torch.equal(dk, ops.gemm(g.transpose(-1, -2), held_q.detach(), *NUMERICS))
    p, v, u = normal(2, 5, 7).requires_grad_(), normal(2, 7, 8).requires_grad_(), normal(2, 5, 8)
    held_v = ops.int16_hold(v)
    dp, dv = torch.autograd.grad(ops.int16_blend(p, held_v, *NUMERICS), (p, v), u)
    assert torch.equal(dp, ops.gemm(u, held_v.detach().transpose(-1, -2), *NUMERICS))
    assert torch.equal(dv, ops.gemm(p.detach().transpose(-1, -2), u, *NUMERICS))


def test_a_write_changes_one_row_of_a_copy():
    """The result differs from the cache in one row, and the cache is untouched."""
    before = CODES.numpy().copy()
    rows = ops.int16_quantise(normal(2, 3, 1, 8))[0]
    after = ops.cache_write(CODES, rows, POSITION).numpy()
    assert np.array_equal(CODES.numpy(), before)
    assert np.array_equal(after[:, :, 4], rows.numpy()[:, :, 0])
    kept = [i for i in range(7) if i != 4]
    assert np.array_equal(after[:, :, kept], before[:, :, kept])


def test_a_decided_token_stands():
    """Greedy fills what is undecided and leaves the prompt."""
    logits = torch.zeros(2, 11)
    logits[:, 2] = 1
    after = ops.greedy(logits, TOKENS, POSITION)
    assert after[:, 5].tolist() == [2, 3]
    assert torch.equal(after[:, :5], TOKENS[:, :5])
    assert ops.token_at(after, POSITION + 1).tolist() == [2, 3]


@pytest.mark.parametrize("position", [-1, 7])
@pytest.mark.parametrize("name", ["prefix_softmax", "cache_write", "token_at", "greedy"])
def test_positions_outside_are_refused(name, position):
    """A position below 0 or beyond the end is an error that names the operator."""
    where = torch.tensor([position], dtype=torch.int32)
    arguments = [where if a is POSITION else a for a in CALLS[name]]
    with pytest.raises(OperandError, match=f"{name}: position {position}"):
        getattr(ops, name)(*arguments)
