"""GEMM kernels on the host against `emulator_ext.gemm`, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import emulator_ext
from emulator_ext import NonFiniteError
from tests.trainer.kernels.conftest import GuardedRuntime
from trainer.kernels.errors import KernelError
from trainer.kernels.gemm import Operand, gemm
from trainer.kernels.tiles import tiles_for

OnHost = Callable[..., GuardedRuntime]

HOPPER = (9, 0)
PROFILES = ("heal", "bf16", "fp32", "exact")
# M, N, K: ones, edges of tiles and of K blocks, and more than one strip of eight tile rows.
SHAPES = ((1, 1, 1), (65, 70, 67), (3, 130, 32), (97, 129, 31), (64, 64, 64), (530, 2, 5))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal numbers scaled row by row over many powers of two."""
    rng = np.random.default_rng((seed, *shape))
    scale = np.exp2(rng.integers(-20, 20, (*shape[:-1], 1)))
    return torch.from_numpy((rng.standard_normal(shape) * scale).astype(np.float32))


def emulated(a: torch.Tensor, b: torch.Tensor, profile: str, arch: str = "hopper") -> torch.Tensor:
    return torch.from_numpy(emulator_ext.gemm(a.numpy(), b.numpy(), profile=profile, arch=arch))


def require_equal(rt: GuardedRuntime, d: torch.Tensor, expected: torch.Tensor) -> None:
    assert d.shape == expected.shape
    assert torch.equal(d.view(torch.int32), expected.view(torch.int32))
    rt.require_margins()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("profile", PROFILES)
def test_products_have_the_emulator_s_bits(
    on_host: OnHost, profile: str, shape: tuple[int, int, int]
) -> None:
    """Every profile, tile and odd shape gives the emulator's bits and writes nothing else."""
    m, n, k = shape
    a, b = random(m, k), random(k, n, seed=1)
    expected = emulated(a, b, profile)
    for tile in tiles_for(profile, HOPPER) or (None,):
        rt = on_host(seed=m)
        require_equal(rt, gemm(rt, a, b, profile, tile=tile), expected)


@pytest.mark.parametrize("profile", ["heal", "bf16"])
@pytest.mark.parametrize("arch", ["ampere", "ada", "blackwell"])
def test_each_architecture_s_step_is_followed(on_host: OnHost, arch: str, profile: str) -> None:
    """A k16 instruction that is two steps, or one, gives that architecture's bits."""
    rt, a, b = on_host(arch), random(40, 100), random(100, 50)
    d = gemm(rt, a, b, profile)
    require_equal(rt, d, emulated(a, b, profile, arch))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("case", ["NN", "NT", "TN", "TT"])
def test_transposed_operands_need_no_copy(on_host: OnHost, profile: str, case: str) -> None:
    """Each transposition that training needs gives the bits of the contiguous product."""
    rt, a, b = on_host(), random(37, 70), random(70, 45)
    left = a.T.contiguous().T if case[0] == "T" else a
    right = b.T.contiguous().T if case[1] == "T" else b
    require_equal(rt, gemm(rt, left, right, profile), emulated(a, b, profile))


@pytest.mark.parametrize("profile", PROFILES)
def test_operands_inside_larger_tensors_are_read_alone(on_host: OnHost, profile: str) -> None:
    """Elements around a view, NaN here, have no effect, and neither have odd strides."""
    rt, a, b = on_host(), random(33, 35), random(35, 34)
    around_a, around_b = torch.full((50, 90), torch.nan), torch.full((60, 40), torch.nan)
    left, right = around_a[7:40, 3:73:2], around_b[5:40, 2:36]
    left.copy_(a)
    right.copy_(b)
    require_equal(rt, gemm(rt, left, right, profile), emulated(a, b, profile))


