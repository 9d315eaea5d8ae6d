"""Schedules and tables: right, and rounded once."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest

from trainer.config import ModelConfig, OptimConfig
from trainer.constants import rope_tables, step_constants, step_scalars

OPTIM = OptimConfig(learning_rate=Decimal("0.003"), warmup_steps=10)


def test_warmup_is_linear_and_cosine_ends_at_the_floor() -> None:
    """The rate climbs to the peak in the warm-up and falls to its final fraction."""
    rates = [float(step_scalars(OPTIM, 100, t)[0]) for t in range(100)]
    assert rates[0] == np.float32(0.0003)
    assert rates[9] == rates[10] == np.float32(0.003)
    assert rates[99] == np.float32(0.0003)
    assert all(a >= b for a, b in pairwise(rates[10:]))
    assert rates[54] == pytest.approx(0.003 * 0.55, rel=0.02)


def test_corrections_are_those_of_adam() -> None:
    """1/(1 - beta^(t+1)), correctly rounded from f64."""
    for t in (0, 1, 9, 1000):
        _, c1, c2 = step_scalars(OPTIM, 2000, t)
        assert c1 == np.float32(1 / (1 - 0.9 ** (t + 1)))
        assert c2 == np.float32(1 / (1 - 0.95 ** (t + 1)))


def test_rope_tables_agree_with_float64() -> None:
    """The tables are cos and sin of t * base^(-2i/d) to the last bit of f32."""
    model = ModelConfig(layers=1, width=32, heads=2, hidden=8, context=40)
    cos, sin = rope_tables(model)
    angles = np.arange(40)[:, None] * 10000.0 ** (-np.arange(8) / 8)
    assert cos.shape == sin.shape == (40, 8)
    assert np.abs(cos - np.cos(angles)).max() <= 2.0**-25
    assert np.abs(sin - np.sin(angles)).max() <= 2.0**-25


def test_loss_scale_is_the_share_of_a_rank() -> None:
    """Each rank's loss counts 1/world."""
    model = ModelConfig(layers=1, width=4, heads=1, hidden=4, context=2)
    assert step_constants(model, 4)["loss_scale"] == np.float32(0.25)
