"""What survives a power cut: everything that a signed tree head covers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cluster.resume import resume_step, stored_resume_step
from tests.verifier import runs
from trainer.commit import Committer
from trainer.config import RunConfig
from trainer.logged import logged_leaves
from trainer.prepare import prepare_run
from trainer.rank import RankTrainer
from transcript.errors import StorageError
from transcript.files import sync_files
from transcript.run import RunFolder
from verifier.audit import Audit, AuditOptions
from verifier.verdict import Overall, overall

STEPS = 8


def config(**sections: dict) -> RunConfig:
    record = {"checkpoint_every": 3, **sections.pop("record", {})}
    return runs.config(train={"steps": STEPS}, record=record, **sections)


class Disk:
    """Follows what was forced to the disk, and what was not by the time of a power cut."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.stamp = root, 0
        self.synced: dict[Path, int] = {}
        self.heads: dict[Path, dict[Path, int]] = {}
        original = os.fsync

        def fsync(descriptor: int) -> None:
            self.stamp += 1
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self.synced[path] = self.stamp
            if path.parent.name == "checkpoints":
                self.heads[path] = dict(self.synced)
            original(descriptor)

        patch.setattr(os, "fsync", fsync)

    def cut(self) -> list[Path]:
        """Remove every file of the store that was never forced to the disk."""
        store = RunFolder(self.root).store
        lost = [p for p in store.rglob("*") if p.is_file() and p not in self.synced]
        for path in lost:
            path.unlink()
        return lost


def begin(root: Path, run: RunConfig, steps: int) -> RunFolder:
    """Train some steps and stop, as a machine does that loses its power."""
    folder = RunFolder(root)
    prepare_run(run, folder, runs.KEY, threads=1)
    rank = RankTrainer(run, folder, threads=1)
    committer = Committer(run, folder, runs.KEY)
    for _ in range(steps):
        committer.append([rank.run_step()])
    rank._recorder._await(0)
    committer.close()
    return folder


@pytest.mark.parametrize("record", [{}, {"policy": "every", "every": 2}], ids=str)
def test_a_tree_head_is_signed_after_its_steps_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: dict
) -> None:
    """Arenas, states and folders of all its steps were forced to it before the head was."""
    run = config(record=record)
    disk = Disk(tmp_path / "run", monkeypatch)
    folder = begin(tmp_path / "run", run, STEPS)
    assert sorted(int(p.name.split(".")[1]) for p in disk.heads) == [3, 6, 8]
    for head, synced in disk.heads.items():
        size = int(head.name.split(".")[1])
        recorded, kept = run.record.recorded(STEPS), run.record.kept(STEPS)
        chunks = [("operands/0", i) for i, step in enumerate(recorded) if step < size]
        chunks += [("state", i) for i, step in enumerate(kept) if step <= size]
        for array, slot in chunks:
            chunk = folder.store / array / "c" / str(slot) / "0"
            for path in (chunk, *chunk.parents[: len(chunk.relative_to(folder.store).parts)]):
                assert path in synced, (size, path)
        for name in ("dataset.zarr/constants/c/0/0", "store.zarr/constants/c/0/0"):
            assert folder.root / name in synced


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 7])
def test_a_power_cut_costs_steps_and_never_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Whatever was not yet forced to the disk is computed again, and the audit passes."""
    run = config()
    disk = Disk(tmp_path / "run", monkeypatch)
    folder = begin(tmp_path / "run", run, steps)
    lost = disk.cut()
    assert lost or steps == 3
    resume_at = stored_resume_step(run, folder, steps)
    assert resume_at == min(steps // 3 * 3, steps - 1)
    rank = RankTrainer(run, folder, threads=1)
    rank.expect(logged_leaves(folder)[resume_at:])
    rank.restore(resume_at)
    committer = Committer(run, folder, runs.KEY)
    while rank.step < STEPS:
        committer.append([rank.run_step()])
    committer.finish()
    with Audit.open(folder.root, AuditOptions(steps=64, threads=1)) as audit:
        checks = [*audit.structure(), *(c for step in audit.run() for c in step.checks)]
    assert overall(check.verdict for check in checks) is Overall.PASS


def test_a_state_that_no_tree_head_covers_is_not_gone_back_to() -> None:
    """It may be there while an arena before it is lost."""
    assert resume_step(range(20), 18, durable=16) == 16
    assert resume_step(range(0, 20, 5), 18, durable=16) == 15
    assert resume_step(range(20), 16, durable=16) == 15
    assert resume_step(range(20), 7, durable=0) == 0
    assert resume_step(range(20), 18) == 17


def test_a_disk_that_cannot_be_forced_is_named(tmp_path: Path) -> None:
    """A file that vanished is no silent success."""
    with pytest.raises(StorageError, match=tmp_path.name):
        sync_files(tmp_path, [tmp_path / "gone"])
    shutil.rmtree(tmp_path)
