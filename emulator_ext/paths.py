"""Which code path runs, and on how many threads. Neither changes a bit of any result."""

from __future__ import annotations

import os

from _bitwitness_mma import Path, supported

from emulator_ext.errors import OperandError, UnsupportedError

_NAMES = {"scalar": Path.scalar, "avx2": Path.avx2, "avx512": Path.avx512}


def paths() -> tuple[str, ...]:
    """List the code paths this processor can run, the narrowest first."""
    return tuple(name for name, path in _NAMES.items() if supported(path))


def select_path(path: str | None) -> Path:
    """Choose `path`, else the environment's BITWITNESS_PATH, else the widest one.

    Raises UnsupportedError for an unknown name or one this processor cannot run.
    """
    name = path if path is not None else os.environ.get("BITWITNESS_PATH")
    available = paths()
    if not name:
        return _NAMES[available[-1]]
    if name not in available:
        raise UnsupportedError(
            f"this processor cannot run the code path {name!r}; it can run {', '.join(available)}"
        )
    return _NAMES[name]


def thread_count(threads: int | None) -> int:
    """Return `threads`, or the number of processors available; OperandError below 1."""
    if threads is None:
        return len(os.sched_getaffinity(0))
    if threads < 1:
        raise OperandError(f"threads must be at least 1, got {threads}")
    return threads
