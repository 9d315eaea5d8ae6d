"""Kernels compiled by NVRTC for real GPUs, and what their machine code shows.

The listing is nvdisasm's. Nothing here runs a kernel: it needs no GPU.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from tests.trainer.kernels.nvrtc import CompileError, compile_cubin, disassemble, opcodes
from trainer.kernels.sources import ARCHITECTURE_SPECIFIC, OPTIONS, kernels_of, source_files

ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100")
Listing = dict[str, list[str]]
# What is for one architecture alone has tests of its own.
SOURCES = [path for path in source_files() if path.stem not in ARCHITECTURE_SPECIFIC]

# f32 kernels without division, square root or a written fma: not one FFMA may appear in them.
SEPARATE = (
    "causal_softmax_backward", "embedding_backward", "fold_lanes", "gemm_bf16_128x128",
    "gemm_bf16_64x64", "gemm_heal_64x64", "gemm_heal_96x128", "gemm_int16_mix",
    "gemm_int16_scores", "heal_planes", "int16_hold", "int16_quantise", "int16_row_digits",
    "int16_weight_digits", "rmsnorm_dweight", "rope", "square_lanes", "swiglu",
    "swiglu_backward",
)  # fmt: skip


def listing(source: Path, architecture: str, folder: Path, *more: str) -> Listing:
    options = (f"--gpu-architecture={architecture}", *OPTIONS, *more)
    cubin = compile_cubin(source.read_text(encoding="ascii"), options, source.name)
    place = folder / f"{source.stem}-{architecture}"
    place.mkdir(parents=True)
    return disassemble(cubin, place)


@pytest.fixture(scope="module")
def listings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Listing]:
    """Every kernel's instructions, by architecture."""
    folder = tmp_path_factory.mktemp("listings")
    jobs = list(product(SOURCES, ARCHITECTURES))
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda job: listing(*job, folder), jobs))
    merged: dict[str, Listing] = {architecture: {} for architecture in ARCHITECTURES}
    for (_, architecture), kernels in zip(jobs, found, strict=True):
        merged[architecture] |= kernels
    return merged


def counts(listings: dict[str, Listing], architecture: str, kernel: str) -> Counter[str]:
    return opcodes(listings[architecture][kernel])


