"""Before step 0: pack data, derive graph, constants and initial state, probe, register."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trainer.attempts import register
from trainer.config import RunConfig
from trainer.constants import step_constants
from trainer.data import load_corpus
from trainer.dataset import TokenStore, write_dataset
from trainer.device_probe import answers, open_device
from trainer.errors import ConfigError
from trainer.graph import StepGraph
from trainer.ops import threads as op_threads
from trainer.plan import layouts_of, open_for_writing
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript import canonical
from transcript.files import write_atomic
from transcript.keys import PrivateKey
from transcript.leaves import arena_root
from transcript.model import utc_now
from transcript.predicates import Dataset, Registration
from transcript.run import RunFolder
from transcript.statements import read_registration, sign_statement

_PACKAGES = ("cluster", "emulator_ext", "trainer", "transcript", "verifier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A run whose files are written, before anything is promised."""

    config: RunConfig
    folder: RunFolder
    run_id: str
    dataset: TokenStore
    graph: StepGraph
    constants_root: str
    initial_state_root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that can start: its registration, that statement's digest, and its graph."""

    registration: Registration
    digest: str
    graph: StepGraph


def prepare_run(
    config: RunConfig, folder: RunFolder, key: PrivateKey, *, threads: int | None = None
) -> Prepared:
    """Write everything a run needs before step 0, the registration last.

    For a run whose ranks all work on this machine's device; `stage_run` and `register_run` are
    for others.

    Args:
        config: the run.
        folder: where it goes; a folder that already holds a run is refused.
        key: signs the registration, later the log and the commitment.
        threads: for hashing; all CPUs by default.

    Raises:
        ConfigError: the folder already holds a run.
        DataError: no corpus, or one that is too small.
        GraphError: the step leaves the pinned set.
        transcript.errors.StorageError: the disk or the object store fails.
        trainer.kernels.errors.EnvironmentMissingError: `device: cuda` without CuPy or a GPU.

    """
    staged = stage_run(config, folder, threads=threads)
    multiply = open_device(config.numerics, threads)
    root = staged.initial_state_root
    probe = answers(config.numerics, multiply, run_id=staged.run_id, moment="start", root=root)
    return register_run(staged, key, [probe] * config.train.world)


def stage_run(config: RunConfig, folder: RunFolder, *, threads: int | None = None) -> Staged:
    """Write what a run needs before step 0, all but the registration; errors as `prepare_run`."""
    if folder.registration.exists():
        raise ConfigError(f"{folder.root}: holds a run already; choose another folder")
    workers = op_threads.resolve(threads)
    dataset = write_dataset(folder, load_corpus(config.data), workers)
    graph = derive_graph(config)
    layouts = layouts_of(graph)
    constants = layouts.constants.pack(step_constants(config.model, config.train.world))
    state = layouts.state.pack(initial_state(config))
    store = open_for_writing(config, folder, layouts)
    store.write_constants(constants)
    store.write_state(0, state)
    store.sync()
    write_atomic(folder.graph, canonical.dumps(graph.document()))
    return Staged(
        config=config,
        folder=folder,
        run_id=f"{config.name[:48]}-{secrets.token_hex(4)}",
        dataset=dataset,
        graph=graph,
        constants_root=arena_root(constants, layouts.constants, workers).hex(),
        initial_state_root=arena_root(state, layouts.state, workers).hex(),
    )


def register_run(staged: Staged, key: PrivateKey, probes: Sequence[bytes]) -> Prepared:
    """Sign the registration of a staged run.

    Args:
        staged: the run.
        key: signs it.
        probes: what each rank's device answered (`trainer.device_probe`), in rank order.

    Raises:
        transcript.errors.TranscriptError: the disk fails, or holds no registrations of this key.

    """
    folder = staged.folder
    for rank, answer in enumerate(probes):
        write_atomic(folder.probe("start", rank), answer)

    def sign(attempt: int, previous: str | None) -> bytes:
        registration = _registration(staged, key, probes, attempt, previous)
        return sign_statement(registration, key)[0]

    register(folder, key.public, sign)
    signed = read_registration(folder)
    return Prepared(registration=signed.predicate, digest=signed.digest, graph=staged.graph)


def _registration(
    staged: Staged, key: PrivateKey, probes: Sequence[bytes], attempt: int, previous: str | None
) -> Registration:
    config, dataset = staged.config, staged.dataset
    return Registration(
        run_id=staged.run_id,
        attempt=attempt,
        previous=previous,
        created=utc_now(),
        config=config.document(),
        dataset=Dataset(root=dataset.root, tokens=len(dataset.tokens)),
        graph_digest=staged.graph.digest,
        arch=config.numerics.arch,
        profile=config.numerics.profile,
        world=config.train.world,
        steps=config.train.steps,
        record=config.record.stated,
        code_version=code_version(),
        public_key=key.public.pem(),
        probes=tuple(hashlib.sha256(answer).hexdigest() for answer in probes),
        constants_root=staged.constants_root,
        initial_state_root=staged.initial_state_root,
    )


@cache
def code_version() -> str:
    """Return the release and the SHA-256 over all Python sources of the packages.

    It is information for people: an auditor runs its own installation and believes none of it.
    """
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(p for name in _PACKAGES for p in (root / name).rglob("*.py")):
        content = path.read_bytes()
        name = path.relative_to(root).as_posix()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    try:
        release = version("bitwitness")
    except PackageNotFoundError:
        release = "uninstalled"
    return f"bitwitness {release} sources sha256:{digest.hexdigest()}"
