"""A generated text as the subject of an audit: a committed model, decoded greedily.

What its configuration gives is less than a training run's: the parameters are constants that
the prover supplies, bound by the registration. Whose they are is seen only beside the training
run that the configuration names; docs/generation.md has the checks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import RunConfig
from trainer.constants import rope_tables
from trainer.errors import DataError
from trainer.generate.config import GenerationConfig
from trainer.generate.decode import text_of
from trainer.generate.run import GENERATIONS
from trainer.generate.step import (
    batch_of,
    derive_decode_graph,
    initial_state,
    state_declared,
)
from trainer.graph import StepGraph
from trainer.model import parameter_specs
from transcript.errors import TranscriptError
from transcript.run import TEXT, RunFolder
from transcript.statements import Commitment, read_commitment, read_registration
from verifier.report_data import TextFacts
from verifier.subject import Arrays, Group, Plan, Tokens, Words, limit, limit_model, memory
from verifier.verdict import Check, Verdict, compared, from_stored
from verifier.weights import first_wrong_tensor, parameter_count, size_limit

if TYPE_CHECKING:
    from verifier.context import RunContext

# What a replay holds at once: state before and after, the arena, the constants, twice over.
_COPIES = 4

WORDS = Words(
    noun="generation",
    folder="GENERATION --run RUN",
    data="bytes of prompt",
    constants="parameters and tables",
    start="generation began with the prompt and an empty cache",
    scalars="decoding has no scalars, and the log names none",
    batches="each step feeds the token at its own position",
    batch="the step feeds the token at its own position",
    unrecorded="the bytes that they decided are the model's",
    limits=(
        "How the weights came about: that is for an audit of the training run.",
        "That this is the only text that was generated, from this prompt or from any other.",
        "That the hardware is what it is said to be, beyond the arithmetic that it shows.",
        "When things happened: times are what each signer states.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSubject:
    """See `verifier.subject.Subject`; `run` is the training run's folder, if it is known."""

    config: GenerationConfig
    run: Path | None = None

    @property
    def plan(self) -> Plan:
        """What the configuration says in so many words; generated steps begin at `border`."""
        config = self.config
        return Plan(
            words=WORDS,
            name="",
            source=f"the weights of run {config.run}",
            numerics=config.numerics,
            model=config.model,
            record=config.record,
            steps=config.steps,
            border=config.prompt - 1,
            tracked=False,
        )

    def document(self) -> dict[str, Any]:
        """Return the configuration as it is committed."""
        return self.config.document()

    def check_size(self) -> None:
        """Refuse layers, tables, or a cache and parameters beyond limits."""
        limit_model(self.config.model)
        shapes = [shape for _, shape in state_declared(self.config).values()]
        elements = sum(map(prod, shapes)) + parameter_count(self.config.model)
        limit("bytes of cache and parameters", _COPIES * 4 * elements, memory())

    def derive_graph(self) -> StepGraph:
        """Return the graph of the decoding step."""
        return derive_decode_graph(self.config)

    def tables(self) -> Arrays:
        """Return the RoPE tables; the parameters are the prover's."""
        cos, sin = rope_tables(self.config.model)
        return {"rope_cos": cos, "rope_sin": sin}

    def initial_state(self, tokens: Tokens) -> Arrays:
        """Return the prompt and an empty cache.

        Raises:
            DataError: the data is not a prompt of the registered size.

        """
        prompt, shape = tokens(), (self.config.batch, self.config.prompt)
        if len(prompt) != prod(shape):
            raise DataError(f"the prompt has {len(prompt)} bytes, {prod(shape)} were configured")
        return initial_state(self.config, prompt.reshape(shape))

    def batch(self, tokens: Tokens, root: str, step: int, rank: int) -> Arrays:
        """Return the position."""
        del tokens, root, rank
        return batch_of(step)

    def scalars(self, step: int) -> NDArray[np.float32]:
        """Return f32 [0]."""
        del step
        return np.empty(0, np.float32)

    def ends(self, context: RunContext, commitment: Commitment) -> GenerationEnds:
        """Return the comparison of the text with the final state, and of the weights."""
        run = self.run or run_around(context.folder.root)
        return GenerationEnds(self.config, context, commitment, run)

    def text_facts(self, text: bytes) -> TextFacts:
        """Return what a report shows of the exported text."""
        config = self.config
        return TextFacts(
            run=config.run,
            commitment=config.commitment,
            cache=config.cache,
            batch=config.batch,
            prompt=config.prompt,
            text=text.hex(),
        )