def total(found: Counter[str], prefix: str) -> int:
    return sum(n for opcode, n in found.items() if opcode.split(".")[0] == prefix)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles(listings: dict[str, Listing], architecture: str) -> None:
    """NVRTC makes machine code of every kernel of every source."""
    names = {name for source in SOURCES for name in kernels_of(source)}
    assert listings[architecture].keys() == names
    assert all(listings[architecture].values())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("kernel", "shape", "tiles", "chains"),
    [
        ("gemm_heal_96x128", "HMMA.16816.F32", 3 * 4, 6),
        ("gemm_heal_64x64", "HMMA.16816.F32", 2 * 4, 6),
        ("gemm_exact_64x64", "HMMA.16816.F32", 2 * 4, 12),
        ("gemm_int16_scores", "HMMA.16816.F32", 4, 8),
        ("gemm_int16_mix", "HMMA.16816.F32", 4, 12),
        ("gemm_bf16_128x128", "HMMA.16816.F32.BF16", 4 * 4, 2),
        ("gemm_bf16_64x64", "HMMA.16816.F32.BF16", 2 * 4, 2),
    ],
)
def test_products_use_the_named_instruction(
    listings: dict[str, Listing],
    architecture: str,
    kernel: str,
    shape: str,
    tiles: int,
    chains: int,
) -> None:
    """Only m16n8k16 with f32 accumulators appears, once per tile and product of a K block.

    The compiler may unroll the loop along K, so the number is a multiple.
    """
    found = {op: n for op, n in counts(listings, architecture, kernel).items() if "MMA" in op}
    assert found.keys() == {shape}
    assert found[shape] % (tiles * chains) == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_heal_adds_outside_the_tensor_core(listings: dict[str, Listing], architecture: str) -> None:
    """Per output and block of K there are two f32 additions, and one more at the end."""
    for kernel, outputs in (("gemm_heal_96x128", 48), ("gemm_heal_64x64", 32)):
        found = counts(listings, architecture, kernel)
        blocks = found["HMMA.16816.F32"] // (outputs // 4 * 6)
        assert total(found, "FADD") == outputs * (2 * blocks + 1)
        assert total(found, "FMUL") == outputs


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_products_keep_everything_in_registers(
    listings: dict[str, Listing], architecture: str
) -> None:
    """Neither a GEMM kernel nor one that packs or hashes uses local memory."""
    prefixes = ("gemm", "int16", "leaf_hashes", "tree_level", "pack_tiles")
    for kernel in listings[architecture]:
        if kernel.startswith(prefixes):
            found = counts(listings, architecture, kernel)
            assert (total(found, "STL"), total(found, "LDL")) == (0, 0), kernel


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_products_load_asynchronously_and_by_matrix(
    listings: dict[str, Listing], architecture: str
) -> None:
    """Stages are filled by cp.async and read by ldmatrix."""
    for kernel in ("gemm_heal_96x128", "gemm_bf16_128x128", "gemm_int16_mix"):
        found = counts(listings, architecture, kernel)
        assert total(found, "LDGSTS") > 0
        assert total(found, "LDSM") > 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_separate_operations_stay_separate(listings: dict[str, Listing], architecture: str) -> None:
    """Where the source multiplies and then adds, nothing is fused and nothing is flushed."""
    for kernel in SEPARATE:
        found = counts(listings, architecture, kernel)
        assert total(found, "FFMA") == 0, kernel
        flushed = [op for op in found if op.split(".")[0] in {"FADD", "FMUL"} and ".FTZ" in op]
        assert not flushed, kernel


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_int16_sums_are_joined_as_integers(listings: dict[str, Listing], architecture: str) -> None:
    """Outside the tensor core INT16 products have no f32 arithmetic: one rounding, from f64."""
    for kernel in ("gemm_int16_scores", "gemm_int16_mix"):
        found = counts(listings, architecture, kernel)
        assert [total(found, op) for op in ("FADD", "FMUL", "FFMA", "DFMA")] == [0, 0, 0, 0], kernel
        assert total(found, "DMUL") == 16  # outputs of a thread


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fp32_is_a_chain_of_fma(listings: dict[str, Listing], architecture: str) -> None:
    """The fp32 product has fused operations and no separate ones, and no tensor core."""
    found = counts(listings, architecture, "gemm_fp32")
    assert total(found, "FFMA") >= 16 * 16
    assert (total(found, "FADD"), total(found, "FMUL"), total(found, "HMMA")) == (0, 0, 0)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_permission_to_fuse_changes_nothing(
    listings: dict[str, Listing], source: Path, tmp_path: Path
) -> None:
    """Compiled with --fmad=true the instructions are the same: every rounding is spelled out."""
    fused = listing(source, "sm_90", tmp_path, "--fmad=true")
    assert fused == {name: listings["sm_90"][name] for name in fused}


def test_permission_to_fuse_would_show(tmp_path: Path) -> None:
    """The comparison above can fail: plain operators do change under --fmad=true."""
    source = tmp_path / "plain.cu"
    source.write_text(
        'extern "C" __global__ void plain(float* x) { x[0] = x[1] * x[2] + x[3]; }',
        encoding="ascii",
    )
    fused = listing(source, "sm_90", tmp_path / "fused", "--fmad=true")
    separate = listing(source, "sm_90", tmp_path / "separate")
    assert total(opcodes(fused["plain"]), "FFMA") == 1
    assert total(opcodes(separate["plain"]), "FFMA") == 0


def test_flushing_would_show(listings: dict[str, Listing], tmp_path: Path) -> None:
    """With --ftz=true, which CuPy's own compilation appends, even spelled-out operations flush."""
    (source,) = (path for path in SOURCES if "rope" in kernels_of(path))
    flushed = opcodes(listing(source, "sm_90", tmp_path, "--ftz=true")["rope"])
    assert flushed["FADD.FTZ"] > 0
    assert counts(listings, "sm_90", "rope")["FADD.FTZ"] == 0


def test_a_source_that_does_not_compile_is_an_error() -> None:
    """NVRTC's log reaches the reader."""
    with pytest.raises(CompileError, match="nowhere"):
        compile_cubin("int x = nowhere;", ("--gpu-architecture=sm_90",))
