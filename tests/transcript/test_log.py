"""The log: appending, restarting, and reading what somebody else wrote."""

import os
from pathlib import Path

import pytest

from tests.transcript.strategies import HEX, step_leaf
from transcript import canonical
from transcript.checkpoint import Checkpoint
from transcript.errors import (
    ContractError,
    ForkError,
    LimitError,
    MalformedError,
    MissingError,
    ProofError,
    SignatureError,
    StorageError,
    VersionError,
)
from transcript.keys import PrivateKey
from transcript.log import Log, LogReader, StepLeaf
from transcript.merkle import verify_consistency, verify_inclusion

KEY = PrivateKey.generate()


def write(folder, steps, every=0):
    """Write leaves, with a checkpoint after every so many."""
    with Log(folder, "demo-1") as log:
        for step in range(steps):
            log.append(step_leaf(step))
            if every and (step + 1) % every == 0:
                log.checkpoint(KEY)


@pytest.fixture
def folder(tmp_path):
    """Make a log of seven leaves with checkpoints over 3 and 6."""
    write(tmp_path / "log", 7, every=3)
    return tmp_path / "log"


def test_what_is_appended_is_read(folder):
    """Leaves come back equal, checkpoints verify, and their roots are the leaves'."""
    with LogReader(folder, "demo-1") as reader:
        assert list(reader.leaves()) == [step_leaf(step) for step in range(7)]
        heads = reader.verify_checkpoints(KEY.public)
        assert [head.size for head in heads] == [3, 6]
        for head in heads:
            assert head.root == reader.tree.root(head.size)
            for step in range(head.size):
                proof = reader.inclusion_proof(step, head.size)
                digest = reader.tree.leaf(step)
                verify_inclusion(digest, step, head.size, proof, head.root)
        proof = reader.consistency_proof(3, 6)
        verify_consistency(3, 6, heads[0].root, heads[1].root, proof)


def test_lines_are_canonical(folder):
    """A line is the leaf's canonical JSON, byte for byte."""
    lines = (folder / "leaves.jsonl").read_bytes().split(b"\n")
    assert lines[-1] == b""
    assert lines[2] == canonical.dumps(canonical.loads(lines[2], limit=10_000))
    assert StepLeaf.parse(lines[2], step=2).encode() == lines[2]


def test_appending_again_changes_nothing(folder):
    """A restarted writer may append what is there again; new steps follow on."""
    before = (folder / "leaves.jsonl").read_bytes()
    with Log(folder, "demo-1") as log:
        assert len(log) == 7
        assert [log.append(step_leaf(step)) for step in (0, 3, 6)] == [0, 3, 6]
        assert (folder / "leaves.jsonl").read_bytes() == before
        log.append(step_leaf(7))
        log.checkpoint(KEY)
    with LogReader(folder, "demo-1") as reader:
        assert [head.size for head in reader.verify_checkpoints(KEY.public)] == [3, 6, 8]


def test_another_history_is_refused(folder):
    """Appending other values for a logged step fails loudly and leaves the log as it was."""
    before = (folder / "leaves.jsonl").read_bytes()
    with Log(folder, "demo-1") as log, pytest.raises(ForkError) as caught:
        log.append(step_leaf(3, arenas=["f" * 64]))
    assert set(caught.value.evidence) == {"logged", "appended"}
    assert (folder / "leaves.jsonl").read_bytes() == before


def test_gaps_and_foreign_leaves_are_refused(folder):
    """A step that leaves one out, and a leaf of another run, are refused."""
    with Log(folder, "demo-1") as log:
        for leaf in (step_leaf(8), step_leaf(7, run_id="demo-2")):
            with pytest.raises(ContractError):
                log.append(leaf)


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_cut_last_line_is_repaired(folder, cut):
    """A writer removes a last line that a crash cut, and goes on from there."""
    path = folder / "leaves.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with pytest.raises(MalformedError, match="jsonl:7: the line is too long or cut"):
        LogReader(folder, "demo-1")
    with Log(folder, "demo-1") as log:
        assert len(log) == 6
        log.append(step_leaf(6))
    assert path.read_bytes() == whole


