"""The operators of decoding by kernels on the host against the CPU's, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import trainer.ops  # noqa: F401  # defines torch.ops.bitwitness
from emulator_ext import NonFiniteError, OperandError
from tests.trainer.kernels.conftest import GuardedRuntime
from trainer.kernels.operators import IMPLEMENTATIONS

OnHost = Callable[..., GuardedRuntime]


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    rng = np.random.default_rng(shape)
    return torch.from_numpy(np.asarray(rng.standard_normal(shape) * scale, np.float32))


def at(position: int) -> Tensor:
    return torch.tensor([position], dtype=torch.int32)


def require_equal(rt: GuardedRuntime, name: str, *args: Any) -> Tensor:
    """Run an operator both ways, compare every byte, and return the result."""
    found: Tensor = IMPLEMENTATIONS[name](rt, *args)
    expected = getattr(torch.ops.bitwitness, name)(*args)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), name
    rt.require_margins()
    return found


@pytest.mark.parametrize(("width", "position"), [(1, 0), (33, 0), (33, 32), (300, 270), (300, 5)])
def test_prefix_softmax(on_host: OnHost, width: int, position: int) -> None:
    """Each row has the CPU's bits; entries after the position are 0 and not read."""
    scores = normal(2, 3, 1, width, scale=9)
    scores[..., position + 1 :] = torch.nan
    p = require_equal(on_host(), "prefix_softmax", scores, at(position), 0.3)
    assert not p[..., position + 1 :].any()


@pytest.mark.parametrize("position", [0, 4, 6])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32, torch.int32])
def test_a_cache_of_any_dtype_is_written(
    on_host: OnHost, dtype: torch.dtype, position: int
) -> None:
    """One row of a copy changes, for elements of one, two and four bytes; the cache does not."""
    drawn = np.random.default_rng(position).integers(0, 2**31, (2, 3, 8, 5), np.int32)
    cells = torch.from_numpy(drawn).view(torch.uint8)[..., : 5 * dtype.itemsize]
    both = cells.contiguous().view(dtype)
    cache, rows = both[..., :7, :], both[..., 7:, :]
    before = cache.numpy().tobytes()
    require_equal(on_host(), "cache_write", cache, rows, at(position))
    assert cache.numpy().tobytes() == before


def test_tokens_are_read_and_decided(on_host: OnHost) -> None:
    """Columns are read; what is undecided becomes the lowest index of the largest logit."""
    tokens = torch.tensor([[5, 6, -1, -1], [7, 8, 3, -1], [1, 2, -1, -1]], dtype=torch.int32)
    logits = torch.zeros(3, 300)
    logits[:, (299, 270, 14)] = 2
    logits[2] = -5.0
    for position in range(3):
        require_equal(on_host(), "token_at", tokens, at(position))
        require_equal(on_host(seed=position), "greedy", logits, tokens, at(position))
    after = IMPLEMENTATIONS["greedy"](on_host(), logits, tokens, at(1))
    assert after[:, 2].tolist() == [14, 3, 0]
    assert tokens[0, 2] == -1


@pytest.mark.parametrize("seed", range(4))
def test_equal_logits_go_to_the_lowest_index(on_host: OnHost, seed: int) -> None:
    """In any order of threads +0 beats -0, and the first of equals wins."""
    logits = torch.full((1, 600), -0.0)
    tokens = torch.full((1, 2), -1, dtype=torch.int32)
    assert require_equal(on_host(seed=seed), "greedy", logits, tokens, at(0))[0, 1] == 0
    logits[0, (599, 513, 257)] = 0.0
    assert require_equal(on_host(seed=seed), "greedy", logits, tokens, at(0))[0, 1] == 257


CASES: dict[str, tuple[Any, ...]] = {
    "prefix_softmax": (normal(2, 7), at(3), 1.0),
    "cache_write": (normal(2, 7, 4), normal(2, 1, 4), at(3)),
    "token_at": (torch.zeros(2, 7, dtype=torch.int32), at(3)),
    "greedy": (normal(2, 5), torch.zeros(2, 8, dtype=torch.int32), at(3)),
}


@pytest.mark.parametrize("bad", [-1, 7, 2**31 - 1])
@pytest.mark.parametrize("name", CASES)
def test_positions_outside_abort_by_name(on_host: OnHost, name: str, bad: int) -> None:
    """A position below 0 or beyond the end is never followed, and raises."""
    rt = on_host()
    IMPLEMENTATIONS[name](rt, *CASES[name])
    args = [
        at(bad) if a is CASES[name][-1 - (name == "prefix_softmax")] else a for a in CASES[name]
    ]
    with pytest.raises(OperandError, match=f"{name}: an index is outside its table"):
        IMPLEMENTATIONS[name](rt, *args)
    rt.require_margins()


@pytest.mark.parametrize("name", ["prefix_softmax", "greedy"])
def test_nan_aborts_by_name(on_host: OnHost, name: str) -> None:
    """A NaN among what counts raises, naming the operator."""
    x, *rest = CASES[name]
    broken = x.clone()
    broken[1, 2] = torch.nan
    with pytest.raises(NonFiniteError, match=f"{name}:"):
        IMPLEMENTATIONS[name](on_host(), broken, *rest)


@pytest.mark.parametrize("name", ["prefix_softmax", "greedy"])
def test_the_order_of_threads_changes_no_bit(on_host: OnHost, name: str) -> None:
    """Three orders of a block's threads give one result."""
    runs = [IMPLEMENTATIONS[name](on_host(seed=s), *CASES[name]) for s in range(3)]
    assert all(torch.equal(run.view(torch.int32), runs[0].view(torch.int32)) for run in runs)
