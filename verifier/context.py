"""A run as its registration describes it, with everything that follows from that alone.

Graph, layouts and tables are derived by the verifier's own installation from the registered
configuration; nothing of them is read from the run. What a registration asks for is weighed
before anything is derived from it: a stranger wrote it. "Run" means a training run or a
generated text, as in the formats; `verifier.subject` says what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import RunConfig
from trainer.dataset import read_dataset
from trainer.errors import TrainerError
from trainer.generate.config import GenerationConfig
from trainer.graph import StepGraph
from trainer.plan import layouts_of
from trainer.reveal import STORE
from transcript import canonical
from transcript.dsse import ENVELOPE_LIMIT, Envelope
from transcript.errors import StorageError, TranscriptError
from transcript.keys import PublicKey
from transcript.log import LogReader
from transcript.model import check_type
from transcript.run import RunFolder
from transcript.statements import Registration, open_registration
from transcript.store import Layouts, RunStore
from verifier.errors import OptionError, RunError
from verifier.generation import GenerationSubject
from verifier.subject import Arrays, Plan, Subject, limit, memory
from verifier.training import TrainingSubject
from verifier.verdict import Check, Verdict, match


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run, as registered.

    Attributes:
        folder: its paths.
        registration: the registration's content; believed only as far as `signature` goes.
        registration_digest: SHA-256 of its signed payload, 64 hexadecimal digits.
        key: the key that it names.
        signature: the check of its signature.
        subject: what its configuration describes.
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
    subject: Subject
    graph: StepGraph
    layouts: Layouts
    revealed: Path | None = None

    @property
    def run_id(self) -> str:
        """The run's name in every leaf and tree head."""
        return self.registration.run_id

    @property
    def plan(self) -> Plan:
        """What its configuration says in so many words."""
        return self.subject.plan

    @property
    def tables(self) -> Arrays:
        """The constants of a step that follow from the configuration."""
        return _tables_of(canonical.dumps(self.subject.document()))

    @property
    def given(self) -> bool:
        """Whether some constants are the prover's own, to be read from the store."""
        tables = self.tables
        return any(entry.name not in tables for entry in self.layouts.constants.entries)

    def log(self) -> LogReader:
        """Open the log; use as a context manager."""
        return LogReader(self.folder.log, self.run_id, max_leaves=self.plan.steps + 1)

    def store(self) -> RunStore:
        """Open the store; TranscriptError if it is missing or another than was derived."""
        return RunStore.open(self.folder.store, self.layouts)

    def steps_store(self) -> RunStore:
        """Open the store that has arenas and states of the challenged steps; errors as `store`."""
        place = self.revealed / STORE if self.revealed else self.folder.store
        return RunStore.open(place, self.layouts)

    def tokens(self) -> NDArray[np.uint8]:
        """Return the token store as it was first read by this process, u8 [n].

        Its root is not checked here: a batch is, against what the step's leaf says.
        """
        return _tokens(self.folder, self.registration.dataset.tokens)

    def batch(self, step: int, rank: int) -> Arrays:
        """Return one rank's batch of a step, derived; errors as `Subject.batch`."""
        return self.subject.batch(self.tokens, self.registration.dataset.root, step, rank)


def open_context(
    root: Path,
    trusted: tuple[PublicKey, ...] = (),
    *,
    run: Path | None = None,
    revealed: Path | None = None,
) -> RunContext:
    """Read a run's registration and derive what follows from it.

    A registration with a bad signature is still opened: `signature` says so, and the other
    checks go on with what it claims.

    Args:
        root: the run's folder.
        trusted: keys one of which must be the registered one; any key by default.
        run: of a generated text, the folder of the training run that it came from.
        revealed: a folder of steps that the trainer revealed, see `RunContext`.

    Raises:
        RunError: there is no registration that can be read, or its configuration is none that
            this verifier can derive a graph from.
        OptionError: `run` is given for what is itself a training run.
        BudgetError: the configuration is too large to derive anything from.
        StorageError: the disk fails.

    """
    folder = RunFolder(Path(root))
    file = str(folder.registration)
    try:
        data = folder.read(folder.registration)
        registration, digest = _unverified(data, file)
        key = PublicKey.from_pem(registration.public_key.encode(), file=file)
        subject = subject_of(registration.config, name=f"{file}: config", run=run)
        graph = derived_graph(subject)
        check_memory(subject, graph)
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
        subject=subject,
        graph=graph,
        layouts=layouts_of(graph),
        revealed=revealed,
    )


def subject_of(
    document: Mapping[str, Any], *, name: str = "config", run: Path | None = None
) -> Subject:
    """Return what a registered configuration describes.

    Raises:
        ConfigError: it is the configuration of neither a training run nor a generation.
        OptionError: `run` is given for a training run.

    """
    if document.get("kind") == "generation":
        return GenerationSubject(
            config=GenerationConfig.from_document(document, name=name), run=run
        )
    if run is not None:
        raise OptionError(f"{name} is of a training run: only a generation has one it came from")
    return TrainingSubject(config=RunConfig.from_document(document, name=name))


def check_memory(subject: Subject, graph: StepGraph) -> None:
    """Refuse to replay steps whose arenas do not fit into memory: all ranks' are read at once.

    Raises:
        BudgetError: they do not.

    """
    held = 3 * graph.layout("state").bytes + graph.layout("constant").bytes
    limit("bytes for the arenas of a step", subject.plan.world * graph.arena.bytes + held, memory())


def derived_graph(subject: Subject) -> StepGraph:
    """Return the step graph of a stranger's configuration; BudgetError if it is too large."""
    subject.check_size()
    return _graph_of(canonical.dumps(subject.document()))


@lru_cache(maxsize=4)
def _graph_of(document: bytes) -> StepGraph:
    return _subject(document).derive_graph()


@lru_cache(maxsize=4)
def _tables_of(document: bytes) -> Arrays:
    return _subject(document).tables()


def _subject(document: bytes) -> Subject:
    return subject_of(canonical.loads(document, limit=len(document)))


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