class GenerationEnds:
    """The exported text against the final state, and the parameters against the training run."""

    def __init__(
        self,
        config: GenerationConfig,
        context: RunContext,
        commitment: Commitment,
        run: Path | None,
    ) -> None:
        self._config, self._context = config, context
        self._commitment, self._run = commitment, run

    @property
    def text(self) -> bytes:
        """The exported text that is compared; empty if it cannot be read."""
        with suppress(TranscriptError):
            return self._exported_text
        return b""

    @cached_property
    def _exported_text(self) -> bytes:
        """Read the file once: what a report shows is what was compared."""
        most = self._config.batch * (self._config.steps + 1)
        return self._context.folder.read(self._context.folder.text, most)

    def groups(self) -> list[Group]:
        """Return the checks."""
        return [
            Group(name="text.final", function=self._text, fault=from_stored),
            Group(name="weights.final", function=self._weights),
        ]

    def _text(self) -> Iterable[Check]:
        """Check the exported text against its digest and against the final state's tokens."""
        context, config, text = self._context, self._config, self._exported_text
        committed = {item.path: item.sha256 for item in self._commitment.weights}
        yield compared(
            "text.digest",
            f"{TEXT} is the committed file",
            expected=committed.get(TEXT, ""),
            found=hashlib.sha256(text).hexdigest(),
        )
        packed = context.store().read_state(config.steps)
        tokens = text_of(config, context.layouts.state.unpack(packed, "tokens")).tobytes()
        yield compared(
            "text.final",
            "the exported text is the final state's tokens",
            expected=tokens.hex(),
            found=text.hex(),
        )

    def _weights(self) -> Iterable[Check]:
        """Check that the parameters are those that the named training run committed."""
        if self._run is None:
            yield Check(
                name="weights.final",
                verdict=Verdict.INCONCLUSIVE,
                detail="the training run was not given: whose weights these are was not checked",
            )
            return
        run = RunFolder(self._run)
        registration = read_registration(run)
        signed = read_commitment(run, registration)
        document, file = registration.predicate.config, str(run.registration)
        trained = RunConfig.from_document(document, name=f"{file}: config")
        yield compared(
            "run.commitment",
            "the generation names this run's commitment and its model",
            expected=f"{signed.predicate.run_id} {signed.digest} {trained.model}",
            found=f"{self._config.run} {self._config.commitment} {self._config.model}",
        )
        yield from self._exported(run, signed.predicate)

    def _exported(self, run: RunFolder, commitment: Commitment) -> Iterable[Check]:
        """Compare the run's exported file with its digest, and the parameters with the file."""
        data = run.read(run.weights, size_limit(self._config.model))
        name = run.weights.relative_to(run.root).as_posix()
        committed = {item.path: item.sha256 for item in commitment.weights}
        yield compared(
            "weights.digest",
            f"{name} is the file that the run committed",
            expected=committed.get(name, ""),
            found=hashlib.sha256(data).hexdigest(),
        )
        wrong = first_wrong_tensor(data, self._parameters(), file=str(run.weights))
        yield compared(
            "weights.final",
            "the parameters are those that the run committed",
            expected="",
            found=wrong or "",
        )

    def _parameters(self) -> dict[str, NDArray[np.float32]]:
        context = self._context
        held = context.layouts.constants.unpack_all(context.store().read_constants())
        return {spec.name: held[spec.name] for spec in parameter_specs(self._config.model)}


def run_around(folder: Path) -> Path | None:
    """Return the training run of a generation that lies in RUN/generations/ID, if it does."""
    run = folder.absolute().parent.parent
    inside = folder.absolute().parent.name == GENERATIONS
    return run if inside and RunFolder(run).registration.is_file() else None
