"""The instances of the tensor-core product kernels, and which of them runs.

A profile has large tiles and small ones, and on Hopper two routes: `mma.sync`, which every GPU has,
and `wgmma`. Both take the same planes and give the same bits (NUMERICS 1.1), so the choice is one
of speed alone. It is explicit: a caller's, the environment variable's, or `mma`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from trainer.kernels.errors import KernelError

Route = Literal["mma", "wgmma"]
ROUTES: Final[tuple[Route, ...]] = ("mma", "wgmma")

# Names the route of the profiles that have more than one.
ROUTE_VARIABLE: Final = "BITWITNESS_GEMM_ROUTE"

BLOCK_K: Final = 32  # kBlockK of stages.cuh
ALIGNMENT: Final = 512  # kSwizzlePattern of wgmma.cuh
# sm_90a is no minimum: its wgmma exists on this capability and on no other.
WGMMA_CAPABILITY: Final = (9, 0)

# Below this many large tiles most of a GPU would idle, and small tiles make more blocks.
LARGE_TILES: Final = 96
# Large tiles may compute so many times the outputs of small ones, at products' edges.
MOST_PADDING: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One instance of a product kernel: the outputs and threads of a block."""

    kernel: str
    route: Route
    rows: int
    columns: int
    threads: int
    planes: int
    stages: int

    @property
    def shared(self) -> int:
        """Dynamic shared memory in bytes."""
        stage = self.planes * (self.rows + self.columns) * BLOCK_K * 2
        return self.stages * stage + (ALIGNMENT if self.route == "wgmma" else 0)

    def blocks(self, batch: int, m: int, n: int) -> int:
        """Return how many blocks products of [batch, M, N] take."""
        return batch * -(-m // self.rows) * -(-n // self.columns)

    def padded(self, batch: int, m: int, n: int) -> int:
        """Return how many outputs these blocks compute, with what lies beyond the products."""
        return self.blocks(batch, m, n) * self.rows * self.columns


def _mma(kernel: str, rows: int, columns: int, threads: int, planes: int) -> Tile:
    return Tile(
        kernel=f"gemm_{kernel}_{rows}x{columns}", route="mma",
        rows=rows, columns=columns, threads=threads, planes=planes, stages=3,
    )  # fmt: skip


def _wgmma(kernel: str, rows: int, columns: int, planes: int, stages: int) -> Tile:
    # A warpgroup of 128 threads has 64 rows.
    return Tile(
        kernel=f"gemm_wgmma_{kernel}", route="wgmma",
        rows=rows, columns=columns, threads=2 * rows, planes=planes, stages=stages,
    )  # fmt: skip


# The *_KERNEL instances at the end of gemm.cu and gemm_wgmma.cu. Of each profile and route the
# first is taken for large products, the last for small ones.
TILES: Final[dict[str, tuple[Tile, ...]]] = {
    "heal": (
        _mma("heal", 96, 128, 256, 2),
        _mma("heal", 64, 64, 128, 2),
        _wgmma("heal_128x128", 128, 128, 2, 6),
        _wgmma("heal_128x128_whole", 128, 128, 2, 6),
        _wgmma("heal_64x64", 64, 64, 2, 4),
    ),
    "bf16": (
        _mma("bf16", 128, 128, 256, 1),
        _mma("bf16", 64, 64, 128, 1),
        _wgmma("bf16_128x256", 128, 256, 1, 6),
        _wgmma("bf16_64x128", 64, 128, 1, 4),
    ),
    "exact": (_mma("exact", 64, 64, 128, 3),),
}


def tiles_for(profile: str, capability: tuple[int, int]) -> tuple[Tile, ...]:
    """Return every instance that computes a profile on a GPU; none for `fp32`."""
    usable = capability == WGMMA_CAPABILITY
    return tuple(t for t in TILES.get(profile, ()) if t.route == "mma" or usable)


def choose(
    profile: str, products: tuple[int, int, int], capability: tuple[int, int], route: Route | None
) -> Tile:
    """Return the instance for products of [batch, M, N] on a GPU.

    Raises:
        KernelError: the route does not exist, here or for this profile.

    """
    wanted = route or _from_environment(profile)
    of_route = [tile for tile in TILES[profile] if tile.route == wanted]
    if not of_route:
        others = ", ".join(p for p, tiles in TILES.items() if wanted in {t.route for t in tiles})
        raise KernelError(f"gemm {profile}: no {wanted} kernel; there are some for: {others}")
    require_capability(of_route[0], capability)
    large, small = of_route[0], of_route[-1]
    fills = large.blocks(*products) >= LARGE_TILES
    wastes = large.padded(*products) > MOST_PADDING * small.padded(*products)
    return large if fills and not wastes else small


def require_capability(tile: Tile, capability: tuple[int, int]) -> None:
    """Refuse an instance that a GPU cannot run.

    Raises:
        KernelError: a wgmma kernel, and the GPU is no Hopper.

    """
    if tile.route == "wgmma" and capability != WGMMA_CAPABILITY:
        found, needed = (".".join(map(str, c)) for c in (capability, WGMMA_CAPABILITY))
        msg = f"{tile.kernel}: wgmma needs compute capability {needed}, this device has {found}"
        raise KernelError(msg)


@contextmanager
def taking(route: Route) -> Iterator[None]:
    """Let the environment name a route for a while."""
    before = os.environ.get(ROUTE_VARIABLE)
    os.environ[ROUTE_VARIABLE] = route
    try:
        yield
    finally:
        del os.environ[ROUTE_VARIABLE]
        if before is not None:
            os.environ[ROUTE_VARIABLE] = before


def _from_environment(profile: str) -> Route:
    wanted = os.environ.get(ROUTE_VARIABLE, "mma")
    if wanted not in ROUTES:
        raise KernelError(f"{ROUTE_VARIABLE} is {wanted!r}; routes are {', '.join(ROUTES)}")
    return wanted if wanted in {tile.route for tile in TILES[profile]} else "mma"
