"""One run, one file: the configuration that the registration commits.

Fractions are `Decimal`, so the committed JSON holds the digits that were written and no
binary float ever enters a signed document. Everything here changes bits; where a run is
executed (Ray addresses, resources) is `cluster`'s business and is not committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainer.errors import ConfigError

Architecture = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "rtx_blackwell"]
Profile = Literal["heal", "bf16", "fp32", "exact"]
Device = Literal["emulated", "cuda"]

# Sizes beyond these are refused before anything is derived from them: an auditor reads
# configurations that a stranger wrote.
MAX_DIMENSION = 1 << 20
MAX_STEPS = 1 << 24

Size = Annotated[int, Field(ge=1, le=MAX_DIMENSION)]
Fraction = Annotated[Decimal, Field(ge=0, le=1_000_000, max_digits=24, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NumericsConfig(_Section):
    """Which arithmetic, on what."""

    device: Device = "emulated"
    arch: Architecture = "hopper"
    profile: Profile = "heal"


class ModelConfig(_Section):
    """A decoder-only transformer over bytes.

    `attention`: `f32` multiplies by the run's profile; `int16` holds queries, keys and values as
    INT16 vectors and multiplies them exactly.
    """

    layers: Size
    width: Size
    heads: Size
    hidden: Size
    context: Size
    vocab: Size = 256
    attention: Literal["f32", "int16"] = "f32"
    norm_eps: Fraction = Decimal("0.00001")
    rope_base: Fraction = Decimal(10000)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads or (self.width // self.heads) % 2:
            msg = f"width {self.width} must be heads {self.heads} times an even head size"
            raise ValueError(msg)
        return self

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads


class DataConfig(_Section):
    """Where the text comes from: a file, a folder, or `stdlib` (Python's own source)."""

    source: Annotated[str, Field(min_length=1, max_length=4096)] = "stdlib"
    pattern: Annotated[str, Field(min_length=1, max_length=256)] = "*.py"
    max_bytes: Annotated[int, Field(ge=1, le=1 << 36)] = 8 << 20


class OptimConfig(_Section):
    """AdamW with linear warm-up and cosine decay to `final_fraction` of the peak."""

    learning_rate: Fraction
    warmup_steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    final_fraction: Annotated[Fraction, Field(le=1)] = Decimal("0.1")
    beta1: Annotated[Fraction, Field(lt=1)] = Decimal("0.9")
    beta2: Annotated[Fraction, Field(lt=1)] = Decimal("0.95")
    eps: Fraction = Decimal("0.00000001")
    weight_decay: Fraction = Decimal("0.1")
    clip_norm: Annotated[Fraction, Field(gt=0)] = Decimal(1)


class TrainConfig(_Section):
    """How long, how much at once, on how many ranks."""

    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)]
    batch: Size
    world: Annotated[int, Field(ge=1, le=4096)] = 1


class RecordConfig(_Section):
    """What is kept beside the roots, and how often a tree head is signed.

    `all` keeps every step's arena and state before it; `every` keeps each `every`-th step, the
    first and the last. `on_challenge` keeps no arena and the state before each `keep_state`-th
    step: the steps that an auditor draws are executed again from there (`trainer.reveal`).
    """

    policy: Literal["all", "every", "on_challenge"] = "all"
    every: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 1
    keep_state: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 16
    checkpoint_every: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 16

    @property
    def stated(self) -> str:
        """The policy as a registration states it."""
        return f"every:{self.every}" if self.policy == "every" else self.policy

    def recorded(self, steps: int) -> list[int]:
        """Return the steps of a run of `steps` steps whose arenas its store has, ascending."""
        if self.policy == "on_challenge":
            return []
        stride = 1 if self.policy == "all" else self.every
        return sorted({*range(0, steps, stride), steps - 1})

    def challenged(self, steps: int) -> list[int]:
        """Return the steps that a challenge draws from: those recorded, or to be revealed."""
        return list(range(steps)) if self.policy == "on_challenge" else self.recorded(steps)

    def kept(self, steps: int) -> list[int]:
        """Return the steps t whose state before t the store has; `steps` is the end, and last."""
        if self.policy == "on_challenge":
            return [*range(0, steps, self.keep_state), steps]
        return [*self.recorded(steps), steps]

    def signs(self, size: int, steps: int) -> bool:
        """Whether a tree head over `size` steps is due in a run of `steps` steps."""
        return size == steps or size % self.checkpoint_every == 0


class RecheckConfig(_Section):
    """How many blocks of products a rank computes again, by another route, before it commits.

    `products: 0` turns the re-check off. It changes no bit of a run; a registration says
    whether a run was made with it.
    """

    products: Annotated[int, Field(ge=0, le=4096)] = 4


class RunConfig(_Section):
    """The whole committed configuration of one run."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    seed: Annotated[int, Field(ge=0, lt=1 << 53)]
    numerics: NumericsConfig = NumericsConfig()
    model: ModelConfig
    data: DataConfig = DataConfig()
    optim: OptimConfig
    train: TrainConfig
    record: RecordConfig = RecordConfig()
    recheck: RecheckConfig = RecheckConfig()

    @model_validator(mode="after")
    def _warmup_ends(self) -> Self:
        if self.optim.warmup_steps > self.train.steps:
            msg = "optim.warmup_steps is more than train.steps"
            raise ValueError(msg)
        return self

    def document(self) -> dict[str, Any]:
        """Return the JSON object that is committed: integers and strings only."""
        return self.model_dump(mode="json")

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, name: str = "config") -> RunConfig:
        """Validate a mapping; `name` is the file it came from, for the error.

        Raises:
            ConfigError: one line naming the file, the field and the fault.

        """
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "top level"
            msg = f"{name}: {where}: {first['msg']}"
            raise ConfigError(msg) from None
