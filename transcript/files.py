"""Reading files that someone else made, and writing files that survive a crash.

A reader opens regular files only, never follows a symbolic link below the folder it was given, and
never reads more than it allows. A writer replaces a file whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from transcript.errors import (
    ContractError,
    LimitError,
    MalformedError,
    MissingError,
    StorageError,
)

# NONBLOCK: opening a pipe must not hang; the regular-file check then refuses it.
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(root: Path, relative: str | PurePosixPath) -> int:
    """Open the regular file `root/relative` for reading and return its descriptor.

    `root` itself is the caller's and may be a link; nothing below it may be.

    Raises:
        MissingError: no such file.
        MalformedError: a symbolic link, a folder, a pipe or a device is in its place.
        ContractError: `relative` is absolute, empty or climbs.
        StorageError: the file system refuses.

    """
    parts = PurePosixPath(relative).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ContractError(f"not a path inside a folder: {str(relative)!r}")
    file = str(root.joinpath(*parts))
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            for part in parts[:-1]:
                folder = os.open(part, _READ_FLAGS | os.O_DIRECTORY, dir_fd=folder)
                stack.callback(os.close, folder)
            descriptor = os.open(parts[-1], _READ_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            raise MissingError("there is no such file", file=file) from None
        except OSError as error:
            raise _open_error(error, file) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise MalformedError("not a regular file", file=file)
    return descriptor


def read_bounded(path: Path, limit: int, *, root: Path | None = None) -> bytes:
    """Read a whole regular file of at most `limit` bytes.

    Args:
        path: the file; inside `root` where that is given.
        limit: in bytes.
        root: the folder below which no link is followed; the file's own folder by default.

    Raises:
        MissingError, MalformedError, StorageError: as `open_regular`.
        LimitError: the file is larger than `limit`.
        MalformedError: also if its size changes meanwhile.

    """
    root = path.parent if root is None else root
    descriptor = open_regular(root, path.relative_to(root).as_posix())
    try:
        with os.fdopen(descriptor, "rb") as stream:
            # A read allocates what it is asked for, so it is not asked for the whole limit;
            # one byte more tells a file that grows meanwhile.
            size = os.fstat(descriptor).st_size
            data = stream.read(min(size, limit) + 1)
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", file=str(path)) from None
    if size > limit:
        raise LimitError(f"larger than the {limit} bytes allowed", file=str(path))
    if len(data) != size:
        raise MalformedError("changed while it was read", file=str(path))
    return data


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace a file as a whole: readers see the old bytes or the new, also after a crash.

    Raises:
        StorageError: the file system refuses; an earlier file is untouched.

    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StorageError(f"cannot be written: {error.strerror}", file=str(path)) from None


def start_writeback(path: Path) -> None:
    """Let the disk begin with a file that was just written: a later `sync_files` waits less.

    Linux starts writing dirty pages when it is told that they will not be needed; elsewhere this
    does nothing.
    """
    with contextlib.suppress(OSError), _opened(path, os.O_RDONLY) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def sync_files(root: Path, files: Iterable[Path]) -> None:
    """Force files to the disk, and every folder from theirs up to `root`.

    Raises:
        StorageError: the file system refuses, or a file is gone.

    """
    folders: set[Path] = set()
    try:
        for path in files:
            with _opened(path, os.O_RDONLY) as descriptor:
                os.fsync(descriptor)
            folders |= {folder for folder in path.parents if folder.is_relative_to(root)}
        # the deepest first: a folder's own entry is its parent's matter
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            sync_folder(folder)
    except OSError as error:
        raise StorageError(f"cannot be forced to disk: {error.strerror}", file=str(root)) from None


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make a folder's entries survive a power cut."""
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def _open_error(error: OSError, file: str) -> MalformedError | StorageError:
    # ELOOP: O_NOFOLLOW met a link; ENOTDIR: a file or a link stands where a folder belongs;
    # ENXIO: a socket or a device without a driver
    if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}:
        return MalformedError("a symbolic link, or not a regular file", file=file)
    return StorageError(f"cannot be opened: {error.strerror}", file=file)
