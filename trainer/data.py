"""Real text as bytes, and which of them make up the batch of a step.

The corpus is packed into one sequence of tokens (a token is a byte; files are separated by a
zero byte) whose Merkle root is registered. The batch of (step, rank) is a function of
(dataset root, seed, step, rank) and nothing else, so an auditor derives every batch of a run
without trusting the log.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emulator_ext import pinned
from trainer.config import DataConfig, RunConfig
from trainer.errors import DataError

SEPARATOR = b"\0"
_BATCH_STREAM = 1
# Folders of the standard library that are other people's code, or fixtures in odd encodings.
_SKIPPED = frozenset({"site-packages", "__pycache__", "test", "tests", "idlelib"})

Tokens = NDArray[np.uint8]


def load_corpus(data: DataConfig) -> Tokens:
    """Read the corpus: a file, or all files of a folder that match the pattern.

    Files are taken in the order of their POSIX paths, up to `max_bytes` in all.

    Raises:
        DataError: nothing readable is there.

    """
    root = _stdlib() if data.source == "stdlib" else Path(data.source)
    chunks: list[bytes] = []
    room = data.max_bytes
    try:
        for path in _files(root, data.pattern):
            text = path.read_bytes()[:room]
            chunks.append(text + SEPARATOR)
            room -= len(chunks[-1])
            if room <= 0:
                break
    except OSError as error:
        msg = f"{root}: cannot read the corpus: {error.strerror or error}"
        raise DataError(msg) from error
    if not chunks:
        msg = f"{root}: no file matches {data.pattern!r}"
        raise DataError(msg)
    return np.frombuffer(b"".join(chunks)[: data.max_bytes], dtype=np.uint8)


def batch_at(
    tokens: Tokens, root: str, config: RunConfig, step: int, rank: int
) -> dict[str, NDArray[np.int32]]:
    """Return `tokens` and `targets`, i32 [batch, context]: targets are one byte ahead.

    Args:
        tokens: u8 [n], the whole token store.
        root: hex root of the token store.
        config: the run.
        step: the step, from 0.
        rank: the rank, from 0.

    Raises:
        DataError: fewer tokens than one window needs.

    """
    starts = window_starts(len(tokens), root, config, step, rank)
    windows = tokens[starts[:, None] + np.arange(config.model.context + 1)].astype(np.int32)
    return {
        "tokens": np.ascontiguousarray(windows[:, :-1]),
        "targets": np.ascontiguousarray(windows[:, 1:]),
    }


def window_starts(
    tokens: int, root: str, config: RunConfig, step: int, rank: int
) -> NDArray[np.int64]:
    """Return the first token of each of the batch's windows, i64 [batch].

    Window w of the global batch takes 64 Philox bits u and starts at
    floor(u * choices / 2^64), choices being the number of possible starts.
    """
    batch = config.train.batch
    choices = tokens - config.model.context
    if choices < 1:
        msg = f"the corpus has {tokens} tokens, one window needs {config.model.context + 1}"
        raise DataError(msg)
    seed = derive_seed("bitwitness/batch/v1", config.seed, root)
    words = pinned.philox(seed, _BATCH_STREAM, step, 2 * batch * config.train.world)
    pairs = words.reshape(-1, 2)[rank * batch : (rank + 1) * batch]
    starts = [((int(high) << 32 | int(low)) * choices) >> 64 for high, low in pairs]
    return np.array(starts, dtype=np.int64)


def derive_seed(domain: str, seed: int, *parts: str) -> int:
    """Return a 64-bit Philox seed: SHA-256 over the length-prefixed parts, first 8 bytes."""
    digest = hashlib.sha256()
    for part in (domain, str(seed), *parts):
        digest.update(len(part).to_bytes(8, "little") + part.encode("ascii"))
    return int.from_bytes(digest.digest()[:8], "little")


def _stdlib() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _files(root: Path, pattern: str) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    found = (path for path in root.rglob(pattern) if path.is_file())
    inside = ((path.relative_to(root), path) for path in found)
    kept = [(rel.as_posix(), path) for rel, path in inside if not _SKIPPED & set(rel.parts)]
    yield from (path for _, path in sorted(kept))