def test_a_log_that_lost_signed_leaves_is_not_continued(folder):
    """A writer refuses a log whose checkpoint covers more leaves than there are."""
    path = folder / "leaves.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
    with pytest.raises(MissingError, match="signs 6 leaves, there are 5"):
        Log(folder, "demo-1")


def test_one_writer_at_a_time(folder):
    """A second writer is refused while the first is open, and welcome after it."""
    with Log(folder, "demo-1"), pytest.raises(ContractError, match="another process"):
        Log(folder, "demo-1")
    Log(folder, "demo-1").close()


@pytest.mark.parametrize("failure", ["short", "error"])
def test_a_full_disk_loses_nothing(folder, monkeypatch, failure):
    """If a leaf cannot be written whole, nothing of it remains and earlier leaves stand."""
    path = folder / "leaves.jsonl"
    before = path.read_bytes()
    real = os.write

    def full(descriptor, data):
        if failure == "error":
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:10])

    with Log(folder, "demo-1") as log:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="No space left"):
            log.append(step_leaf(7))
        monkeypatch.setattr(os, "write", real)
        assert path.read_bytes() == before
        log.append(step_leaf(7))
    with LogReader(folder, "demo-1") as reader:
        assert len(reader) == 8


@pytest.mark.parametrize("sync", ["leaf", "checkpoint"])
def test_leaves_reach_the_disk_before_they_are_signed(tmp_path, monkeypatch, sync):
    """Leaves are forced to the disk before a checkpoint is; each of them with sync=leaf."""
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with Log(tmp_path, "demo-1", sync=sync) as log:
        log.append(step_leaf(0))
        assert len(synced) == (sync == "leaf")
        log.checkpoint(KEY)
    assert synced.index("leaves.jsonl") < next(i for i, n in enumerate(synced) if "tmp" in n)


def test_a_rewritten_entry_is_noticed(folder):
    """Changing one logged leaf changes the root under every checkpoint that covers it."""
    path = folder / "leaves.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = step_leaf(4, scalars=["3f800000"]).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    with LogReader(folder, "demo-1") as reader:
        reader.verify_checkpoint(3, KEY.public)
        with pytest.raises(ProofError, match="another root") as caught:
            reader.verify_checkpoint(6, KEY.public)
    assert caught.value.evidence.keys() == {"signed", "computed"}


def test_a_shortened_log_is_noticed(folder):
    """Leaves that were signed and are gone are missing."""
    path = folder / "leaves.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
    with LogReader(folder, "demo-1") as reader:
        reader.verify_checkpoint(3, KEY.public)
        with pytest.raises(MissingError, match="signs 6 leaves"):
            reader.verify_checkpoint(6, KEY.public)
        with pytest.raises(MissingError, match="step 5"):
            reader.leaf(5)


def test_checkpoints_by_others_are_refused(folder):
    """A head by another key, for another run, or under another size's name is refused."""
    with LogReader(folder, "demo-1") as reader:
        with pytest.raises(SignatureError):
            reader.verify_checkpoints(PrivateKey.generate().public)
        with pytest.raises(MissingError):
            reader.verify_checkpoint(5, KEY.public)
        path = folder / "checkpoints" / "6"
        for head in (
            Checkpoint(run_id="demo-2", size=6, root=reader.tree.root(6)),
            Checkpoint(run_id="demo-1", size=5, root=reader.tree.root(5)),
        ):
            path.write_bytes(head.sign(KEY))
            with pytest.raises(MalformedError, match=f"size {head.size}"):
                reader.verify_checkpoint(6, KEY.public)


@pytest.mark.parametrize("name", ["x", "07", "-1", "1.5", "9" * 400, "\u0663"])
def test_odd_checkpoint_names_are_refused(folder, name):
    """A file in the checkpoint folder is named by its size in plain decimal."""
    name = name[:200]
    (folder / "checkpoints" / name).write_bytes(b"")
    with LogReader(folder, "demo-1") as reader, pytest.raises(MalformedError, match="size"):
        reader.verify_checkpoints(KEY.public)


