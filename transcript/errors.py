"""The errors of the transcript.

TranscriptError
|-- MissingError    E_MISSING    something promised is not there: the verdict is NON_RESPONSE
|-- MalformedError  E_MALFORMED  bytes that are not what their format says
|-- LimitError      E_LIMIT      larger, deeper or longer than the reader allows
|-- VersionError    E_VERSION    a well-formed document of a format or version not known here
|-- SignatureError  E_SIGNATURE  no trusted key signed these bytes as this type
|-- ProofError      E_PROOF      a root or a Merkle proof does not come out
|-- ForkError       E_FORK       two histories for one run; the evidence holds both
|-- ContractError   E_CONTRACT   the caller passed a wrong dtype, shape, step or key
`-- StorageError    E_STORAGE    the disk or the object store failed: not the input's fault

Each message is one line, names the file where there is one, and carries the evidence as plain
strings, so that an error survives pickling and can be printed next to its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class TranscriptError(Exception):
    """Base of all errors this package raises on purpose.

    Args:
        message: one line that says what is wrong.
        file: the file, key or document that is at fault, if there is one.
        evidence: what was found and what was expected, as strings.

    """

    code: ClassVar[str] = "E_TRANSCRIPT"

    def __init__(
        self, message: str, *, file: str = "", evidence: Mapping[str, str] | None = None
    ) -> None:
        self.message = _one_line(message)
        self.file = _one_line(file)
        self.evidence: dict[str, str] = dict(evidence or {})
        super().__init__(f"{self.file}: {self.message}" if self.file else self.message)

    def __reduce__(
        self,
    ) -> tuple[object, tuple[type[TranscriptError], str, str, dict[str, str]]]:
        return _rebuild, (type(self), self.message, self.file, self.evidence)


class MissingError(TranscriptError):
    """Something that was promised is not there."""

    code = "E_MISSING"


class MalformedError(TranscriptError, ValueError):
    """Bytes are not what their format says."""

    code = "E_MALFORMED"


class LimitError(TranscriptError):
    """Input is larger, deeper or longer than the reader allows."""

    code = "E_LIMIT"


class VersionError(TranscriptError):
    """A document is of a format or version that is not known here."""

    code = "E_VERSION"


class SignatureError(TranscriptError):
    """No trusted key signed these bytes as this type."""

    code = "E_SIGNATURE"


class ProofError(TranscriptError):
    """A root or a Merkle proof does not come out."""

    code = "E_PROOF"


class ForkError(TranscriptError):
    """There are two histories for one run."""

    code = "E_FORK"


class ContractError(TranscriptError, ValueError):
    """The caller passed a wrong dtype, shape, step or key."""

    code = "E_CONTRACT"


class StorageError(TranscriptError, OSError):
    """The disk or the object store failed."""

    code = "E_STORAGE"


def _rebuild(
    kind: type[TranscriptError], message: str, file: str, evidence: dict[str, str]
) -> TranscriptError:
    return kind(message, file=file, evidence=evidence)


def _one_line(text: str) -> str:
    """Return the text with everything unprintable escaped: hostile names reach messages."""
    return "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text)
