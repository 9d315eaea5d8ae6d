"""The verifier's errors: what keeps an audit from being made at all.

A fault of the run under audit is never an exception here; it is a `Check` with a verdict.

VerifierError
|-- OptionError     E_OPTION       an option of the audit is out of range or contradicts another
|-- BeaconError     E_BEACON       the beacon is missing, too long or not what its form says
|-- BudgetError     E_BUDGET       the registered run costs more to audit than the budget allows
|-- RunError        E_RUN          there is no run here whose registration can be read
|-- ResultError     E_RESULT       an audit result or its report data is malformed or of another run
|-- UntrustedError  E_UNTRUSTED    a statement is not signed by the key it has to be signed by
`-- ProofFileError  E_PROOF_FILE   a fraud proof is malformed, or proves nothing
"""

from __future__ import annotations

from typing import ClassVar


class VerifierError(Exception):
    """Base of all errors this package raises on purpose.

    Args:
        message: one line that says what is wrong.
        file: the file at fault, if there is one.

    """

    code: ClassVar[str] = "E_VERIFIER"

    def __init__(self, message: str, *, file: str = "") -> None:
        self.message = one_line(message)
        self.file = one_line(file)
        super().__init__(f"{self.file}: {self.message}" if self.file else self.message)

    def __reduce__(self) -> tuple[object, tuple[type[VerifierError], str, str]]:
        return _rebuild, (type(self), self.message, self.file)


class OptionError(VerifierError):
    """An option of the audit is out of range or contradicts another."""

    code = "E_OPTION"


class BeaconError(VerifierError):
    """The beacon is missing, too long or not what its form says."""

    code = "E_BEACON"


class BudgetError(VerifierError):
    """The registered run costs more to audit than the budget allows."""

    code = "E_BUDGET"


class RunError(VerifierError):
    """There is no run here whose registration can be read."""

    code = "E_RUN"


class ResultError(VerifierError):
    """An audit result or its report data is malformed, or of another run."""

    code = "E_RESULT"


class UntrustedError(VerifierError):
    """A statement is not signed by the key that it has to be signed by."""

    code = "E_UNTRUSTED"


class ProofFileError(VerifierError):
    """A fraud proof is malformed, or proves nothing."""

    code = "E_PROOF_FILE"


def one_line(text: str, limit: int = 400) -> str:
    """Escape everything unprintable and cut: a stranger's bytes reach messages and reports."""
    shown = "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= limit else f"{shown[:limit]}..."


def _rebuild(kind: type[VerifierError], message: str, file: str) -> VerifierError:
    return kind(message, file=file)
