"""INT16 vectors and their products by kernels on the host against the CPU's, bit for bit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import trainer.ops  # noqa: F401  # defines torch.ops.bitwitness
from emulator_ext import NonFiniteError, OperandError
from tests.trainer.kernels.conftest import GuardedRuntime
from tests.trainer.kernels.shim.host import HostDevice
from trainer.kernels.device import Runtime
from trainer.kernels.operators import IMPLEMENTATIONS

OnHost = Callable[..., GuardedRuntime]

NUMERICS = ("fp32", "hopper")
# Queries, keys, width: ones, edges of tiles and of K blocks, more than one tile either way.
SHAPES = ((1, 1, 2), (65, 70, 33), (3, 64, 32), (64, 130, 64), (129, 5, 96))
# Beyond 512 of K accumulators are emptied; 1024 is the widest head.
LONG = ((2, 3, 511), (2, 3, 512), (3, 2, 513), (2, 66, 1024))


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers scaled row by row over many powers of two."""
    rng = np.random.default_rng((seed, *shape))
    scale = np.exp2(rng.integers(-30, 30, (*shape[:-1], 1)))
    return torch.from_numpy((rng.standard_normal(shape) * scale).astype(np.float32))


def weights(*shape: int, seed: int = 0) -> Tensor:
    """Return attention's weights: positive, over many binades, with zeros at the end."""
    x = random(*shape, seed=seed).abs()
    x[..., -1] = 0
    return x / (x.sum(-1, keepdim=True) + 1)


def cpu(name: str, *args: Any) -> Any:
    return getattr(torch.ops.bitwitness, name)(*args)


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def require_equal(rt: GuardedRuntime, name: str, *args: Any) -> None:
    """Run an operator both ways and compare every byte of every result."""
    found, expected = as_tuple(IMPLEMENTATIONS[name](rt, *args)), as_tuple(cpu(name, *args))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8)), name
    rt.require_margins()


@pytest.mark.parametrize("shape", [(1, 1), (3, 32), (9, 33), (2, 3, 5, 64), (4, 1500)], ids=str)
def test_vectors_are_quantised_and_held(on_host: OnHost, shape: tuple[int, ...]) -> None:
    """Codes, scales and held values have the CPU's bits, from permuted operands too."""
    x = random(*shape)
    require_equal(on_host(), "int16_quantise", x)
    require_equal(on_host(), "int16_hold", x)
    require_equal(on_host(), "int16_hold", x.transpose(0, 1))


def test_every_magnitude_is_quantised(on_host: OnHost) -> None:
    """Zeros, subnormals, ties, saturation and the largest finite numbers give the CPU's codes."""
    rows = [
        [0.0, -0.0, 0.0], [2.0**-149, -(2.0**-130), 2.0**-127], [3.4e38, -3.4e38, 1e30],
        [32767.5, 0.5, 1.5], [-32767.5, 2.5, -0.5], [65535.0, 65534.0, -3.0],
    ]  # fmt: skip
    x = torch.tensor(rows, dtype=torch.float32)
    require_equal(on_host(), "int16_quantise", x)
    require_equal(on_host(), "int16_hold", x)


@pytest.mark.parametrize("shape", SHAPES + LONG, ids=str)
def test_scores(on_host: OnHost, shape: tuple[int, int, int]) -> None:
    """Scores over codes and over held keys have the CPU's bits and write nothing else."""
    queries, keys, width = shape
    q, k = random(2, queries, width), random(2, keys, width, seed=1)
    codes, scales = cpu("int16_quantise", k)
    require_equal(on_host(seed=width), "int16_scores", q, codes, scales)
    require_equal(on_host(seed=keys), "int16_dot", cpu("int16_hold", q), k, *NUMERICS)


@pytest.mark.parametrize("shape", [*SHAPES, (2, 511, 3), (2, 513, 3), (3, 1100, 66)], ids=str)
def test_mixtures(on_host: OnHost, shape: tuple[int, int, int]) -> None:
    """Mixtures of codes and of held values have the CPU's bits and write nothing else."""
    queries, keys, width = shape
    p, v = weights(2, queries, keys), random(2, keys, width, seed=1)
    codes, scales = cpu("int16_quantise", v)
    require_equal(on_host(seed=width), "int16_mix", p, codes, scales)
    require_equal(on_host(seed=keys), "int16_blend", p, v, *NUMERICS)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    m=st.integers(1, 70), n=st.integers(1, 70), k=st.integers(1, 70), batch=st.integers(1, 3),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_any_shape_has_the_cpu_s_bits(
    on_host: OnHost, m: int, n: int, k: int, batch: int, seed: int
) -> None:
    """No combination of small sizes differs in a bit, whatever the order of threads."""
    q, x, p = random(batch, m, k, seed=seed), random(batch, n, k, seed=seed), weights(batch, m, n)
    require_equal(on_host(seed=seed), "int16_dot", q, x, *NUMERICS)
    require_equal(on_host(seed=seed), "int16_blend", p, x, *NUMERICS)


