"""The wgmma products compiled by NVRTC for sm_90a, and what their machine code shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer.kernels.nvrtc import (
    CompileError,
    compile_cubin,
    compile_with_log,
    disassemble,
    opcodes,
)
from trainer.kernels.sources import CUDA_FOLDER, OPTIONS, architecture_of, kernels_of
from trainer.kernels.tiles import TILES, WGMMA_CAPABILITY

SOURCE = CUDA_FOLDER / "gemm_wgmma.cu"
ARCHITECTURE = architecture_of(SOURCE, WGMMA_CAPABILITY)
# How ptxas says that it has made every wgmma wait for the one before.
SERIALISED = "wgmma.mma_async instructions are serialized"

# Two chains in turn. When the first wait of a loop's turn leaves a chain of the turn before under
# way, ptxas no longer knows which registers are whose.
IN_TURN = """
#include "wgmma.cuh"
extern "C" __global__ void __launch_bounds__(128) in_turn(u64 a, u64 b, int turns, float* out) {
    float x[32] = {}, y[32] = {}, sums[32] = {};
    for (int turn = 0; turn < turns; ++turn) {
        wgmma_wait<UNDER_WAY>(x);
        for (int i = 0; i < 32; ++i) sums[i] = __fadd_rn(sums[i], x[i]);
        wgmma_fence();
        wgmma<false>(F16{}, x, a, b);
        wgmma_commit();
        wgmma_wait<1>(y);
        for (int i = 0; i < 32; ++i) sums[i] = __fadd_rn(sums[i], y[i]);
        wgmma_fence();
        wgmma<false>(F16{}, y, a, b);
        wgmma_commit();
    }
    wgmma_wait<0>(y);
    for (int i = 0; i < 32; ++i) out[threadIdx.x * 32 + i] = sums[i];
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Every kernel's instructions, and what the compiler said."""

    kernels: dict[str, list[str]]
    log: str


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Make the machine code once."""
    return build(tmp_path_factory.mktemp("wgmma"))


def build(folder: Path, *more: str) -> Compiled:
    options = (f"--gpu-architecture={ARCHITECTURE}", *OPTIONS, *more)
    cubin, log = compile_with_log(SOURCE.read_text(encoding="ascii"), options, SOURCE.name)
    return Compiled(kernels=disassemble(cubin, folder), log=log)


def test_every_instance_is_launched_by_name(compiled: Compiled) -> None:
    """The source defines just the instances that the launcher knows."""
    tiles = [t.kernel for of in TILES.values() for t in of if t.route == "wgmma"]
    assert sorted(tiles) == sorted(kernels_of(SOURCE)) == sorted(compiled.kernels)


def test_chains_overlap(compiled: Compiled) -> None:
    """Wgmma run side by side in every instance, as far as ptxas says, which says nothing."""
    assert compiled.log.strip() == ""


@pytest.mark.parametrize(("under_way", "serialised"), [("0", False), ("1", True)])
def test_serialisation_would_show(under_way: str, *, serialised: bool) -> None:
    """A source that ptxas does not overlap brings the line that the test above forbids."""
    options = (f"--gpu-architecture={ARCHITECTURE}", *OPTIONS)
    _, log = compile_with_log(IN_TURN.replace("UNDER_WAY", under_way), options, "in_turn.cu")
    assert (SERIALISED in log) == serialised


@pytest.mark.parametrize(
    ("kernel", "shape", "of_a_block", "starts"),
    [
        ("gemm_wgmma_heal_128x128", "HGMMA.64x64x16.F32", 12, 4),
        ("gemm_wgmma_heal_128x128_whole", "HGMMA.64x128x16.F32", 6, 2),
        ("gemm_wgmma_heal_64x64", "HGMMA.64x64x16.F32", 6, 2),
        ("gemm_wgmma_bf16_128x256", "HGMMA.64x256x16.F32.BF16", 2, 0),
        ("gemm_wgmma_bf16_64x128", "HGMMA.64x128x16.F32.BF16", 2, 0),
    ],
)
def test_products_use_the_named_instruction(
    compiled: Compiled, kernel: str, shape: str, of_a_block: int, starts: int
) -> None:
    """Only this wgmma appears, as often as a block of K needs it; m and t start from zero.

    The compiler may unroll the loop along K, so the numbers are multiples.
    """
    lines = [line for line in compiled.kernels[kernel] if "MMA" in line]
    assert {line.split()[0] for line in lines} == {shape}
    blocks, rest = divmod(len(lines), of_a_block)
    assert (blocks > 0, rest) == (True, 0)
    assert sum("RZ, !UPT" in line for line in lines) == starts * blocks


@pytest.mark.parametrize(
    ("kernel", "outputs", "last", "of_a_block"),
    [
        ("gemm_wgmma_heal_128x128", 64, 32, 12),
        ("gemm_wgmma_heal_128x128_whole", 64, 64, 6),
        ("gemm_wgmma_heal_64x64", 32, 32, 6),
    ],
)
def test_heal_adds_outside_the_tensor_core(
    compiled: Compiled, kernel: str, outputs: int, last: int, of_a_block: int
) -> None:
    """Two f32 additions per output and block of K, one more at the end, and nothing is fused.

    After the last block come those of the chain that is still under way, too.
    """
    found = opcodes(compiled.kernels[kernel])
    blocks = sum(n for op, n in found.items() if op.startswith("HGMMA")) // of_a_block
    assert found["FADD"] == outputs * (2 * blocks + 1) + last
    assert found["FMUL"] == outputs
    assert not [op for op in found if op.startswith(("FFMA", "FADD.", "FMUL."))]


def test_products_keep_everything_in_registers(compiled: Compiled) -> None:
    """No instance stores to or loads from local memory."""
    for kernel, lines in compiled.kernels.items():
        assert not [op for op in opcodes(lines) if op.split(".")[0] in {"STL", "LDL"}], kernel


def test_the_order_of_proxies_is_kept(compiled: Compiled) -> None:
    """In every instance copies arrive, then the proxy fence, then the barrier, then wgmma."""
    wanted = ("DEPBAR", "FENCE", "BAR", "HGMMA")
    for kernel, lines in compiled.kernels.items():
        names = [next(iter(opcodes([line]))) for line in lines]
        begin = next(i for i, name in enumerate(names) if name.startswith("FENCE"))
        last_wait = max(i for i in range(begin) if names[i].startswith("DEPBAR"))
        order = [n.split(".")[0] for n in names[last_wait:] if n.startswith(wanted)]
        assert tuple(order[:4]) == wanted, kernel


def test_permission_to_fuse_changes_nothing(compiled: Compiled, tmp_path: Path) -> None:
    """Compiled with --fmad=true the instructions are the same: every rounding is spelled out."""
    assert build(tmp_path, "--fmad=true").kernels == compiled.kernels


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_no_other_architecture_has_it(architecture: str) -> None:
    """Only sm_90a knows the instruction: a newer GPU cannot run it either."""
    options = (f"--gpu-architecture={architecture}", *OPTIONS)
    with pytest.raises(CompileError, match="wgmma"):
        compile_cubin(SOURCE.read_text(encoding="ascii"), options, SOURCE.name)
