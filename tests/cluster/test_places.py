from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cluster.errors import ExistsError, FileError
from cluster.places import (
    STORAGE_VARIABLE,
    audit_folder,
    existing_run,
    key_paths,
    new_key_pair,
    run_folder,
    signing_key,
    storage_root,
)
from transcript.errors import MalformedError
from transcript.keys import PrivateKey, PublicKey


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Look like the entry point of a Ray job, in its throw-away folder."""
    throw_away = tmp_path / "working_dir_files"
    throw_away.mkdir()
    monkeypatch.chdir(throw_away)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(STORAGE_VARIABLE, raising=False)
    return throw_away


def test_paths_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of a job a run lies where the caller stands."""
    monkeypatch.chdir(tmp_path)
    assert run_folder("demo", None, "/elsewhere") == tmp_path / "runs" / "demo"
    assert run_folder("demo", Path("here"), None) == tmp_path / "here"


@pytest.mark.usefixtures("in_job")
def test_job_does_not_write_into_its_throw_away_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a job, relative paths go to the variable's folder, the file's, or the home's."""
    assert run_folder("demo", None, None) == tmp_path / "home/bitwitness/runs/demo"
    assert run_folder("demo", Path("a"), "/data") == Path("/data/a")
    monkeypatch.setenv(STORAGE_VARIABLE, "/shared")
    assert run_folder("demo", Path("a"), "/data") == Path("/shared/a")
    assert run_folder("demo", Path("/b"), "/data") == Path("/b")


@pytest.mark.usefixtures("in_job")
def test_storage_of_a_job_is_absolute() -> None:
    """A relative storage folder would be lost with the job and is refused."""
    with pytest.raises(FileError, match="absolute"):
        storage_root("relative")


def test_run_trained_by_a_job_is_found_by_the_next(in_job: Path, tmp_path: Path) -> None:
    """An audit job finds a run under the relative path under which it was trained."""
    folder = run_folder("demo", None, None)
    folder.mkdir(parents=True)
    assert existing_run(Path("runs/demo")) == folder
    with pytest.raises(FileError, match="runs/other: no such folder"):
        existing_run(Path("runs/other"))


def test_run_is_never_overwritten(tmp_path: Path) -> None:
    """A folder that holds anything is refused, an empty one is used."""
    folder = tmp_path / "run"
    assert run_folder("demo", folder, None) == folder
    folder.mkdir()
    assert run_folder("demo", folder, None) == folder
    (folder / "file").touch()
    with pytest.raises(ExistsError, match=str(folder)):
        run_folder("demo", folder, None)


def test_audits_are_numbered_beside_the_run(tmp_path: Path) -> None:
    """Each audit gets the next free folder; the run's own folder stays as it was."""
    run = tmp_path / "run"
    run.mkdir()
    for number in ("001", "002"):
        folder = audit_folder(run, None)
        assert folder == tmp_path / "run.audits" / number
        folder.mkdir(parents=True)
    assert list(run.iterdir()) == []


def test_audit_is_never_overwritten(tmp_path: Path) -> None:
    """A given folder that holds something is refused."""
    (tmp_path / "file").touch()
    with pytest.raises(ExistsError, match="not empty"):
        audit_folder(tmp_path / "run", tmp_path)


def test_fresh_key_lies_beside_the_run(tmp_path: Path) -> None:
    """Without --key a pair is made once, outside the run, for its owner's eyes only."""
    run = tmp_path / "runs" / "demo"
    private, public = key_paths(run)
    assert run not in private.parents
    assert signing_key(None, private, public) == private
    first = private.read_bytes()
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert PublicKey.load(public).key_id == PrivateKey.load(private).public.key_id
    assert signing_key(None, private, public) == private
    assert private.read_bytes() == first


def test_unusable_keys_are_refused(tmp_path: Path) -> None:
    """A missing file, something that is no key, and a key of another kind are each named."""
    unused = (tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileError, match=r"none\.pem: no such key"):
        signing_key(tmp_path / "none.pem", *unused)
    (tmp_path / "text.pem").write_text("no key")
    with pytest.raises(MalformedError, match=r"text\.pem"):
        signing_key(tmp_path / "text.pem", *unused)
    PrivateKey.generate("ecdsa-p256-sha256").save(tmp_path / "p256.pem")
    with pytest.raises(FileError, match="not an Ed25519 key"):
        signing_key(tmp_path / "p256.pem", *unused)
    assert not any(path.exists() for path in unused)


def test_key_is_never_overwritten(tmp_path: Path) -> None:
    """Keygen refuses a path where either half is there."""
    new_key_pair(tmp_path / "k", tmp_path / "k.pub")
    before = (tmp_path / "k").read_bytes()
    for private, public in (("k", "other"), ("other", "k.pub")):
        with pytest.raises(ExistsError, match="there is a key already"):
            new_key_pair(tmp_path / private, tmp_path / public)
    assert (tmp_path / "k").read_bytes() == before
    assert not (tmp_path / "other").exists()
