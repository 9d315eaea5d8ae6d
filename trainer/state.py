"""The state before step 0, derived from the seed.

Matrices are uniform in (-a, a) with standard deviation 1/sqrt(fan-in), from Philox integers
by one exact map and one rounded multiply; norm weights are ones; moments are zeros.
"""

from __future__ import annotations

from math import prod

import mpmath
import numpy as np
from numpy.typing import NDArray

from emulator_ext import pinned
from trainer.config import RunConfig
from trainer.data import derive_seed
from trainer.model import ParameterSpec, parameter_specs

_FIRST_PARAMETER_STREAM = 1 << 16


def initial_state(config: RunConfig) -> dict[str, NDArray[np.float32]]:
    """Return every state tensor before step 0, by name, in committed order."""
    specs = list(parameter_specs(config.model))
    state = {f"params/{s.name}": _initial(config, s, i) for i, s in enumerate(specs)}
    for group in ("m", "v"):
        state |= {f"{group}/{s.name}": np.zeros(s.shape, dtype=np.float32) for s in specs}
    return state


def _initial(config: RunConfig, spec: ParameterSpec, index: int) -> NDArray[np.float32]:
    if spec.fan_in == 0:
        return np.ones(spec.shape, dtype=np.float32)
    seed = derive_seed("bitwitness/initial-state/v1", config.seed)
    words = pinned.philox(seed, _FIRST_PARAMETER_STREAM + index, 0, prod(spec.shape))
    # An odd integer in (-2^24, 2^24), so every value below is exact and none is zero.
    odd = 2 * (words >> np.uint32(8)).astype(np.int32) + 1 - (1 << 24)
    unit = odd.astype(np.float32) * np.float32(2.0**-24)
    with mpmath.workprec(100):
        bound = np.float32(float(mpmath.sqrt(mpmath.mpf(3) / spec.fan_in)))
    return (unit * bound).reshape(spec.shape)