@pytest.mark.parametrize("profile", PROFILES)
def test_heads_of_attention_are_a_batch_by_strides(on_host: OnHost, profile: str) -> None:
    """[B, T, H, K] permuted to [B, H, T, K], as the model does, multiplies head by head."""
    rt, x = on_host(), random(2, 20, 3, 8)
    q, k = x.permute(0, 2, 1, 3), x.flip(1).permute(0, 2, 3, 1)
    require_equal(rt, gemm(rt, q, k, profile), emulated(q, k, profile))


def test_three_strides_of_leading_dimensions_are_copied(on_host: OnHost) -> None:
    """A batch that two strides cannot describe still gives the right products."""
    rt, x = on_host(), random(3, 2, 4, 5, 6)
    a = x.permute(2, 0, 1, 3, 4)
    b = a.transpose(-1, -2)
    require_equal(rt, gemm(rt, a, b, "heal"), emulated(a, b, "heal"))


@pytest.mark.parametrize("profile", PROFILES)
def test_the_order_of_threads_changes_no_bit(on_host: OnHost, profile: str) -> None:
    """Five orders of a block's threads give one result."""
    a, b = random(70, 130), random(130, 66)
    runs = [gemm(on_host(seed=s), a, b, profile).view(torch.int32) for s in range(5)]
    assert all(torch.equal(run, runs[0]) for run in runs)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    m=st.integers(1, 40), n=st.integers(1, 40), k=st.integers(1, 80), batch=st.integers(1, 3),
    profile=st.sampled_from(PROFILES), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_shape_has_the_emulator_s_bits(
    on_host: OnHost, m: int, n: int, k: int, batch: int, profile: str, seed: int
) -> None:
    """No combination of small M, N, K and batch differs in a bit."""
    rt, a, b = on_host(seed=seed), random(batch, m, k, seed=seed), random(batch, k, n, seed=seed)
    require_equal(rt, gemm(rt, a, b, profile), emulated(a, b, profile))


def test_heal_takes_every_magnitude(on_host: OnHost) -> None:
    """Zero rows, subnormal rows and rows near overflow are scaled as the emulator scales them."""
    a, b = random(40, 50), random(50, 40)
    exponents = torch.tensor([-149, -140, -126, -100, 0, 60, 66] * 6, dtype=torch.float64)[:40]
    left = (a / a.abs().amax(1, keepdim=True) * torch.exp2(exponents)[:, None]).to(torch.float32)
    left[3] = 0
    right = b / b.abs().amax(0, keepdim=True) * 2.0**59
    right[:, 5] = 0
    rt = on_host()
    require_equal(rt, gemm(rt, left, right, "heal"), emulated(left, right, "heal"))


def test_exact_takes_every_magnitude(on_host: OnHost) -> None:
    """Blocks of zeros, of subnormals and near overflow may lie side by side along K."""
    rng = np.random.default_rng(7)
    exponents = np.repeat(rng.choice([-149, -135, -100, -20, 0, 40, 62], (40, 4)), 64, axis=1)
    a = (rng.uniform(-1, 1, (40, 256)) * np.exp2(exponents)).astype(np.float32)
    a[3] = 0
    a[4, 64:128] = 0
    b = (rng.uniform(-1, 1, (256, 40)) * np.exp2(exponents.T)).astype(np.float32)
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    rt = on_host()
    require_equal(rt, gemm(rt, left, right, "exact"), emulated(left, right, "exact"))


def test_exact_is_the_same_on_every_architecture(on_host: OnHost) -> None:
    """Tensor cores with F = 23, 24 and 25 and L = 4, 8 and 16 give one result."""
    a, b = random(30, 200), random(200, 20)
    archs = ("volta", "ampere", "hopper")
    runs = [gemm(on_host(arch), a, b, "exact").view(torch.int32) for arch in archs]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("seed", range(4))
def test_row_maxima_are_exact(on_host: OnHost, seed: int) -> None:
    """Every row's largest magnitude is found, in whatever tile or slice of K it lies."""
    rt, x = on_host(seed=seed), random(33, 700, seed=seed)
    operand = Operand.of(x)
    amax = rt.zeros(1, 64, dtype=torch.int32)
    sizes = (np.int64(64), np.int64(320))
    grid = (2 * 3, 1, 1)  # row tiles times slices
    rt.launch("row_maxima", grid, 256, *operand.arguments(), amax, *sizes, *rt.fault("maxima"))
    assert torch.equal(amax[0, :33], x.abs().amax(1).view(torch.int32))
    assert not amax[0, 33:].any()
    rt.require_margins()