@pytest.mark.parametrize("arch", ["volta", "ampere", "hopper"])
def test_the_largest_sums_are_exact_on_every_architecture(on_host: OnHost, arch: str) -> None:
    """With all digits at their largest, sums reach their bounds and F = 23, 24, 25 agree."""
    for top in (32640.0, 32767.0, 32768.0 - 129.0):  # high = 127.5 * 2, low = -1, high = 127
        q, k = torch.full((1, 1, 1024), top), torch.full((1, 2, 1024), -top)
        require_equal(on_host(arch), "int16_dot", q, k, *NUMERICS)
        p, v = torch.full((1, 2, 1024), 2.0**-7 * (1 - 2.0**-20)), torch.full((1, 1024, 3), top)
        require_equal(on_host(arch), "int16_blend", p, v, *NUMERICS)


def test_heads_by_strides(on_host: OnHost) -> None:
    """[B, T, H, K] permuted to [B, H, T, K], as the model does, is read head by head."""
    x = random(2, 20, 3, 8).permute(0, 2, 1, 3)
    require_equal(on_host(), "int16_dot", x, x.flip(0), *NUMERICS)
    require_equal(on_host(), "int16_blend", weights(2, 3, 20, 20), x, *NUMERICS)


@pytest.mark.parametrize("name", ["int16_dot", "int16_blend", "int16_quantise", "int16_hold"])
def test_the_order_of_threads_changes_no_bit(on_host: OnHost, name: str) -> None:
    """Five orders of a block's threads give one result."""
    x = random(70, 70)
    args = (x, x.T, *NUMERICS) if name in {"int16_dot", "int16_blend"} else (x,)
    runs = [as_tuple(IMPLEMENTATIONS[name](on_host(seed=s), *args))[0] for s in range(5)]
    assert all(torch.equal(run.view(torch.uint8), runs[0].view(torch.uint8)) for run in runs)


@pytest.mark.parametrize("name", ["int16_dot", "int16_blend"])
def test_every_synchronisation_is_needed(library: ctypes.CDLL, name: str) -> None:
    """Each wait, commit and barrier that a product reaches, left out, spoils it."""
    a, b = random(70, 130), random(*((66, 130) if name == "int16_dot" else (130, 66)), seed=1)
    expected = cpu(name, a, b, *NUMERICS).view(torch.int32)
    device = HostDevice(library)
    device.sites()
    IMPLEMENTATIONS[name](Runtime(device), a, b, *NUMERICS)
    sites = device.sites()
    assert len(sites) == len(set(sites)) == (3 if name == "int16_dot" else 4)
    for site in sites:
        rt = Runtime(HostDevice(library, omit=site))
        try:
            spoiled = IMPLEMENTATIONS[name](rt, a, b, *NUMERICS).view(torch.int32)
        except (RuntimeError, NonFiniteError):
            continue
        assert not torch.equal(spoiled, expected), site


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", ["int16_dot", "int16_blend"])
def test_nan_and_infinity_abort_by_name(on_host: OnHost, name: str, which: int, bad: float) -> None:
    """One bad element of either operand raises the error that names the operator."""
    operands = [random(3, 4), random(4, 4, seed=1)]
    operands[1 - which] *= 2.0**-60  # so that a saturated infinity would give a finite product
    operands[which][2, 3] = bad
    with pytest.raises(NonFiniteError, match=f"{name}:"):
        IMPLEMENTATIONS[name](on_host(), *operands, *NUMERICS)


@pytest.mark.parametrize("name", ["int16_scores", "int16_mix"])
def test_nan_beside_codes_aborts_by_name(on_host: OnHost, name: str) -> None:
    """A NaN among queries or weights raises the error that names the operator."""
    x = random(3, 4)
    x[2, 3] = torch.nan
    with pytest.raises(NonFiniteError, match=f"{name}:"):
        IMPLEMENTATIONS[name](on_host(), x, *cpu("int16_quantise", random(4, 4)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["int16_quantise", "int16_hold"])
def test_a_vector_with_nan_or_infinity_aborts(on_host: OnHost, name: str, bad: float) -> None:
    """Quantising NaN or infinity raises, naming the operator."""
    x = random(3, 40)
    x[2, 39] = bad
    with pytest.raises(NonFiniteError, match=f"{name}:"):
        IMPLEMENTATIONS[name](on_host(), x)


def test_results_that_overflow_abort(on_host: OnHost) -> None:
    """Finite operands with an infinite score, weight or mixture raise."""
    x = torch.full((2, 2), 3e38)
    with pytest.raises(NonFiniteError, match="int16_dot:"):
        IMPLEMENTATIONS["int16_dot"](on_host(), x, x, *NUMERICS)
    for p in (torch.full((2, 2), 2.0**20), torch.full((2, 2), 1.5)):
        with pytest.raises(NonFiniteError, match="int16_blend:"):
            IMPLEMENTATIONS["int16_blend"](on_host(), p, x, *NUMERICS)


def test_what_would_not_be_exact_is_refused_by_name(on_host: OnHost) -> None:
    """Heads beyond 1024 and contexts beyond 32768 are refused, as on the CPU."""
    wide, long = torch.ones(1, 1025), torch.ones(1, 32_769)
    codes, scales = cpu("int16_quantise", wide)
    for name, args in (
        ("int16_dot", (wide, wide, *NUMERICS)),
        ("int16_scores", (wide, codes, scales)),
        ("int16_blend", (long, long.T, *NUMERICS)),
        ("int16_mix", (long, *cpu("int16_quantise", long.T))),
    ):
        with pytest.raises(OperandError, match=f"{name}: .* sums are exact up to"):
            IMPLEMENTATIONS[name](on_host(), *args)
