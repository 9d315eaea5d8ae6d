"""The wgmma route on the host: its bits, what it needs to be right, and who may take it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import emulator_ext
from emulator_ext import NonFiniteError
from tests.trainer.kernels.conftest import GuardedRuntime
from tests.trainer.kernels.shim.host import HostDevice
from tests.trainer.kernels.test_gemm import emulated, random, require_equal
from trainer.kernels.device import Runtime
from trainer.kernels.errors import KernelError
from trainer.kernels.gemm import gemm
from trainer.kernels.sources import CUDA_FOLDER, architecture_of
from trainer.kernels.tiles import ROUTE_VARIABLE, TILES, WGMMA_CAPABILITY, Tile, choose, tiles_for

OnHost = Callable[..., GuardedRuntime]

ALL_TILES = [(profile, tile) for profile, tiles in TILES.items() for tile in tiles]
WGMMA_TILES = [(profile, tile) for profile, tile in ALL_TILES if tile.route == "wgmma"]
HOPPER_SHARED = 227 * 1024  # bytes that one block may have


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    m=st.integers(1, 140), n=st.integers(1, 140), k=st.integers(1, 280), batch=st.integers(1, 3),
    which=st.sampled_from(WGMMA_TILES), case=st.sampled_from(["NN", "NT", "TN", "TT"]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_any_shape_has_the_emulator_s_bits(
    on_host: OnHost, m: int, n: int, k: int, batch: int,
    which: tuple[str, Tile], case: str, seed: int,
) -> None:  # fmt: skip
    """No combination of M, N, K, batch, transposition, instance and thread order differs."""
    (profile, tile), rt = which, on_host(seed=seed)
    a, b = random(batch, m, k, seed=seed), random(batch, k, n, seed=seed)
    left = a.mT.contiguous().mT if case[0] == "T" else a
    right = b.mT.contiguous().mT if case[1] == "T" else b
    require_equal(rt, gemm(rt, left, right, profile, tile=tile), emulated(a, b, profile))


@pytest.mark.parametrize(("profile", "tile"), ALL_TILES, ids=lambda x: getattr(x, "kernel", ""))
def test_every_synchronisation_is_needed(library: ctypes.CDLL, profile: str, tile: Tile) -> None:
    """Each wait, fence, commit and barrier that a product reaches, left out, spoils it."""
    a, b = random(70, 230), random(230, 66, seed=1)
    expected = emulated(a, b, profile).view(torch.int32)
    device = HostDevice(library)
    device.sites()
    assert torch.equal(gemm(Runtime(device), a, b, profile, tile=tile).view(torch.int32), expected)
    sites = [site for site in device.sites() if "pack.cu" not in site]
    assert len(sites) == len(set(sites)) >= (7 if tile.route == "wgmma" else 3)
    for site in sites:
        rt = Runtime(HostDevice(library, omit=site))
        try:
            spoiled = gemm(rt, a, b, profile, tile=tile).view(torch.int32)
        except (RuntimeError, NonFiniteError):
            continue
        assert not torch.equal(spoiled, expected), site


def test_both_routes_overflow_by_name(on_host: OnHost) -> None:
    """Finite operands with an infinite product raise on this route as on the other."""
    a = torch.full((2, 3), 3e38)
    for profile, tile in WGMMA_TILES:
        with pytest.raises(NonFiniteError, match=f"gemm {profile}"):
            gemm(on_host(), a, a.T, profile, tile=tile)


def test_instances_fit_a_block() -> None:
    """No instance asks for more shared memory than its GPUs give a block."""
    assert all(t.shared <= HOPPER_SHARED for _, t in WGMMA_TILES)
    assert all(t.shared <= 99 * 1024 for _, t in ALL_TILES if t.route == "mma")


# Choice.


def test_the_default_route_is_mma(on_host: OnHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a word of the caller or of the environment takes another."""
    monkeypatch.delenv(ROUTE_VARIABLE, raising=False)
    assert choose("heal", (1, 9999, 9999), WGMMA_CAPABILITY, None).kernel == "gemm_heal_96x128"
    monkeypatch.setenv(ROUTE_VARIABLE, "wgmma")
    rt = on_host()
    for profile in ("heal", "exact"):
        gemm(rt, torch.ones(3, 3), torch.ones(3, 3), profile)
    gemm(rt, torch.ones(3, 3), torch.ones(3, 3), "heal", route="mma")
    launched = [name for name in rt.device.launched if name.startswith("gemm")]
    assert launched == ["gemm_wgmma_heal_64x64", "gemm_exact_64x64", "gemm_heal_64x64"]


def test_size_chooses_within_a_route() -> None:
    """Large products take the first instance of the route, small ones the last."""
    for profile, large, small in (
        ("heal", "gemm_wgmma_heal_128x128", "gemm_wgmma_heal_64x64"),
        ("bf16", "gemm_wgmma_bf16_128x256", "gemm_wgmma_bf16_64x128"),
    ):
        assert choose(profile, (6, 512, 1024), WGMMA_CAPABILITY, "wgmma").kernel == large
        assert choose(profile, (1, 512, 1024), WGMMA_CAPABILITY, "wgmma").kernel == small
        # Attention's heads: many tiles, but most of a large one would be padding.
        assert choose(profile, (999, 512, 64), WGMMA_CAPABILITY, "wgmma").kernel == small


