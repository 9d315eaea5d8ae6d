"""A declared fault checked by itself: `verify_file`."""

from __future__ import annotations

import shutil

import pytest

from tests.transcript.make_golden import GOLDEN, KEY
from transcript.errors import SignatureError
from transcript.keys import PrivateKey
from transcript.run import RunFolder
from verifier.errors import UntrustedError
from verifier.verify import verify_file


def test_a_declared_fault_verifies_offline(tmp_path):
    """The key is the given one, or that of the registration above it; another is refused."""
    shutil.copytree(GOLDEN / "run", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    (path,) = folder.faults.iterdir()
    loose, strict = verify_file(path), verify_file(path, KEY.public)
    assert (loose.kind, loose.trusted, strict.trusted) == ("declared-fault", False, True)
    assert (loose.digest, loose.facts["step"], loose.facts["rank"]) == (path.stem[:64], "2", "0")
    with pytest.raises(SignatureError):
        verify_file(path, PrivateKey.generate().public)
    folder.registration.unlink()
    with pytest.raises(UntrustedError):
        verify_file(path)
