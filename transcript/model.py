"""The base of every signed or hashed document: strict, frozen, no unknown fields.

A document is parsed from its exact bytes by `canonical.loads` and only then checked against its
model; it is never repaired, coerced or serialised again before a signature or hash is checked.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from transcript import canonical
from transcript.errors import MalformedError, VersionError

MAX_WORLD: Final = 65_536
RUN_ID: Final = r"^[a-z0-9][a-z0-9._-]{0,63}$"

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


def utc_now() -> str:
    """Return the present time as a document holds it: RFC 3339, UTC, whole seconds."""
    return datetime.now(UTC).strftime(_TIME)


def _check_time(text: str) -> str:
    # formatted again, because the parser also takes what is not padded
    if datetime.strptime(text, _TIME).replace(tzinfo=UTC).strftime(_TIME) != text:
        raise ValueError("not RFC 3339 in UTC to the second")
    return text


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
F32Bits = Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
RunId = Annotated[str, Field(pattern=RUN_ID)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./:-]{0,199}$")]
Text = Annotated[str, Field(max_length=2000)]
Count = Annotated[int, Field(ge=0, le=canonical.MAX_INTEGER)]
Positive = Annotated[int, Field(ge=1, le=canonical.MAX_INTEGER)]
Decimal = Annotated[str, Field(pattern=r"^[0-9]{1,20}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?$")]
Timestamp = Annotated[str, AfterValidator(_check_time)]
# JSON has lists and frozen models have tuples: this one conversion is let through strict mode
Digests = Annotated[tuple[Digest, ...], Field(strict=False, max_length=MAX_WORLD)]
Scalars = Annotated[tuple[F32Bits, ...], Field(strict=False, max_length=256)]


class Document(BaseModel):
    """A part of a document. Subclasses list the fields; docs/formats lists their meaning."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    def encode(self) -> bytes:
        """Return the canonical JSON bytes."""
        return canonical.dumps(self.model_dump(mode="python", by_alias=True))

    @classmethod
    def decode(cls, data: bytes, *, limit: int, file: str = "") -> Self:
        """Parse canonical JSON from an untrusted source.

        Raises:
            MalformedError, LimitError: as `canonical.loads`, or a field is missing, unknown or bad.

        """
        return cls.check(canonical.loads(data, limit=limit, file=file), file=file)

    @classmethod
    def check(cls, value: Any, *, file: str = "") -> Self:
        """Build from parsed JSON; MalformedError names the first bad field."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or cls.__name__
            raise MalformedError(f"{where}: {first['msg']}", file=file) from None


def check_type(value: Any, key: str, expected: str, *, file: str = "") -> None:
    """Tell another version of a known document from something that is no document at all.

    Raises:
        MalformedError: `value` is no object, or `value[key]` is no string.
        VersionError: it is another string than `expected`.

    """
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise MalformedError(f"no {key} that says {expected}", file=file)
    if found != expected:
        raise VersionError(f"{key} is {found[:100]!r}, not {expected}", file=file)
