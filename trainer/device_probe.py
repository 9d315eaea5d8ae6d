"""What a device answers to fixed questions, before step 0 and after the last step.

The questions are two matrices whose products tell tensor cores apart: how many bits they keep when
terms are aligned, how many products they add at once, how they round. They follow from the run's
id and from the state that it has at that moment, so answers to the second probe cannot be older
than the run. All stay in the region that is recorded from hardware (NUMERICS 1.4): no special
values, no sums near 2^-126. The products go the way that the run's own products go: through the
emulator, or the GPU's kernels. docs/formats/device-probe.md is the contract.

Anybody with the emulator can compute the answers: they show which arithmetic was at work where they
were made, to one who is honest about where that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

import emulator_ext
from emulator_ext import UnsupportedError, pinned
from trainer.config import NumericsConfig
from trainer.data import derive_seed

Matrix = NDArray[np.float32]
Multiply = Callable[[Matrix, Matrix, str], Matrix]
Moment = Literal["start", "end"]

EDGE: Final = 64
DEPTH: Final = 128
_DOMAIN: Final = "bitwitness/device-probe/v1"
_ROWS: Final = EDGE // 4
# Profiles whose bits depend on how a tensor core adds; the others are the same anywhere.
_BOUND: Final = {"heal": "f16", "bf16": "bf16"}


def probed_profiles(numerics: NumericsConfig) -> tuple[str, ...]:
    """Return the profiles whose products are asked for.

    Those that the architecture's tensor cores decide, as far as it has them; for a run whose own
    profile is the same on all, that one.
    """
    if numerics.profile not in _BOUND:
        return (numerics.profile,)
    return tuple(name for name, dtype in _BOUND.items() if _exists(numerics.arch, dtype))


def answers(
    numerics: NumericsConfig, multiply: Multiply, *, run_id: str, moment: Moment, root: str
) -> bytes:
    """Return all products, f32 [profiles, EDGE, EDGE], little-endian.

    Args:
        numerics: of the run.
        multiply: takes a f32 [EDGE, DEPTH], b f32 [DEPTH, EDGE] and a profile.
        run_id: the run.
        moment: "start" or "end".
        root: of the state at that moment, hex.

    Raises:
        emulator_ext.errors.EmulatorError: the device refuses.

    """
    products = [
        multiply(*questions(profile, run_id=run_id, moment=moment, root=root), profile)
        for profile in probed_profiles(numerics)
    ]
    return b"".join(np.ascontiguousarray(p, dtype="<f4").tobytes() for p in products)


def questions(profile: str, *, run_id: str, moment: Moment, root: str) -> tuple[Matrix, Matrix]:
    """Return a f32 [EDGE, DEPTH] and b f32 [DEPTH, EDGE] of one profile's product."""
    seed = derive_seed(_DOMAIN, 0, run_id, moment, root, profile)
    a_words, b_words = pinned.philox(seed, 0, 0, 2 * EDGE * DEPTH).reshape(2, EDGE, DEPTH)
    a_MK = np.concatenate(list(_strata(a_words)))
    b_NK = _numbers(b_words, 16)
    # beside a pair that cancels, of a's third stratum, half of b's columns leave nothing over
    b_NK[: EDGE // 2, 1::2] = b_NK[: EDGE // 2, ::2]
    return a_MK, np.ascontiguousarray(b_NK.T)


def emulated(arch: str, threads: int | None = None) -> Multiply:
    """Return the emulator's products."""

    def multiply(a: Matrix, b: Matrix, profile: str) -> Matrix:
        product: Matrix = emulator_ext.gemm(a, b, profile=profile, arch=arch, threads=threads)
        return product

    return multiply


def open_device(numerics: NumericsConfig, threads: int | None = None) -> Multiply:
    """Return the products of the run's own device.

    Raises:
        trainer.kernels.errors.EnvironmentMissingError: `device: cuda` without CuPy or a GPU.

    """
    if numerics.device == "emulated":
        return emulated(numerics.arch, threads)
    from trainer.kernels import require

    require()

    def multiply(a: Matrix, b: Matrix, profile: str) -> Matrix:
        on_device = (torch.from_numpy(x).cuda() for x in (a, b))
        product = torch.ops.bitwitness.gemm(*on_device, profile, numerics.arch)
        found: Matrix = product.cpu().numpy()
        return found

    return multiply


def _strata(words: NDArray[np.uint32]) -> Iterator[Matrix]:
    """Yield four kinds of rows: near 1, of all sizes, pairs that cancel, mostly zeros."""
    near, wide, pairs, sparse = words.reshape(4, _ROWS, DEPTH)
    yield _numbers(near, 3)
    yield _numbers(wide, 24)
    cancelling = _numbers(pairs, 16)
    cancelling[:, 1::2] = -cancelling[:, ::2]
    yield cancelling
    yield np.where(sparse % 5 == 0, _numbers(sparse, 24), np.float32(0))


def _numbers(words: NDArray[np.uint32], binades: int) -> Matrix:
    """Return f32 of random sign and fraction, with exponents -binades/2 and up, `binades` of them.

    Short fractions, every fourth, make the ties and exact sums that long ones do not.
    """
    sign = words & np.uint32(1 << 31)
    exponent = np.uint32(127 - binades // 2) + (words >> np.uint32(23)) % np.uint32(binades)
    short = (words >> np.uint32(29)) & np.uint32(3) == 0
    fraction = words & np.where(short, np.uint32(7 << 20), np.uint32((1 << 23) - 1))
    bits: NDArray[np.uint32] = sign | (exponent << np.uint32(23)) | fraction
    return bits.view(np.float32)


def _exists(arch: str, dtype: str) -> bool:
    try:
        emulator_ext.numerics(arch, dtype)
    except UnsupportedError:
        return False
    return True
