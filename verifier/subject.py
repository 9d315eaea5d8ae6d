"""What an audit can be about: a training run, or a text that was generated from one.

Both are committed alike: steps of one graph, each with an arena, under a chain of states and in
a log, between a registration and a commitment. So both are audited by the same code, and a
`Subject` says all that differs: what follows from the registered configuration, what the ends
are compared with, and how to speak of it. `verifier.training` and `verifier.generation` are the
two that exist; `verifier.context` chooses by the registered configuration.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.config import ModelConfig, NumericsConfig, RecordConfig
from trainer.graph import StepGraph
from transcript.errors import TranscriptError
from transcript.statements import Commitment
from verifier.errors import BudgetError
from verifier.report_data import TextFacts
from verifier.verdict import Check, from_error

if TYPE_CHECKING:
    from verifier.context import RunContext

Arrays = Mapping[str, NDArray[Any]]
# Reads the tokens of the run's data when they are needed.
Tokens = Callable[[], NDArray[np.uint8]]

# Deriving a graph takes about a millisecond a layer, a RoPE table 20 microseconds an entry.
MAX_LAYERS = 2048
MAX_ROPE_ENTRIES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How checks and reports speak of a subject.

    Attributes:
        noun: what it is.
        folder: how its folder is called in a command.
        data: what the dataset holds.
        constants: what the stored constants are.
        start: what the initial state is.
        scalars: what the scalars of a step follow from.
        batches: what the batches of all steps are.
        batch: what one batch is; `{rank}` stands for the rank.
        unrecorded: what nothing shows of a step that was not recorded.
        limits: what no audit of it can show, one sentence each.

    """

    noun: str
    folder: str
    data: str
    constants: str
    start: str
    scalars: str
    batches: str
    batch: str
    unrecorded: str
    limits: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Checks that are made together: a fault that stops them becomes the check `name`."""

    name: str
    function: Callable[[], Iterable[Check]]
    fault: Callable[[str, TranscriptError], Check] = from_error


class Ends(Protocol):
    """The comparison of what was exported with the final state."""

    @property
    def text(self) -> bytes:
        """The exported text that is compared; empty if there is none that can be read."""

    def groups(self) -> list[Group]:
        """Return the checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a configuration says in so many words.

    Attributes:
        words: how to speak of the subject.
        name: what its maker calls it; empty if it has no name but its id.
        source: where its data comes from.
        numerics: the arithmetic of its steps.
        model: the sizes of its model.
        record: what is kept of it.
        steps: how many steps it has.
        world: how many ranks.
        border: the first step of its second part, if its steps are of two kinds.
        tracked: whether its devices are probed at start and end, and its attempts counted.

    """

    words: Words
    name: str
    source: str
    numerics: NumericsConfig
    model: ModelConfig
    record: RecordConfig
    steps: int
    world: int = 1
    border: int | None = None
    tracked: bool = True

    @property
    def challenged(self) -> list[int]:
        """The steps that the policy records in full, or promises to reveal, ascending."""
        return self.record.challenged(self.steps)


class Subject(Protocol):
    """One thing that can be audited, as its configuration describes it."""

    @property
    def plan(self) -> Plan:
        """What the configuration says in so many words."""

    def document(self) -> dict[str, Any]:
        """Return the configuration as it is committed."""

    def check_size(self) -> None:
        """Refuse, by its numbers alone, what nothing should be derived from.

        Raises:
            BudgetError: some size is beyond what this machine can work on.

        """

    def derive_graph(self) -> StepGraph:
        """Return the step graph; TrainerError if there is none."""

    def tables(self) -> Arrays:
        """Return the constants that follow from the configuration; others are the prover's."""

    def initial_state(self, tokens: Tokens) -> Arrays:
        """Return the state before step 0; TrainerError if the tokens do not give one."""

    def batch(self, tokens: Tokens, root: str, step: int, rank: int) -> Arrays:
        """Return one rank's batch of a step; `root` is that of the tokens, hex.

        Raises:
            DataError: the tokens give none.

        """

    def scalars(self, step: int) -> NDArray[np.float32]:
        """Return a step's scalars, f32 [n]."""

    def ends(self, context: RunContext, commitment: Commitment) -> Ends:
        """Return the comparison of its exported files."""

    def text_facts(self, text: bytes) -> TextFacts | None:
        """Return what a report shows of the exported text, if it is about one."""


def limit(what: str, needed: int, most: int) -> None:
    """Refuse a configuration that needs more of something than there may be.

    Raises:
        BudgetError: it does.

    """
    if needed > most:
        raise BudgetError(f"the registered run needs {needed:,} {what}, the limit is {most:,}")


def limit_model(model: ModelConfig) -> None:
    """Refuse a model whose graph or tables would take long to derive; BudgetError."""
    limit("layers", model.layers, MAX_LAYERS)
    limit("entries of RoPE tables", model.context * model.head_size // 2, MAX_ROPE_ENTRIES)


def memory() -> int:
    """Return this machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
