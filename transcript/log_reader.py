"""Reading a log that somebody else made, and checking its signed tree heads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from transcript.checkpoint import CHECKPOINT_LIMIT, Checkpoint, SignedCheckpoint, checked_run_id
from transcript.errors import LimitError, MalformedError, MissingError, ProofError
from transcript.files import open_regular, read_bounded
from transcript.keys import PublicKey
from transcript.merkle import Tree, leaf_hash
from transcript.step import LEAF_LIMIT, StepLeaf

MAX_LEAVES: Final = 10_000_000
MAX_LOG_BYTES: Final = 1 << 36
MAX_CHECKPOINTS: Final = 100_000


class LogReader:
    """A log made by somebody else. Leaves are hashed when it opens and parsed when asked for.

    Args:
        folder: the run's log folder.
        run_id: the run that every leaf and checkpoint must name.
        max_leaves: refuse a longer log.

    Raises:
        MissingError: there is no leaves.jsonl.
        MalformedError: a cut last line, or not a regular file.
        LimitError: more leaves or bytes than allowed.

    """

    def __init__(self, folder: Path, run_id: str, *, max_leaves: int = MAX_LEAVES) -> None:
        self.run_id = checked_run_id(run_id)
        self.folder = folder
        self.path = folder / "leaves.jsonl"
        self.tree = Tree()
        self._offsets = [0]
        self._stream = os.fdopen(open_regular(folder, "leaves.jsonl"), "rb")
        try:
            self._scan(max_leaves)
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __len__(self) -> int:
        return len(self.tree)

    def line(self, step: int) -> bytes:
        """Return the leaf's bytes, checked against the hash taken when the log was opened.

        Raises:
            MissingError: the log ends before.
            ProofError: the file has changed since.

        """
        if not 0 <= step < len(self):
            raise MissingError(f"no leaf for step {step}", file=str(self.path))
        self._stream.seek(self._offsets[step])
        line = self._stream.read(self._offsets[step + 1] - self._offsets[step] - 1)
        if leaf_hash(line) != self.tree.leaf(step):
            raise ProofError("the log changed while it was read", file=f"{self.path}:{step + 1}")
        return line

    def leaf(self, step: int) -> StepLeaf:
        """Parse one leaf; see `StepLeaf.parse` and `line` for the errors."""
        file = f"{self.path}:{step + 1}"
        return StepLeaf.parse(self.line(step), step=step, run_id=self.run_id, file=file)

    def leaves(self) -> Iterator[StepLeaf]:
        """Parse all leaves in order."""
        return map(self.leaf, range(len(self)))

    def inclusion_proof(self, step: int, size: int) -> list[bytes]:
        """Return the proof that the step's leaf is in the tree of `size` leaves."""
        return self.tree.inclusion_proof(step, size)

    def consistency_proof(self, first: int, second: int) -> list[bytes]:
        """Return the proof that the tree of `first` leaves is a prefix of that of `second`."""
        return self.tree.consistency_proof(first, second)

    def checkpoint_note(self, size: int) -> bytes:
        """Return the signed note over `size` leaves, unverified; MissingError if there is none."""
        return read_bounded(
            self.folder / "checkpoints" / str(size), CHECKPOINT_LIMIT, root=self.folder
        )

    def verify_checkpoint(self, size: int, key: PublicKey) -> Checkpoint:
        """Check one signed tree head against its signature and against the leaves.

        Raises:
            MalformedError, SignatureError: not a checkpoint by `key` of this run and size.
            MissingError: it covers more leaves than there are.
            ProofError: the leaves have another root.

        """
        path = self.folder / "checkpoints" / str(size)
        signed = SignedCheckpoint.parse(self.checkpoint_note(size), file=str(path))
        head = signed.verify(key, file=str(path))
        if head.size != size or head.run_id != self.run_id:
            raise MalformedError(f"is of size {head.size} of run {head.run_id}", file=str(path))
        check_head(head, self.tree, path)
        return head

    def verify_checkpoints(self, key: PublicKey) -> list[Checkpoint]:
        """Check every signed tree head in the folder, in order of size; see `verify_checkpoint`."""
        return [self.verify_checkpoint(size, key) for size in checkpoint_sizes(self.folder)]

    def _scan(self, max_leaves: int) -> None:
        offset = 0
        while line := self._stream.readline(LEAF_LIMIT + 1):
            file = f"{self.path}:{len(self) + 1}"
            if not line.endswith(b"\n"):
                kind = LimitError if len(line) > LEAF_LIMIT else MalformedError
                raise kind("the line is too long or cut", file=file)
            offset += len(line)
            if len(self) >= max_leaves or offset > MAX_LOG_BYTES:
                raise LimitError(
                    f"more than {max_leaves} leaves or {MAX_LOG_BYTES} bytes", file=file
                )
            self.tree.append(leaf_hash(line[:-1]))
            self._offsets.append(offset)


def checkpoint_sizes(folder: Path) -> list[int]:
    """List the sizes of the checkpoints of a log folder, ascending.

    Raises:
        MalformedError: a name that is not a size; a writer's temporary files are passed over.
        LimitError: more than MAX_CHECKPOINTS.

    """
    path = folder / "checkpoints"
    sizes: list[int] = []
    try:
        with os.scandir(path) as names:
            for item in names:
                if len(sizes) >= MAX_CHECKPOINTS:
                    raise LimitError(f"more than {MAX_CHECKPOINTS} checkpoints", file=str(path))
                if not item.name.startswith("."):
                    sizes.append(_size_of(item.name, path))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise MalformedError("not a folder", file=str(path)) from None
    return sorted(sizes)


def check_head(head: Checkpoint, tree: Tree, path: Path) -> None:
    """Compare a tree head with the leaves; MissingError or ProofError if they do not match."""
    if head.size > len(tree):
        raise MissingError(f"signs {head.size} leaves, there are {len(tree)}", file=str(path))
    if head.root != tree.root(head.size):
        raise ProofError(
            f"the first {head.size} leaves have another root than was signed",
            file=str(path),
            evidence={"signed": head.root.hex(), "computed": tree.root(head.size).hex()},
        )


def _size_of(name: str, path: Path) -> int:
    if not name.isascii() or not name.isdigit() or name != str(int(name[:17])):
        raise MalformedError("not named after a size", file=str(path / name))
    return int(name)
