"""Reading other people's files, and the folder of a run."""

import os
from pathlib import Path

import pytest

from transcript.errors import (
    ContractError,
    LimitError,
    MalformedError,
    MissingError,
    StorageError,
)
from transcript.files import open_regular, read_bounded, write_atomic
from transcript.run import RunFolder


def test_paths_are_as_documented():
    """Every file of a run lies where docs/formats/run-folder.md says."""
    run = RunFolder(Path("RUN"))
    assert [
        str(p)
        for p in (
            run.registration, run.graph, run.leaves, run.checkpoint(12), run.store, run.dataset,
            run.weights, run.commitment, run.log,
        )
    ] == [
        "RUN/registration.dsse.json", "RUN/graph.json", "RUN/log/leaves.jsonl",
        "RUN/log/checkpoints/12", "RUN/store.zarr", "RUN/dataset.zarr",
        "RUN/weights/model.safetensors", "RUN/commitment.dsse.json", "RUN/log",
    ]  # fmt: skip


def test_every_path_is_documented():
    """The document of the run folder names every path that the class knows."""
    text = (Path(__file__).parents[2] / "docs/formats/run-folder.md").read_text()
    run = RunFolder(Path())
    for path in (run.registration, run.graph, run.commitment, run.leaves, run.store, run.dataset):
        assert path.name in text


@pytest.fixture
def run(tmp_path):
    """Make a run folder with one file in a folder."""
    (tmp_path / "run" / "log").mkdir(parents=True)
    (tmp_path / "run" / "log" / "leaves.jsonl").write_bytes(b"12345")
    (tmp_path / "outside").write_bytes(b"secret")
    return RunFolder(tmp_path / "run")


def test_reading_is_bounded(run):
    """A file of exactly the limit is read, one byte more is refused, none is missing."""
    assert run.read(run.leaves, 5) == b"12345"
    with pytest.raises(LimitError, match="4 bytes"):
        run.read(run.leaves, 4)
    with pytest.raises(MissingError, match=r"graph\.json"):
        run.read(run.graph)


@pytest.mark.parametrize("where", ["file", "folder"])
def test_links_are_not_followed(run, where):
    """A symbolic link is refused, whether the file itself or a folder on the way."""
    if where == "file":
        run.leaves.unlink()
        run.leaves.symlink_to(run.root.parent / "outside")
    else:
        run.log.rename(run.root / "elsewhere")
        run.log.symlink_to(run.root / "elsewhere")
    with pytest.raises(MalformedError, match="link"):
        run.read(run.leaves)


def test_the_root_itself_may_be_a_link(run, tmp_path):
    """The caller's own path is trusted: `runs/latest` may point at a run."""
    (tmp_path / "latest").symlink_to(run.root)
    latest = RunFolder(tmp_path / "latest")
    assert latest.read(latest.leaves) == b"12345"


def test_only_regular_files_are_read(run):
    """A folder, a pipe (which would hang) and a device are refused."""
    run.leaves.unlink()
    os.mkfifo(run.leaves)
    (run.root / "graph.json").mkdir()
    for path in (run.leaves, run.graph):
        with pytest.raises(MalformedError, match="regular"):
            run.read(path)
    with pytest.raises(MalformedError, match="regular"):
        read_bounded(Path("/dev/zero"), 10)


@pytest.mark.parametrize("relative", ["../outside", "/etc/passwd", "", "log/../../outside"])
def test_climbing_paths_are_refused(run, relative):
    """A relative path cannot leave its root, be absolute or be empty."""
    with pytest.raises(ContractError):
        open_regular(run.root, relative)


def test_a_file_in_place_of_a_folder(run):
    """A file where a folder belongs is the input's fault, not the system's."""
    with pytest.raises(MalformedError):
        run.read(run.leaves / "1")


def test_writes_are_whole(tmp_path, monkeypatch):
    """If the disk fails in the middle, the old file is untouched and no debris stays."""
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["file"]
