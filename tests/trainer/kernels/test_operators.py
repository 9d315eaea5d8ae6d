"""Operator kernels on the host against `torch.ops.bitwitness`, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import trainer.ops
from emulator_ext import NonFiniteError, OperandError
from tests.trainer.kernels.conftest import GuardedRuntime
from trainer.kernels.operators import IMPLEMENTATIONS
from trainer.ops import collective

OnHost = Callable[..., GuardedRuntime]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    rng = np.random.default_rng((seed, *shape))
    return torch.from_numpy(np.asarray(rng.standard_normal(shape) * scale, np.float32))


def indices(rows: int, size: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(rows).integers(0, size, rows, np.int32))


def outputs(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def require_equal(rt: GuardedRuntime, name: str, *args: Any) -> list[Tensor]:
    """Run an operator both ways and compare every bit of every result."""
    found = outputs(IMPLEMENTATIONS[name](rt, *args))
    expected = outputs(getattr(torch.ops.bitwitness, name)(*args))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32)), name
    rt.require_margins()
    return expected


def test_every_pinned_operator_has_kernels() -> None:
    """The CUDA side implements exactly the operators of `trainer.ops`."""
    assert IMPLEMENTATIONS.keys() == trainer.ops.PINNED


# Widths below, at and beyond the 256 lanes; rows beyond 256 for the weight's gradient.
@pytest.mark.parametrize("shape", [(1, 1), (3, 255), (2, 256), (5, 700), (600, 33)], ids=str)
def test_rmsnorm(on_host: OnHost, shape: tuple[int, int]) -> None:
    """Forward and both gradients have the CPU's bits."""
    rt, x, dy, weight = on_host(), normal(*shape), normal(*shape, seed=1), normal(shape[1])
    _, rstd = require_equal(rt, "rmsnorm", x, weight, 1e-5)
    require_equal(rt, "rmsnorm_backward", dy, x, weight, rstd)


@pytest.mark.parametrize("inverse", [False, True])
def test_rope(on_host: OnHost, *, inverse: bool) -> None:
    """Both directions have the CPU's bits, from permuted operands too."""
    cos, sin = normal(5, 4), normal(5, 4, seed=1)
    require_equal(on_host(), "rope", normal(2, 3, 5, 8), cos, sin, inverse)
    require_equal(on_host(), "rope", normal(2, 5, 3, 8).permute(0, 2, 1, 3), cos, sin, inverse)


@pytest.mark.parametrize("time", [1, 2, 33, 300])
def test_causal_softmax(on_host: OnHost, time: int) -> None:
    """Forward and gradient have the CPU's bits; what lies above the diagonal is not read."""
    rt, scores = on_host(), normal(2, time, time, scale=9)
    hidden = torch.triu(torch.ones(time, time, dtype=torch.bool), 1)
    scores[:, hidden] = torch.nan
    (p,) = require_equal(rt, "causal_softmax", scores, 0.3)
    assert bool((p[:, hidden] == 0).all())
    require_equal(rt, "causal_softmax_backward", p, normal(2, time, time, seed=1), 0.3)


def test_swiglu(on_host: OnHost) -> None:
    """Forward and gradient have the CPU's bits."""
    gate_up = normal(7, 90, scale=4)
    require_equal(on_host(), "swiglu", gate_up)
    require_equal(on_host(), "swiglu_backward", normal(7, 45), gate_up)


@pytest.mark.parametrize("width", [1, 32, 270])
def test_embedding(on_host: OnHost, width: int) -> None:
    """Rows are copied; gradients are added in position order, tokens that are absent get +0."""
    tokens = indices(50, 9)
    require_equal(on_host(), "embedding", tokens, normal(11, width))
    (dtable,) = require_equal(on_host(), "embedding_backward", tokens, normal(50, width), 11)
    assert torch.equal(dtable[9:].view(torch.int32), torch.zeros(2, width, dtype=torch.int32))


@pytest.mark.parametrize("vocab", [2, 256, 300])
def test_cross_entropy(on_host: OnHost, vocab: int) -> None:
    """Loss and gradient have the CPU's bits, over more than 256 rows too."""
    logits, targets = normal(270, vocab, scale=5), indices(270, vocab)
    require_equal(on_host(), "cross_entropy", logits, targets)
    require_equal(on_host(), "cross_entropy_backward", torch.tensor(0.7), logits, targets)


# Below and beyond 16 loads ahead of 256 lanes.
@pytest.mark.parametrize("n", [0, 1, 255, 257, 4096, 4097, 10_001])
def test_sum_squares(on_host: OnHost, n: int) -> None:
    """The 256 lanes give the CPU's sum, however the loads are grouped."""
    require_equal(on_host(), "sum_squares", normal(n))


