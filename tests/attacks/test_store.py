"""Attacks 30 to 33: bytes that are missing, changed, or not where they should be."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.attacks.conftest import CHEATED_STEP, judge
from tests.verifier import runs
from trainer.plan import layouts_of, open_for_writing
from trainer.trace import derive_graph
from transcript.run import RunFolder
from transcript.store import RunStore
from verifier.verdict import Overall, Verdict


def chunk(folder: RunFolder, array: str, slot: int):
    return folder.store / array / "c" / str(slot) / "0"


def test_flipped_byte_in_a_stored_chunk(copied: RunFolder) -> None:
    """One flipped bit of a chunk is found at that step's arena, and nowhere else."""
    runs.flip(chunk(copied, "operands/0", CHEATED_STEP), 1000)
    judgement = judge(copied.root)
    assert judgement.faults() == {f"step.arena@{CHEATED_STEP}": {Verdict.MISMATCH}}
    assert judgement.overall is Overall.FAIL


def test_changed_byte_under_a_valid_checksum(copied: RunFolder) -> None:
    """Bytes rewritten with a right checksum still do not have the committed root."""
    config = runs.config()
    layouts = layouts_of(derive_graph(config))
    arena = RunStore.open(copied.store, layouts).read_arena(0, CHEATED_STEP).copy()
    arena[12345] ^= 1
    open_for_writing(config, copied, layouts).write_arena(0, CHEATED_STEP, arena)
    assert judge(copied.root).faults() == {f"step.arena@{CHEATED_STEP}": {Verdict.MISMATCH}}


@pytest.mark.parametrize(
    ("array", "check"), [("operands/0", "step.arena"), ("state", "step.state_before")]
)
def test_deleted_chunk(copied: RunFolder, array: str, check: str) -> None:
    """A deleted chunk is no answer: never read as zeros, never a pass."""
    chunk(copied, array, CHEATED_STEP).unlink()
    judgement = judge(copied.root)
    assert judgement.faults() == {f"{check}@{CHEATED_STEP}": {Verdict.NON_RESPONSE}}
    assert judgement.overall is Overall.INCOMPLETE


def test_swapped_chunks(copied: RunFolder) -> None:
    """Two steps' arenas in each other's place are found at both."""
    a, b = (chunk(copied, "operands/0", step) for step in (1, 2))
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    expected = {f"step.arena@{step}": {Verdict.MISMATCH} for step in (1, 2)}
    assert judge(copied.root).faults() == expected


def test_truncated_chunk(copied: RunFolder) -> None:
    """A chunk of another size than it must have is refused before it is read."""
    path = chunk(copied, "operands/0", CHEATED_STEP)
    path.write_bytes(path.read_bytes()[:-100])
    assert set(judge(copied.root).faults()) == {f"step.arena@{CHEATED_STEP}"}


def test_chunk_behind_a_symbolic_link(copied: RunFolder, tmp_path_factory) -> None:
    """A link that leaves the run's folder is not followed, whatever it points to."""
    path = chunk(copied, "operands/0", CHEATED_STEP)
    outside = tmp_path_factory.mktemp("outside") / "chunk"
    shutil.move(path, outside)
    path.symlink_to(outside)
    assert set(judge(copied.root).faults()) == {f"step.arena@{CHEATED_STEP}"}


def test_absent_store(copied: RunFolder) -> None:
    """Without the store nothing can be replayed: that is no pass."""
    shutil.rmtree(copied.store)
    judgement = judge(copied.root)
    assert judgement.overall is not Overall.PASS
    assert all(not step.elements for step in judgement.steps)


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b'{"zarr_format": 2}',
        b'{"attributes":{},"node_type":"array","shape":[1e400]}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"",
    ],
)
def test_hostile_store_metadata(copied: RunFolder, text: bytes) -> None:
    """Metadata that is not what the layout demands is refused as a whole, without a traceback."""
    (copied.store / "operands" / "0" / "zarr.json").write_bytes(text)
    judgement = judge(copied.root)
    assert judgement.overall is not Overall.PASS
    assert all(not step.elements for step in judgement.steps)


def test_pickle_codec(copied: RunFolder) -> None:
    """A codec that is not listed is refused, not loaded."""
    path = copied.store / "operands" / "0" / "zarr.json"
    text = path.read_bytes()
    assert b'"crc32c"' in text
    path.write_bytes(text.replace(b'"crc32c"', b'"pickle"'))
    assert judge(copied.root).overall is not Overall.PASS


def test_dataset_with_other_tokens(copied: RunFolder) -> None:
    """A token store that does not have the registered root fails, and batches are not believed."""
    path = copied.dataset / "constants" / "c" / "0" / "0"
    runs.flip(path, path.stat().st_size // 2)
    faults = judge(copied.root).faults()
    assert faults["dataset.root"] == {Verdict.MISMATCH}


def test_constants_that_were_bent(copied: RunFolder) -> None:
    """Stored RoPE tables other than the derived ones are found; replay never used them."""
    config = runs.config()
    layouts = layouts_of(derive_graph(config))
    constants = RunStore.open(copied.store, layouts).read_constants().copy()
    constants[8] ^= 1
    assert constants.dtype == np.uint8
    open_for_writing(config, copied, layouts).write_constants(constants)
    assert judge(copied.root).faults() == {"constants.stored": {Verdict.MISMATCH}}
