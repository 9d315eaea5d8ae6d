"""The step leaf: what one step commits, as one line of canonical JSON.

The line without its newline is the Merkle leaf of the log. docs/formats/log.md is the contract.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from transcript import canonical
from transcript.errors import MalformedError
from transcript.model import (
    Count,
    Digest,
    Digests,
    Document,
    F32Bits,
    Name,
    RunId,
    Scalars,
    check_type,
)

LEAF_TYPE: Final = "bitwitness/step/v1"
LEAF_LIMIT: Final = 16 << 20  # 65,536 ranks name two roots each


class StepLeaf(Document):
    """What one step commits. Digests are 64 hexadecimal digits; f32 values are 8, their bits."""

    type: Literal["bitwitness/step/v1"] = LEAF_TYPE
    run_id: RunId
    registration: Digest
    step: Count
    graph_digest: Digest
    state_before: Digest
    state_after: Digest
    batches: Digests
    scalars: Scalars
    arenas: Digests
    metrics: Annotated[dict[Name, F32Bits], Field(max_length=256)]

    @model_validator(mode="after")
    def _one_root_per_rank(self) -> Self:
        if len(self.batches) != len(self.arenas) or not self.arenas:
            raise ValueError("batches and arenas have one root per rank")
        return self

    @classmethod
    def parse(cls, line: bytes, *, step: int, run_id: str | None = None, file: str = "") -> Self:
        """Parse the untrusted line of step `step`.

        Raises:
            MalformedError, LimitError, VersionError: not a step leaf, or one of another step or
                run.

        """
        value = canonical.loads(line, limit=LEAF_LIMIT, file=file)
        check_type(value, "type", LEAF_TYPE, file=file)
        leaf = cls.check(value, file=file)
        if leaf.step != step or (run_id is not None and leaf.run_id != run_id):
            raise MalformedError(
                f"step {leaf.step} of run {leaf.run_id} is out of place", file=file
            )
        return leaf
