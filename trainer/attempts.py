"""Which attempt a run is: a chain of registrations by one key at one place.

Beside the runs of a folder lies one file a key, `<key id>.attempts.jsonl`, with every registration
that was signed there, one envelope a line. Each names the digest of the one before, so a line that
is taken out later is missed. It is the trainer's own file: another key, another folder or a deleted
file begin a new chain, and nobody can tell.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from transcript.errors import StorageError
from transcript.files import write_atomic
from transcript.keys import PublicKey
from transcript.run import RunFolder
from transcript.statements import Registration, Signed, open_statement

# A run's folder has a copy of so many earlier ones, the youngest.
COPIED: Final = 256


def ledger(folder: RunFolder, key: PublicKey) -> Path:
    """Return the file of a key beside a run's folder."""
    return folder.root.parent / f"{key.key_id[:16]}.attempts.jsonl"


def register(
    folder: RunFolder, key: PublicKey, sign: Callable[[int, str | None], bytes]
) -> tuple[bytes, int]:
    """Sign the next registration of a key at a run's place, and write it everywhere.

    Args:
        folder: the new run's.
        key: that signs.
        sign: takes the attempt's number and the digest of the one before, and returns the
            envelope on one line.

    Returns:
        The envelope and the attempt's number.

    Raises:
        StorageError: the disk fails; the run is then not registered.
        transcript.errors.TranscriptError: the file holds what is no registration of the key.

    """
    path = ledger(folder, key)
    with _locked(path) as descriptor:
        lines = path.read_bytes().splitlines()
        before = _last(lines, key, path)
        attempt = before.predicate.attempt + 1 if before else 1
        envelope = sign(attempt, before.digest if before else None)
        # Counted first: an attempt that then fails to begin is one that was made.
        os.write(descriptor, envelope + b"\n")
        os.fsync(descriptor)
    if lines:
        write_atomic(folder.attempts, b"".join(line + b"\n" for line in lines[-COPIED:]))
    write_atomic(folder.registration, envelope)
    return envelope, attempt


def _last(lines: list[bytes], key: PublicKey, path: Path) -> Signed[Registration] | None:
    if not lines:
        return None
    return open_statement(lines[-1], Registration, [key], file=f"{path}:{len(lines)}")


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot be written: {error.strerror}", file=str(path)) from None