def test_fp32_keeps_a_negative_zero(on_host: OnHost) -> None:
    """A chain that underflows to -0 stays -0: K is not padded with zero products."""
    tiny = torch.full((1, 1), 2.0**-120)
    d = gemm(on_host(), tiny, -tiny, "fp32")
    assert d.view(torch.int32).item() == -(2**31)


@pytest.mark.parametrize("profile", PROFILES)
def test_no_products_give_zeros(on_host: OnHost, profile: str) -> None:
    """K = 0 gives +0 everywhere; M, N or a batch of 0 give an empty result."""
    rt = on_host()
    zeros = gemm(rt, torch.empty(3, 0), torch.empty(0, 4), profile)
    assert torch.equal(zeros.view(torch.int32), torch.zeros(3, 4, dtype=torch.int32))
    assert gemm(rt, torch.empty(0, 5), torch.ones(5, 4), profile).shape == (0, 4)
    assert gemm(rt, torch.empty(0, 2, 5), torch.empty(0, 5, 4), profile).shape == (0, 2, 4)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("profile", PROFILES)
def test_nan_and_infinity_abort_by_name(on_host: OnHost, profile: str, bad: float) -> None:
    """One bad element of an operand raises the error that names the operator; then all is well."""
    rt, a, b = on_host(), random(33, 40), random(40, 34)
    a[32, 39] = bad
    with pytest.raises(NonFiniteError, match=f"gemm {profile}"):
        gemm(rt, a, b, profile)
    a[32, 39] = 1
    gemm(rt, a, b, profile)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_product_that_overflows_aborts(on_host: OnHost, profile: str) -> None:
    """Finite operands with an infinite product raise."""
    a = torch.full((2, 3), 3e38)
    with pytest.raises(NonFiniteError, match=f"gemm {profile}"):
        gemm(on_host(), a, a.T, profile)


def test_deferred_checks_raise_on_leaving(on_host: OnHost) -> None:
    """Inside `deferred_checks` nothing waits; leaving it raises for the first bad operator."""
    rt, a = on_host(), torch.full((2, 2), torch.nan)
    passed = []

    def run() -> None:
        with rt.deferred_checks():
            gemm(rt, a, a, "bf16")
            gemm(rt, a, a, "heal")
            passed.append(True)

    with pytest.raises(NonFiniteError, match="gemm bf16"):
        run()
    assert passed == [True]


def test_what_no_kernel_takes_is_refused_by_name(on_host: OnHost) -> None:
    """Profiles, dtypes and shapes that do not exist are KernelErrors."""
    rt, a = on_host(), torch.ones(2, 2)
    with pytest.raises(KernelError, match="fp8"):
        gemm(rt, a, a, "fp8")
    with pytest.raises(KernelError, match="float64"):
        gemm(rt, a.double(), a, "heal")
    with pytest.raises(KernelError, match=r"got \[2, 2\] and \[3, 2\]"):
        gemm(rt, a, torch.ones(3, 2), "heal")
    many = torch.ones(1, 1).expand(70_000, 1, 1)
    with pytest.raises(KernelError, match="too large"):
        gemm(rt, many, many, "fp32")


def test_large_products_use_large_tiles(on_host: OnHost) -> None:
    """The tile follows from the number of large tiles."""
    rt = on_host()
    gemm(rt, torch.ones(96 * 12, 1), torch.ones(1, 128 * 8), "heal")
    gemm(rt, torch.ones(96, 1), torch.ones(1, 128), "heal")
    launched = [name for name in rt.device.launched if name.startswith("gemm")]
    assert launched == ["gemm_heal_96x128", "gemm_heal_64x64"]
