"""One private Ray for all tests of this folder, and one run that was trained on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.config import ClusterConfig, Job
from cluster.places import key_paths, new_key_pair
from cluster.progress import Meter, SilentMeter
from cluster.ray_session import RaySession, ray_session
from cluster.train import TrainResult, train
from tests.conftest import tiny_document
from trainer.config import RunConfig


@pytest.fixture(scope="session")
def local_ray() -> Iterator[RaySession]:
    """Give a private Ray with room for two ranks; sessions inside the tests join it."""
    assert "ray" not in sys.modules, "a private Ray is private if nobody imported Ray before"
    # Ray's default of 10 s would be this long in every test of a metric.
    os.environ.setdefault("RAY_metrics_report_interval_ms", "1000")
    with ray_session("local", cpus=4) as session:
        yield session


def tiny_job(*, restarts: int = 0, **sections: dict[str, Any]) -> Job:
    """Return the tiny run with some keys replaced, to be trained with one thread a rank."""
    cluster = ClusterConfig(threads_per_rank=1, restarts=restarts)
    return Job(run=RunConfig.from_document(tiny_document(**sections)), cluster=cluster)


def train_in(
    folder: Path,
    job: Job,
    meter: Meter | None = None,
    *,
    resume: bool = False,
    scrub: bool = False,
) -> TrainResult:
    """Train a run in a folder that does not exist yet, with a fresh key beside it, or go on."""
    private, public = key_paths(folder)
    if not resume:
        new_key_pair(private, public)
    return train(job, folder, private, meter=meter or SilentMeter(), resume=resume, scrub=scrub)


@pytest.fixture(scope="session")
def trained(local_ray: RaySession, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Give a finished tiny run; tests only read it."""
    return train_in(tmp_path_factory.mktemp("trained") / "run", tiny_job())
