"""Before a generation's first step: write prompt, graph, constants and initial state, register."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.dataset import TokenStore, write_dataset
from trainer.errors import ConfigError
from trainer.generate.config import GenerationConfig
from trainer.generate.step import constants_of, derive_decode_graph, initial_state
from trainer.graph import StepGraph
from trainer.plan import layouts_of
from trainer.prepare import code_version
from transcript import canonical
from transcript.files import write_atomic
from transcript.keys import PrivateKey
from transcript.layout import Layout
from transcript.leaves import arena_root
from transcript.model import utc_now
from transcript.predicates import Dataset, Registration
from transcript.run import RunFolder
from transcript.statements import sign_statement
from transcript.store import RunStore

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedGeneration:
    """A generation that can start.

    Attributes:
        registration: its content.
        digest: of the signed statement, hex.
        graph: the step graph.
        store: open for writing.
        state: before step 0, arrays by name.
        constants: of every step, arrays by name.

    """

    registration: Registration
    digest: str
    graph: StepGraph
    store: RunStore
    state: Arrays
    constants: Arrays


def prepare_generation(
    config: GenerationConfig,
    parameters: Mapping[str, NDArray[np.float32]],
    prompts: NDArray[np.uint8],
    folder: RunFolder,
    key: PrivateKey,
    *,
    run_id: str,
    workers: int,
) -> PreparedGeneration:
    """Write everything that a generation needs before step 0, the registration last.

    Args:
        config: the generation.
        parameters: f32 arrays by their own names.
        prompts: u8 [batch, prompt].
        folder: where it goes.
        key: signs the registration.
        run_id: the generation's own id.
        workers: threads for hashing.

    Raises:
        ConfigError: the folder already holds a run.
        GraphError: the step leaves the pinned set.
        transcript.errors.StorageError: the disk or the object store fails.

    """
    if folder.registration.exists():
        raise ConfigError(f"{folder.root}: holds a run already; choose another folder")
    graph = derive_decode_graph(config)
    state, constants = initial_state(config, prompts), constants_of(config, parameters)
    store = _open_store(config, graph, folder)
    packed_state = store.layouts.state.pack(state)
    packed_constants = store.layouts.constants.pack(constants)
    store.write_state(0, packed_state)
    store.write_constants(packed_constants)
    write_atomic(folder.graph, canonical.dumps(graph.document()))

    def root(packed: NDArray[np.uint8], layout: Layout) -> str:
        return arena_root(packed, layout, workers).hex()

    registration = _registration(
        config,
        key,
        write_dataset(folder, prompts.reshape(-1), workers),
        graph,
        run_id=run_id,
        constants_root=root(packed_constants, store.layouts.constants),
        initial_state_root=root(packed_state, store.layouts.state),
    )
    envelope, digest = sign_statement(registration, key)
    write_atomic(folder.registration, envelope)
    return PreparedGeneration(
        registration=registration,
        digest=digest,
        graph=graph,
        store=store,
        state=state,
        constants=constants,
    )


def record_policy(config: GenerationConfig) -> str:
    """Return the recording policy as a registration writes it."""
    record = config.record
    return f"every:{record.every}" if record.policy == "every" else "all"


def _open_store(config: GenerationConfig, graph: StepGraph, folder: RunFolder) -> RunStore:
    return RunStore.create(
        folder.store,
        layouts_of(graph),
        recorded=config.record.recorded(config.steps),
        states=config.kept_states,
    )


def _registration(
    config: GenerationConfig,
    key: PrivateKey,
    dataset: TokenStore,
    graph: StepGraph,
    *,
    run_id: str,
    constants_root: str,
    initial_state_root: str,
) -> Registration:
    return Registration(
        run_id=run_id,
        attempt=1,
        created=utc_now(),
        config=config.document(),
        dataset=Dataset(root=dataset.root, tokens=len(dataset.tokens)),
        graph_digest=graph.digest,
        constants_root=constants_root,
        initial_state_root=initial_state_root,
        arch=config.numerics.arch,
        profile=config.numerics.profile,
        world=1,
        steps=config.steps,
        record=record_policy(config),
        code_version=code_version(),
        public_key=key.public.pem(),
    )
