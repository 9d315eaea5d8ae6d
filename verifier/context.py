"""A run as its registration describes it, with everything that follows from that alone.

Graph, layouts and constants are derived by the verifier's own installation from the registered
configuration; nothing of them is read from the run. What a registration asks for is weighed
before anything is derived from it: a stranger wrote it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.config import RunConfig
from trainer.constants import step_constants
from trainer.dataset import read_dataset
from trainer.errors import TrainerError
from trainer.graph import StepGraph
from trainer.model import parameter_specs
from trainer.plan import layouts_of
from trainer.reveal import STORE
from trainer.trace import derive_graph
from transcript import canonical
from transcript.dsse import ENVELOPE_LIMIT, Envelope
from transcript.errors import StorageError, TranscriptError
from transcript.keys import PublicKey
from transcript.log import LogReader
from transcript.model import check_type
from transcript.run import RunFolder
from transcript.statements import Registration, open_registration
from transcript.store import Layouts
from verifier.errors import BudgetError, RunError
from verifier.verdict import Check, Verdict, match

# Deriving a graph takes about a millisecond a layer, a RoPE table 20 microseconds an entry.
MAX_LAYERS = 2048
MAX_ROPE_ENTRIES = 1 << 22
MAX_ELEMENTS = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run, as registered.

    Attributes:
        folder: its paths.
        registration: the registration's content; believed only as far as `signature` goes.
        registration_digest: SHA-256 of its signed payload, 64 hexadecimal digits.
        key: the key that it names.
        signature: the check of its signature.
        config: the configuration.
        graph: the step graph, derived.
        layouts: of arena, state and constants, derived.
        revealed: a folder of steps that the trainer revealed; None if the run's own store is
            to have them.

    """

    folder: RunFolder
    registration: Registration
    registration_digest: str
    key: PublicKey
    signature: Check
    config: RunConfig
    graph: StepGraph
    layouts: Layouts
    revealed: Path | None = None

    @property
    def run_id(self) -> str:
        """The run's name in every leaf and tree head."""
        return self.registration.run_id

    @property
    def dataset_root(self) -> str:
        """The registered root of the token store, hex."""
        return self.registration.dataset.root

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """The constants of a step, derived."""
        return _constants(self.config)

    def log(self) -> LogReader:
        """Open the log; use as a context manager."""
        return LogReader(self.folder.log, self.run_id, max_leaves=self.config.train.steps + 1)

    @property
    def recorded(self) -> list[int]:
        """The steps that the registered policy records in full, or promises to reveal."""
        return self.config.record.challenged(self.config.train.steps)

    @property
    def steps_store(self) -> Path:
        """The store that has arenas and states of the challenged steps."""
        return self.revealed / STORE if self.revealed else self.folder.store

    def tokens(self) -> NDArray[np.uint8]:
        """Return the token store as it was first read by this process, u8 [n].

        Its root is not checked here: a batch is, against what the step's leaf says.
        """
        return _tokens(self.folder, self.registration.dataset.tokens)


def open_context(
    root: Path, trusted: tuple[PublicKey, ...] = (), revealed: Path | None = None
) -> RunContext:
    """Read a run's registration and derive what follows from it.

    A registration with a bad signature is still opened: `signature` says so, and the other
    checks go on with what it claims.

    Raises:
        RunError: there is no registration that can be read, or its configuration is none that
            this verifier can derive a graph from.
        BudgetError: the configuration is too large to derive anything from.
        StorageError: the disk fails.

    """
    folder = RunFolder(Path(root))
    file = str(folder.registration)
    try:
        data = folder.read(folder.registration)
        registration, digest = _unverified(data, file)
        key = PublicKey.from_pem(registration.public_key.encode(), file=file)
        config = RunConfig.from_document(registration.config, name=f"{file}: config")
        graph = derived_graph(config)
        check_memory(config, graph)
    except StorageError:
        raise
    except (TranscriptError, TrainerError) as error:
        raise RunError(str(error)) from None
    return RunContext(
        folder=folder,
        registration=registration,
        registration_digest=digest,
        key=key,
        signature=_signature(data, trusted, key, file),
        config=config,
        graph=graph,
        layouts=layouts_of(graph),
        revealed=revealed,
    )


def check_size(config: RunConfig) -> None:
    """Refuse a configuration that nothing should be derived from, by its numbers alone.

    Raises:
        BudgetError: too many layers, too long a context, an activation of a tera of elements, or
            a state that does not fit thrice into this machine's memory.

    """
    model, rows = config.model, config.train.batch * config.model.context
    _limit("layers", model.layers, MAX_LAYERS)
    _limit("entries of RoPE tables", model.context * model.head_size // 2, MAX_ROPE_ENTRIES)
    widest = max(model.vocab, 2 * model.hidden, 3 * model.width, model.heads * model.context)
    _limit("elements in one activation", rows * widest, MAX_ELEMENTS)
    _limit("bytes of states", 9 * 4 * parameter_count(config), _memory())


def check_memory(config: RunConfig, graph: StepGraph) -> None:
    """Refuse to replay steps whose arenas do not fit into memory: all ranks' are read at once.

    Raises:
        BudgetError: they do not.

    """
    needed = config.train.world * graph.arena.bytes + 3 * graph.layout("state").bytes
    _limit("bytes for the arenas of a step", needed, _memory())


def _limit(what: str, needed: int, limit: int) -> None:
    if needed > limit:
        raise BudgetError(f"the registered run needs {needed:,} {what}, the limit is {limit:,}")


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def parameter_count(config: RunConfig) -> int:
    """Return the number of parameters of the model."""
    return sum(prod(spec.shape) for spec in parameter_specs(config.model))


def derived_graph(config: RunConfig) -> StepGraph:
    """Return the step graph of a stranger's configuration; BudgetError as `check_size`."""
    check_size(config)
    return _graph_of(canonical.dumps(config.document()))


@lru_cache(maxsize=4)
def _graph_of(document: bytes) -> StepGraph:
    config = canonical.loads(document, limit=len(document))
    return derive_graph(RunConfig.from_document(config))


@lru_cache(maxsize=4)
def _constants_of(document: bytes) -> dict[str, torch.Tensor]:
    config = RunConfig.from_document(canonical.loads(document, limit=len(document)))
    arrays = step_constants(config.model, config.train.world)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _constants(config: RunConfig) -> dict[str, torch.Tensor]:
    return _constants_of(canonical.dumps(config.document()))


@lru_cache(maxsize=1)
def _tokens(folder: RunFolder, tokens: int) -> NDArray[np.uint8]:
    return read_dataset(folder, tokens, 1).tokens


def _unverified(data: bytes, file: str) -> tuple[Registration, str]:
    """Parse a registration without believing it."""
    payload = Envelope.parse(data, file=file).payload
    value = canonical.loads(payload, limit=ENVELOPE_LIMIT, file=file)
    check_type(value, "predicateType", Registration.PREDICATE, file=file)
    return Registration.check(value.get("predicate"), file=file), sha256(payload).hexdigest()


def _signature(data: bytes, trusted: tuple[PublicKey, ...], key: PublicKey, file: str) -> Check:
    name = "registration.signature"
    try:
        open_registration(data, trusted, file=file)
    except TranscriptError as error:
        return Check(
            name=name,
            verdict=Verdict.INVALID_COMMITMENT,
            detail=str(error),
            evidence={"code": error.code, "key": key.key_id},
        )
    whose = "a key that the auditor trusts" if trusted else "the key that it names"
    return match(name, f"the registration is signed by {whose}", key=key.key_id)
