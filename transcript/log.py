"""The log of a run: one step leaf a line, append-only, under signed tree heads.

Leaf t is step t. Appending a step again with the same bytes does nothing, with other bytes it is an
error: a restarted trainer thereby shows that it reproduced its own history. docs/formats/log.md is
the contract; `LogReader` reads what somebody else wrote.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from transcript.checkpoint import CHECKPOINT_LIMIT, Checkpoint, SignedCheckpoint, checked_run_id
from transcript.errors import ContractError, ForkError, StorageError
from transcript.files import read_bounded, sync_folder, write_atomic
from transcript.keys import PrivateKey
from transcript.log_reader import LogReader, check_head, checkpoint_sizes
from transcript.merkle import Tree, leaf_hash
from transcript.step import StepLeaf

__all__ = ["Log", "LogReader", "StepLeaf"]

Sync = Literal["leaf", "checkpoint"]


class Log:
    """The writer. One process at a time: a second one is refused.

    Args:
        folder: the run's log folder, made if need be.
        run_id: the run; every leaf must name it.
        sync: "leaf" forces every leaf to the disk; "checkpoint" (the default) only what a
            checkpoint is about to sign. Either survives the process; only "leaf" also keeps the
            leaves since the last checkpoint through a power cut.

    Raises:
        ContractError: the log is open elsewhere, or `run_id` is not one.
        MalformedError: what lies there is not this run's log. A last line without its newline was
            cut by a crash, was never acknowledged, and is removed.
        ProofError: a checkpoint there does not match the leaves there.
        StorageError: the file system refuses.

    """

    def __init__(self, folder: Path, run_id: str, *, sync: Sync = "checkpoint") -> None:
        self.run_id = checked_run_id(run_id)
        self.folder = folder
        self.path = folder / "leaves.jsonl"
        self._sync = sync
        self._tree = Tree()
        with _storage(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o644)
        try:
            self._lock()
            self._bytes = self._recover()
            self._check_checkpoints()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._tree)

    @property
    def tree(self) -> Tree:
        """The tree over the leaves so far; read only."""
        return self._tree

    def append(self, leaf: StepLeaf) -> int:
        """Append a step's leaf and return its index, which is its step.

        Raises:
            ForkError: the step is there with other bytes; the evidence holds both leaf hashes.
            ContractError: a step was left out, or the leaf is another run's.
            StorageError: the disk is full or fails; nothing of the leaf remains.

        """
        if leaf.run_id != self.run_id or leaf.step > len(self):
            raise ContractError(
                f"step {leaf.step} of {leaf.run_id}: the log {self.run_id} ends at {len(self)}",
                file=str(self.path),
            )
        line = leaf.encode()
        digest = leaf_hash(line)
        if leaf.step < len(self):
            self._expect_same(leaf.step, digest)
        else:
            self._write(line + b"\n")
            self._tree.append(digest)
        return leaf.step

    def checkpoint(self, key: PrivateKey) -> Checkpoint:
        """Sign the present tree head and keep it as checkpoints/<size>.

        Raises:
            ForkError: a checkpoint of this size is there with another root.
            ContractError: the log is empty, or the key is not Ed25519.
            StorageError: the file system refuses.

        """
        if not len(self):
            raise ContractError("an empty log has no checkpoint", file=str(self.path))
        head = Checkpoint(run_id=self.run_id, size=len(self), root=self._tree.root())
        with _storage(self.path):
            os.fsync(self._descriptor)
            sync_folder(self.folder)
        # Ed25519 is deterministic: signing again after a restart gives the same file
        write_atomic(self.folder / "checkpoints" / str(head.size), head.sign(key))
        return head

    def close(self) -> None:
        """Let go of the file and its lock; harmless when repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ContractError(
                "another process is writing this log", file=str(self.path)
            ) from None

    def _recover(self) -> int:
        """Read the leaves that are there, cut off an unfinished last line, return the size."""
        end = 0
        with os.fdopen(os.dup(self._descriptor), "rb") as stream:
            stream.seek(0)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                StepLeaf.parse(
                    line[:-1],
                    step=len(self),
                    run_id=self.run_id,
                    file=f"{self.path}:{len(self) + 1}",
                )
                self._tree.append(leaf_hash(line[:-1]))
                end += len(line)
        with _storage(self.path):
            os.ftruncate(self._descriptor, end)
        return end

    def _check_checkpoints(self) -> None:
        for size in checkpoint_sizes(self.folder):
            path = self.folder / "checkpoints" / str(size)
            note = read_bounded(path, CHECKPOINT_LIMIT)
            check_head(SignedCheckpoint.parse(note, file=str(path)).checkpoint, self._tree, path)

    def _write(self, data: bytes) -> None:
        try:
            _write_all(self._descriptor, data)
            if self._sync == "leaf":
                os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._bytes)
            fault = f"cannot be written: {error.strerror}"
            raise StorageError(fault, file=str(self.path)) from None
        self._bytes += len(data)

    def _expect_same(self, step: int, digest: bytes) -> None:
        if digest != self._tree.leaf(step):
            raise ForkError(
                f"step {step} was logged with other values before",
                file=f"{self.path}:{step + 1}",
                evidence={"logged": self._tree.leaf(step).hex(), "appended": digest.hex()},
            )


def _write_all(descriptor: int, data: bytes) -> None:
    # a full disk first shows as a short write
    if os.write(descriptor, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _storage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", file=str(path)) from None