@pytest.mark.parametrize("arch", ["ampere", "ada", "blackwell"])
def test_other_gpus_refuse_wgmma_by_name(on_host: OnHost, arch: str) -> None:
    """A newer GPU does not have Hopper's instruction either, and nothing else runs instead."""
    rt, a = on_host(arch), torch.ones(2, 2)
    with pytest.raises(KernelError, match=r"wgmma needs compute capability 9\.0"):
        gemm(rt, a, a, "heal", route="wgmma")
    with pytest.raises(KernelError, match=r"gemm_wgmma_bf16_64x128: wgmma needs"):
        gemm(rt, a, a, "bf16", tile=TILES["bf16"][-1])
    assert rt.device.launched == []
    assert {tile.route for tile in tiles_for("heal", rt.device.capability)} == {"mma"}


def test_routes_that_do_not_exist_are_refused_by_name(
    on_host: OnHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile without such a kernel, and a route that nobody knows."""
    rt, a = on_host(), torch.ones(2, 2)
    with pytest.raises(KernelError, match=r"gemm exact: no wgmma kernel; .* for: heal, bf16"):
        gemm(rt, a, a, "exact", route="wgmma")
    with pytest.raises(KernelError, match=r"gemm fp32: .* no route"):
        gemm(rt, a, a, "fp32", route="wgmma")
    monkeypatch.setenv(ROUTE_VARIABLE, "tcgen05")
    with pytest.raises(KernelError, match="'tcgen05'; routes are mma, wgmma"):
        gemm(rt, a, a, "heal")


def test_a_source_of_one_architecture_is_compiled_for_no_other() -> None:
    """The wgmma source has sm_90a, every other the GPU's own architecture."""
    source = CUDA_FOLDER / "gemm_wgmma.cu"
    assert architecture_of(source, (9, 0)) == "sm_90a"
    assert architecture_of(CUDA_FOLDER / "gemm.cu", (9, 0)) == "sm_90"
    with pytest.raises(ValueError, match="alone"):
        architecture_of(source, (10, 0))


# The shim's own reading of descriptors, against layouts written down here.


def laid_out(x: np.ndarray, width: int, first_chunk: int) -> np.ndarray:
    """Place f16 [64, 16] as 8 KiB: K-major core matrices, or rows of a swizzled pattern."""
    memory = np.zeros(8192, np.uint8)
    for row, chunk in np.ndindex(64, 2):
        piece = x[row, 8 * chunk : 8 * chunk + 8].view(np.uint8)
        group, r = divmod(row, 8)
        if width == 16:  # 8 x 16 bytes together, the next chunk 1024 on, the next rows 128 on
            at = group * 128 + chunk * 1024 + r * 16
        else:
            period = 128 // width  # rows that share a line of 128 bytes
            place = (first_chunk + chunk) ^ (r // period)
            at = group * 8 * width + r * width + place * 16
        memory[at : at + 16] = piece
    return memory


@pytest.mark.parametrize(
    ("width", "mode", "first_chunk"),
    [(16, 0, 0), (128, 1, 0), (128, 1, 4), (64, 2, 0), (64, 2, 2), (32, 3, 0)],
)
def test_descriptors_are_read_as_the_isa_lays_matrices_out(
    library: ctypes.CDLL, width: int, mode: int, first_chunk: int
) -> None:
    """Every swizzling mode, at the pattern's start and K further on, gives the product."""
    rng = np.random.default_rng(width)
    a, b = (rng.standard_normal((64, 16)).astype(np.float16) for _ in range(2))
    memory = np.concatenate([laid_out(x, width, first_chunk) for x in (a, b)])
    leading, stride = (1024, 128) if width == 16 else (16, 8 * width)
    descriptor = (leading // 16) << 16 | (stride // 16) << 32 | mode << 62 | first_chunk
    rt = Runtime(HostDevice(library))
    d = rt.empty(64, 64)
    operands = torch.from_numpy(memory)
    starts = [np.uint64(descriptor), np.uint64(descriptor + 8192 // 16)]
    rt.launch("one_wgmma", (1, 1, 1), 128, operands, *starts, d, shared=16384 + 1024)
    expected = emulator_ext.matmul(a, b.T, arch="hopper")
    assert torch.equal(d.view(torch.int32), torch.from_numpy(expected).view(torch.int32))


@pytest.mark.parametrize(
    ("descriptor", "fault"),
    [
        (1 << 49, "base offset"),
        (2 << 62 | 4, "does not begin with a pattern"),
        (2 << 62 | 3, "K leaves the pattern's row"),
        (0xFFFF << 32, "outside shared memory"),
    ],
)
def test_descriptors_that_no_kernel_means_are_faults(
    library: ctypes.CDLL, descriptor: int, fault: str
) -> None:
    """What the model does not know, or the ISA forbids, ends the launch by name."""
    rt = Runtime(HostDevice(library))
    operands = torch.zeros(16384, dtype=torch.uint8)
    wrong = np.uint64(descriptor)
    with pytest.raises(RuntimeError, match=fault):
        rt.launch(
            "one_wgmma",
            (1, 1, 1),
            128,
            operands,
            wrong,
            wrong,
            rt.empty(64, 64),
            shared=16384 + 1024,
        )


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (1, "the warps of a warpgroup issue different instructions"),
        (2, "the lanes of a warp disagree"),
        (3, "an accumulator was written while it was under way"),
    ],
)
def test_misuse_is_a_fault(library: ctypes.CDLL, number: int, fault: str) -> None:
    """What the ISA leaves undefined ends the launch by name; without the fault it runs."""
    rt = Runtime(HostDevice(library))
    arguments = ("misused_wgmma", (1, 1, 1), 128)
    rt.launch(*arguments, np.int32(0), rt.empty(128), shared=16384)
    with pytest.raises(RuntimeError, match=fault):
        rt.launch(*arguments, np.int32(number), rt.empty(128), shared=16384)
