"""The configuration of one generation: what its registration commits (docs/generation.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainer.config import ModelConfig, NumericsConfig, RecordConfig
from trainer.errors import ConfigError

# A token is a byte, in the prompt as in the text that is exported.
MAX_VOCAB = 256
MAX_BATCH = 1 << 16

Cache = Literal["int16", "f32"]


class GenerationConfig(BaseModel):
    """Decoding greedily from one trained model.

    Attributes:
        kind: tells this document from the configuration of a training run.
        run: the training run's id.
        commitment: digest of its commitment, which binds the weights.
        numerics: of every GEMM; `device` is where it was made and changes no bit.
        model: the trained model's sizes; `context` bounds prompt and generated text together.
        cache: how keys and values are kept. `int16`: INT16 vectors and exact products of them;
            `f32`: plain values and GEMMs of the profile.
        batch: prompts that are decoded at once, all of one length.
        prompt: bytes of each prompt.
        tokens: bytes to generate after each.
        record: which steps are kept whole, and how often a tree head is signed.

    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["generation"] = "generation"
    run: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    commitment: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    numerics: NumericsConfig
    model: ModelConfig
    cache: Cache = "int16"
    batch: Annotated[int, Field(ge=1, le=MAX_BATCH)] = 1
    prompt: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=1)]
    record: RecordConfig = RecordConfig()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.steps > self.model.context:
            msg = (
                f"{self.prompt} bytes of prompt and {self.tokens} to generate do not fit: the "
                f"model's window is {self.model.context}, which takes {self.model.context + 1} "
                "together"
            )
            raise ValueError(msg)
        if self.model.vocab > MAX_VOCAB:
            msg = f"a vocabulary of {self.model.vocab} is more than bytes"
            raise ValueError(msg)
        if self.record.policy == "on_challenge":
            msg = "record.policy on_challenge is for training: a generation keeps its steps"
            raise ValueError(msg)
        return self

    @property
    def steps(self) -> int:
        """Tokens that are fed in: each step feeds one and decides the next."""
        return self.prompt + self.tokens - 1

    @property
    def kept_states(self) -> list[int]:
        """Steps t whose state before t is kept: the recorded ones, and the end."""
        return [*self.record.recorded(self.steps), self.steps]

    def document(self) -> dict[str, Any]:
        """Return the JSON object that is committed: integers and strings only."""
        return self.model_dump(mode="json")

    @classmethod
    def from_document(
        cls, document: Mapping[str, Any], *, name: str = "config"
    ) -> GenerationConfig:
        """Validate a mapping; `name` is the file it came from, for the error.

        Raises:
            ConfigError: one line naming the file, the field and the fault.

        """
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            what = first["msg"].removeprefix("Value error, ")
            raise ConfigError(": ".join(filter(None, (name, where, what)))) from None
