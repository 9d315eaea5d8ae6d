"""Values computed once on the host and committed as data: schedules and RoPE tables.

They are computed with mpmath at 100 bits and rounded to f64 and then f32, never with the C
library's or NumPy's transcendental functions, whose last bit depends on the machine: an
auditor elsewhere must get the same bits (NUMERICS 3).
"""

from __future__ import annotations

from decimal import Decimal

import mpmath
import numpy as np
from numpy.typing import NDArray

from trainer.config import ModelConfig, OptimConfig

_BITS = 100

SCALAR_NAMES = ("learning_rate", "correction1", "correction2")


def _mpf(value: Decimal) -> mpmath.mpf:
    return mpmath.mpf(str(value))


def step_scalars(optim: OptimConfig, steps: int, step: int) -> NDArray[np.float32]:
    """Return f32 [3]: learning rate, 1/(1-beta1^(t+1)), 1/(1-beta2^(t+1)) of step t.

    Warm-up is linear from lr/warmup to lr; then a half cosine falls to
    `final_fraction * lr` at the last step.
    """
    with mpmath.workprec(_BITS):
        peak = _mpf(optim.learning_rate)
        if step < optim.warmup_steps:
            rate = peak * (step + 1) / optim.warmup_steps
        else:
            span = max(steps - 1 - optim.warmup_steps, 1)
            progress = mpmath.mpf(step - optim.warmup_steps) / span
            floor = _mpf(optim.final_fraction)
            rate = peak * (floor + (1 - floor) * (1 + mpmath.cospi(progress)) / 2)
        corrections = [1 / (1 - _mpf(beta) ** (step + 1)) for beta in (optim.beta1, optim.beta2)]
        values = [float(value) for value in (rate, *corrections)]
    return np.array(values, dtype=np.float64).astype(np.float32)


def rope_tables(model: ModelConfig) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cos and sin, f32 [context, head_size/2], of t * base^(-2i/head_size)."""
    half = model.head_size // 2
    with mpmath.workprec(_BITS):
        base = _mpf(model.rope_base)
        frequencies = [base ** (-mpmath.mpf(i) / half) for i in range(half)]
        angles = [[t * f for f in frequencies] for t in range(model.context)]
        cos = [[float(mpmath.cos(a)) for a in row] for row in angles]
        sin = [[float(mpmath.sin(a)) for a in row] for row in angles]
    return np.array(cos).astype(np.float32), np.array(sin).astype(np.float32)


def step_constants(model: ModelConfig, world: int) -> dict[str, NDArray[np.float32]]:
    """Return the constants that every step reads, by name, in committed order.

    `loss_scale` (f32 []) is 1/world: each rank's mean loss is scaled by it before the
    backward pass, so the gradients' sum over ranks is the gradient of the mean.
    """
    cos, sin = rope_tables(model)
    scale = np.array(1.0 / world, dtype=np.float32)
    return {"rope_cos": cos, "rope_sin": sin, "loss_scale": scale}
