"""One honest run for the whole session, and copies of it to tamper with."""

import pytest

from tests.verifier import runs


@pytest.fixture(scope="session")
def honest(tmp_path_factory):
    """Folder of an honest run of six steps; not to be changed."""
    return runs.train(tmp_path_factory.mktemp("honest") / "run", runs.config())


@pytest.fixture
def copied(honest, tmp_path):
    """Make a copy of the honest run."""
    return runs.copy(honest, tmp_path / "run")
