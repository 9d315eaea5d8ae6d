"""The token store of a run: one packed sequence, its root, and how it is read back.

It is kept in the same guarded Zarr format as the arenas, as a store that has no steps and
whose one constant is the tokens; so an auditor reads it behind the same checks.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.data import Tokens
from transcript.layout import Layout
from transcript.leaves import arena_root
from transcript.run import RunFolder
from transcript.store import Layouts, RunStore


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStore:
    """All tokens of a run, u8 [n], and their root in hex."""

    tokens: Tokens
    root: str


def dataset_layout(tokens: int) -> Layout:
    """Return the layout of a token store of so many tokens."""
    return Layout.build([("tokens", "u8", (tokens,))])


def write_dataset(folder: RunFolder, tokens: Tokens, threads: int) -> TokenStore:
    """Write the token store of a new run and return it with its root.

    Raises:
        transcript.errors.StorageError: the disk or the object store fails.

    """
    layouts = _layouts(len(tokens))
    store = RunStore.create(folder.dataset, layouts, recorded=[], states=[])
    store.write_constants(tokens)
    store.sync()
    return TokenStore(tokens=tokens, root=arena_root(tokens, layouts.constants, threads).hex())


def read_dataset(folder: RunFolder, tokens: int, threads: int) -> TokenStore:
    """Read a token store of so many tokens and compute its root from the bytes read.

    Raises:
        transcript.errors.TranscriptError: missing, malformed, or of another size.

    """
    layouts = _layouts(tokens)
    found = RunStore.open(folder.dataset, layouts).read_constants()
    return TokenStore(tokens=found, root=arena_root(found, layouts.constants, threads).hex())


def _layouts(tokens: int) -> Layouts:
    nothing = Layout.build([])
    return Layouts(arena=nothing, state=nothing, constants=dataset_layout(tokens))
