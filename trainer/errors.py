"""The trainer's errors.

TrainerError
|-- ConfigError      E_CONFIG       a run's configuration is not one that can be trained
|-- DataError        E_DATA         the corpus is missing, unreadable or too small
|-- GraphError       E_GRAPH        an operator outside the pinned set, or inputs that do not fit
|-- DivergenceError  E_DIVERGENCE   a re-executed step, or another rank, gave other bits
`-- SilentFaultError E_SILENT_FAULT the device computed a product wrongly, and nothing else told
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class TrainerError(Exception):
    """Base of all errors this package raises on purpose."""

    code: ClassVar[str] = "E_TRAINER"


class ConfigError(TrainerError):
    """The configuration is malformed or asks for something that does not exist."""

    code = "E_CONFIG"


class DataError(TrainerError):
    """The corpus cannot be read or has too few tokens for one batch."""

    code = "E_DATA"


class GraphError(TrainerError):
    """The step uses something outside the pinned set, or inputs do not fit the graph."""

    code = "E_GRAPH"


class DivergenceError(TrainerError):
    """Two executions that must agree to the bit do not."""

    code = "E_DIVERGENCE"


class SilentFaultError(TrainerError):
    """A step's own re-check found other bits than the device gave; nothing of it is committed.

    Attributes:
        step: the step.
        evidence: texts by name: rank, operator, value, element, and both bit patterns.

    """

    code = "E_SILENT_FAULT"

    def __init__(
        self, message: str, *, step: int = 0, evidence: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.step, self.evidence = step, dict(evidence or {})

    def __reduce__(self) -> tuple[object, tuple[str, int, dict[str, str]]]:
        return _silent_fault, (str(self), self.step, self.evidence)


def _silent_fault(message: str, step: int, evidence: dict[str, str]) -> SilentFaultError:
    return SilentFaultError(message, step=step, evidence=evidence)