def bad_lines():
    """Yield a name, a line in place of leaf 2, and the error."""
    good = step_leaf(2).model_dump()
    encode = canonical.dumps
    yield "other step", encode({**good, "step": 3}), MalformedError
    yield "other run", encode({**good, "run_id": "demo-2"}), MalformedError
    yield "other version", encode({**good, "type": "bitwitness/step/v2"}), VersionError
    yield "no type", encode({k: v for k, v in good.items() if k != "type"}), MalformedError
    yield "missing field", encode({k: v for k, v in good.items() if k != "arenas"}), MalformedError
    yield "extra field", encode({**good, "note": 1}), MalformedError
    yield "step as text", encode({**good, "step": "2"}), MalformedError
    yield "step as bool", encode({**good, "step": True}), MalformedError
    yield "upper case", encode({**good, "registration": HEX.upper()}), MalformedError
    yield "short digest", encode({**good, "state_after": "ab"}), MalformedError
    yield "newline in digest", encode({**good, "state_after": HEX[:-1] + "\n"}), MalformedError
    yield "no ranks", encode({**good, "arenas": [], "batches": []}), MalformedError
    yield "ranks differ", encode({**good, "arenas": [HEX, HEX]}), MalformedError
    yield "scalar digits", encode({**good, "scalars": ["3f80"]}), MalformedError
    yield "spaces", encode(good).replace(b",", b", "), MalformedError
    yield "not JSON", b"step 2", MalformedError
    yield "empty", b"", MalformedError
    yield "a list", b"[]", MalformedError


@pytest.mark.parametrize(
    ("line", "error"), [b[1:] for b in bad_lines()], ids=[b[0] for b in bad_lines()]
)
def test_bad_leaves_are_refused(folder, line, error):
    """Every deviation of a leaf is refused with file and line named, by reader and writer."""
    path = folder / "leaves.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[2] = line
    path.write_bytes(b"\n".join(lines))
    with LogReader(folder, "demo-1") as reader:
        with pytest.raises(error, match=r"leaves\.jsonl:3: "):
            reader.leaf(2)
        assert reader.leaf(1) == step_leaf(1)
    with pytest.raises(error, match=r"leaves\.jsonl:3: "):
        Log(folder, "demo-1")


def test_limits(folder, monkeypatch):
    """Too many leaves, and a line without end, are refused without reading on."""
    with pytest.raises(LimitError, match="more than 6 leaves"):
        LogReader(folder, "demo-1", max_leaves=6)
    monkeypatch.setattr("transcript.log_reader.LEAF_LIMIT", 100)
    with pytest.raises(LimitError, match="jsonl:1"):
        LogReader(folder, "demo-1")


def test_a_log_that_changes_while_it_is_read(folder):
    """Bytes that changed after they were hashed are not parsed."""
    with LogReader(folder, "demo-1") as reader:
        path = folder / "leaves.jsonl"
        path.write_bytes(path.read_bytes().replace(b"40b15c29", b"40b15c28"))
        with pytest.raises(ProofError, match="changed"):
            reader.leaf(0)


def test_missing_and_linked_logs(folder, tmp_path):
    """A missing log is missing, a linked one is refused."""
    with pytest.raises(MissingError):
        LogReader(tmp_path / "none", "demo-1")
    (folder / "leaves.jsonl").rename(tmp_path / "elsewhere")
    (folder / "leaves.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MalformedError):
        LogReader(folder, "demo-1")
    with pytest.raises(StorageError):
        Log(folder, "demo-1")


def test_an_empty_log_is_not_signed(tmp_path):
    """There is no tree head over nothing."""
    with Log(tmp_path, "demo-1") as log, pytest.raises(ContractError, match="empty"):
        log.checkpoint(KEY)


@pytest.mark.parametrize("run_id", ["", "a b", "A", "a\n", "../x", "a+b", "x" * 65])
def test_run_ids(tmp_path, run_id):
    """A run id fits an origin line and a file name."""
    with pytest.raises(ContractError, match="run id"):
        Log(tmp_path, run_id)
