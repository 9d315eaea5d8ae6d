"""Fixtures shared by all tests: a tiny run's configuration."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from trainer.config import RunConfig

TINY: dict[str, Any] = {
    "name": "tiny",
    "seed": 7,
    "numerics": {"device": "emulated", "arch": "hopper", "profile": "heal"},
    "model": {"layers": 2, "width": 32, "heads": 2, "hidden": 48, "context": 16},
    "data": {"source": "stdlib", "pattern": "a*.py", "max_bytes": 50_000},
    "optim": {"learning_rate": "0.01", "warmup_steps": 1},
    "train": {"steps": 4, "batch": 2},
    "record": {"policy": "all", "checkpoint_every": 2},
    "recheck": {"products": 2},
}


def tiny_document(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return the tiny configuration with some keys of some sections replaced."""
    document = copy.deepcopy(TINY)
    for section, values in sections.items():
        document[section] = {**document[section], **values}
    return document


@pytest.fixture
def tiny() -> RunConfig:
    """Give the tiny configuration: a step takes milliseconds."""
    return RunConfig.from_document(TINY)
