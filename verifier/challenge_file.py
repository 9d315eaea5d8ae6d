"""The file that asks a trainer to reveal steps: what was drawn, and from what.

It states nothing that anybody has to believe, so it is not signed: the steps follow from the
seed, and whoever answers draws them again. Format: docs/formats/challenge.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from transcript.files import read_bounded
from verifier.challenge import Challenge, derive_seed
from verifier.errors import OptionError, one_line
from verifier.sampling import sample_steps

FORMAT: Final = "bitwitness/challenge-request/v1"
MAX_CHALLENGE_BYTES: Final = 1 << 20
_ANSWERS: Final = "revealed"

_Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Step = Annotated[int, Field(ge=0, lt=1 << 53)]


class ChallengeRequest(BaseModel):
    """The file's content; `count` is how many steps were asked for, `steps` what was drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["bitwitness/challenge-request/v1"] = FORMAT
    run_id: Annotated[str, Field(min_length=1, max_length=128)]
    commitment: _Hex32
    beacon: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,512}$")]
    beacon_source: Annotated[str, Field(max_length=2000)]
    nonce: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){8,64}$")]
    count: Annotated[int, Field(ge=1, le=4096)]
    steps: Annotated[tuple[_Step, ...], Field(strict=False, min_length=1, max_length=4096)]

    @classmethod
    def of(
        cls, challenge: Challenge, run_id: str, count: int, steps: list[int]
    ) -> ChallengeRequest:
        """Return the request of a challenge that drew `steps`."""
        return cls(
            run_id=run_id,
            commitment=challenge.commitment_digest.hex(),
            beacon=challenge.beacon.value.hex(),
            beacon_source=one_line(challenge.beacon.description),
            nonce=challenge.nonce.hex(),
            count=count,
            steps=tuple(steps),
        )

    @property
    def seed(self) -> bytes:
        """The seed, 32 bytes."""
        parts = (self.commitment, self.beacon, self.nonce)
        return derive_seed(*map(bytes.fromhex, parts))

    def check(self, commitment: str, population: list[int], *, file: str = "") -> None:
        """Check that this asks for what its seed draws, of the commitment given.

        Args:
            commitment: digest of the run's commitment, hex.
            population: the steps that are drawn from.
            file: the request's name, for messages.

        Raises:
            OptionError: it is about another commitment, or asks for other steps.

        """
        if self.commitment != commitment:
            raise OptionError(
                f"{file}: asks for commitment {self.commitment[:16]}, this run's is "
                f"{commitment[:16]}"
            )
        if [*self.steps] != sample_steps(self.seed, population, self.count):
            raise OptionError(f"{file}: asks for other steps than its seed draws")


def answer_folder(run: Path, seed: bytes) -> Path:
    """Return where the answer to a challenge lies in the folder of a run."""
    return run / _ANSWERS / seed.hex()[:16]


def find_answer(run: Path, seed: bytes) -> Path | None:
    """Return that folder if it is there, and no link leads to it."""
    found = answer_folder(run, seed)
    linked = found.is_symlink() or found.parent.is_symlink()
    return found if found.is_dir() and not linked else None


def dump_request(request: ChallengeRequest) -> bytes:
    """Return the file."""
    return request.model_dump_json(indent=1).encode() + b"\n"


def load_request(path: Path) -> ChallengeRequest:
    """Read a request from a stranger.

    Raises:
        TranscriptError: missing, or too large.
        OptionError: not of this format.

    """
    data = read_bounded(path, MAX_CHALLENGE_BYTES)
    try:
        return ChallengeRequest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise OptionError(f"{path}: not a challenge: {where}: {first['msg']}") from None
