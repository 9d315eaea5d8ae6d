"""A training run as the subject of an audit: what follows from its configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.data import batch_at
from trainer.graph import StepGraph
from trainer.model import as_parameters
from trainer.state import initial_state
from trainer.trace import derive_graph
from transcript.statements import Commitment
from verifier.report_data import TextFacts
from verifier.subject import Arrays, Group, Plan, Tokens, Words, limit, limit_model, memory
from verifier.verdict import Check, compared
from verifier.weights import first_wrong_tensor, parameter_count, size_limit

if TYPE_CHECKING:
    from verifier.context import RunContext

MAX_ELEMENTS = 1 << 40

WORDS = Words(
    noun="run",
    folder="RUN",
    data="stored tokens",
    constants="tables",
    start="training began with the state that the seed gives",
    scalars="learning rate and bias corrections follow the schedule",
    batches="the data of every rank is what the schedule dictates",
    batch="the batch of rank {rank} is the one that the schedule dictates",
    unrecorded="their losses are true",
    # DESIGN: what no audit of this kind can show.
    limits=(
        "That no other training ran elsewhere, beside this one or before it.",
        "That the training data is good, lawful or complete; only that it is the registered data.",
        "That the hardware is what it is said to be, beyond the arithmetic that it shows.",
        "When things happened: times are what each signer states.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSubject:
    """See `verifier.subject.Subject`."""

    config: RunConfig

    @property
    def plan(self) -> Plan:
        """What the configuration says in so many words."""
        config = self.config
        return Plan(
            words=WORDS,
            name=config.name,
            source=config.data.source,
            numerics=config.numerics,
            model=config.model,
            record=config.record,
            steps=config.train.steps,
            world=config.train.world,
        )

    def document(self) -> dict[str, Any]:
        """Return the configuration as it is committed."""
        return self.config.document()

    def check_size(self) -> None:
        """Refuse layers, tables, activations or a state beyond limits; a state is held thrice."""
        model, rows = self.config.model, self.config.train.batch * self.config.model.context
        limit_model(model)
        widest = max(model.vocab, 2 * model.hidden, 3 * model.width, model.heads * model.context)
        limit("elements in one activation", rows * widest, MAX_ELEMENTS)
        limit("bytes of states", 9 * 4 * parameter_count(model), memory())

    def derive_graph(self) -> StepGraph:
        """Return the graph of the training step."""
        return derive_graph(self.config)

    def tables(self) -> Arrays:
        """Return all constants: none are the prover's."""
        return step_constants(self.config.model, self.config.train.world)

    def initial_state(self, tokens: Tokens) -> Arrays:
        """Return the state that the seed gives."""
        del tokens
        return initial_state(self.config)

    def batch(self, tokens: Tokens, root: str, step: int, rank: int) -> Arrays:
        """Return the windows of text that the schedule dictates."""
        return batch_at(tokens(), root, self.config, step, rank)

    def scalars(self, step: int) -> NDArray[np.float32]:
        """Return learning rate and bias corrections."""
        return step_scalars(self.config.optim, self.config.train.steps, step)

    def ends(self, context: RunContext, commitment: Commitment) -> TrainingEnds:
        """Return the comparison of the exported weights."""
        return TrainingEnds(context=context, commitment=commitment)

    def text_facts(self, text: bytes) -> TextFacts | None:
        """Return None: training writes no text."""
        del text
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnds:
    """The exported weights against their digest and against the stored final state."""

    context: RunContext
    commitment: Commitment

    @property
    def text(self) -> bytes:
        """No text."""
        return b""

    def groups(self) -> list[Group]:
        """Return the checks."""
        return [Group(name="weights.final", function=self._weights)]

    def _weights(self) -> Iterable[Check]:
        context, folder = self.context, self.context.folder
        name = folder.weights.relative_to(folder.root).as_posix()
        data = folder.read(folder.weights, size_limit(context.plan.model))
        committed = {item.path: item.sha256 for item in self.commitment.weights}
        yield compared(
            "weights.digest",
            f"{name} is the committed file",
            expected=committed.get(name, ""),
            found=hashlib.sha256(data).hexdigest(),
        )
        state = context.layouts.state.unpack_all(context.store().read_state(context.plan.steps))
        wrong = first_wrong_tensor(data, as_parameters(state), file=str(folder.weights))
        yield compared(
            "weights.final",
            "the exported weights are the final state's",
            expected="",
            found=wrong or "",
        )