@pytest.mark.parametrize("total", [0.0, 0.25, 1.0, 9.5])
def test_clip_coefficient(on_host: OnHost, total: float) -> None:
    """Norm and coefficient have the CPU's bits below, at and above the limit."""
    require_equal(on_host(), "clip_coefficient", torch.tensor(total), 1.0)


def test_adamw(on_host: OnHost) -> None:
    """Parameter and moments have the CPU's bits."""
    p, g, m = (normal(33, 9, seed=s) for s in range(3))
    scalars = torch.tensor([1e-3, 1.2, 3.4])
    v = normal(33, 9, seed=3).abs()
    hyper = (0.9, 0.95, 1e-8, 0.1)
    require_equal(on_host(), "adamw", p, g, m, v, torch.tensor(0.5), scalars, *hyper)


def test_all_reduce_of_one_rank_is_a_copy(on_host: OnHost) -> None:
    """The result has the operand's bits in other memory."""
    x = normal(9)
    (total,) = outputs(IMPLEMENTATIONS["all_reduce"](on_host(), x, 1))
    assert torch.equal(total, x)
    assert total.data_ptr() != x.data_ptr()


def test_all_reduce_goes_through_the_communicator(on_host: OnHost) -> None:
    """With several ranks the installed communicator gives the sum."""

    class Doubling:
        def all_reduce(self, flat: np.ndarray) -> np.ndarray:
            return flat + flat

    with collective.use(Doubling()):
        total = IMPLEMENTATIONS["all_reduce"](on_host(), normal(9), 2)
    assert torch.equal(total, 2 * normal(9))


CASES: dict[str, tuple[Any, ...]] = {
    "rmsnorm": (normal(2, 4), normal(4), 1e-5),
    "rmsnorm_backward": (normal(2, 4), normal(2, 4), normal(4), normal(2)),
    "rope": (normal(2, 4), normal(2, 2), normal(2, 2), False),
    "causal_softmax": (normal(4, 4), 1.0),
    "causal_softmax_backward": (normal(4, 4), normal(4, 4), 1.0),
    "swiglu": (normal(2, 4),),
    "swiglu_backward": (normal(2, 2), normal(2, 4)),
    "embedding": (torch.zeros(2, dtype=torch.int32), normal(3, 2)),
    "embedding_backward": (torch.zeros(2, dtype=torch.int32), normal(2, 2), 3),
    "cross_entropy": (normal(2, 4), torch.zeros(2, dtype=torch.int32)),
    "cross_entropy_backward": (
        torch.tensor(1.0), normal(2, 4), torch.zeros(2, dtype=torch.int32)
    ),
    "sum_squares": (normal(9),),
    "clip_coefficient": (torch.tensor(1.0), 1.0),
    "adamw": (
        *(normal(3),) * 3, torch.ones(3), torch.tensor(1.0), torch.ones(3), 0.9, 0.9, 1.0, 0.0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_nan_and_infinity_abort_by_name(on_host: OnHost, name: str) -> None:
    """A NaN or Inf in the first element of any operand raises, naming the operator."""
    rt = on_host()
    IMPLEMENTATIONS[name](rt, *CASES[name])
    for i, operand in enumerate(CASES[name]):
        if not isinstance(operand, Tensor) or operand.dtype != torch.float32:
            continue
        broken = operand.clone()
        broken.view(-1)[0] = torch.nan
        args = (*CASES[name][:i], broken, *CASES[name][i + 1 :])
        with pytest.raises(NonFiniteError, match=f"{name}:"):
            IMPLEMENTATIONS[name](rt, *args)


@pytest.mark.parametrize("bad", [-1, 3, 2**31 - 1])
@pytest.mark.parametrize(
    "name", ["embedding", "embedding_backward", "cross_entropy", "cross_entropy_backward"]
)
def test_indices_outside_their_table_abort_by_name(on_host: OnHost, name: str, bad: int) -> None:
    """A token or target below 0 or beyond the table is never followed, and raises."""
    index = torch.tensor([0, bad], dtype=torch.int32)
    args = {
        "embedding": (index, normal(3, 2)),
        "embedding_backward": (index, normal(2, 2), 3),
        "cross_entropy": (normal(2, 3), index),
        "cross_entropy_backward": (torch.tensor(1.0), normal(2, 3), index),
    }[name]
    with pytest.raises(OperandError, match=f"{name}: an index is outside its table"):
        IMPLEMENTATIONS[name](on_host(), *args)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"rope", "swiglu", "embedding", "adamw"}))
def test_the_order_of_threads_changes_no_bit(on_host: OnHost, name: str) -> None:
    """Three orders of a block's threads give one result wherever threads cooperate."""
    runs = [outputs(IMPLEMENTATIONS[name](on_host(seed=s), *CASES[name])) for s in range(3)]
    for run in runs[1:]:
        for ours, first in zip(run, runs[0], strict=True):
            assert torch.equal(ours.view(torch.int32), first.view(torch.int32))
