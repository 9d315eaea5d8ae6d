"""One tiny trained run for the whole session, and generations from it."""

from __future__ import annotations

import pytest

from tests.verifier import runs
from trainer.generate import TrainedModel
from transcript.run import RunFolder


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Folder of a finished run of the tiny model; not to be changed."""
    return runs.train(tmp_path_factory.mktemp("trained") / "run", runs.config())


@pytest.fixture(scope="session")
def source(trained):
    """Give the trained model."""
    return TrainedModel.read(RunFolder(trained))
