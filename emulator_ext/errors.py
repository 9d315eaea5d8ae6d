"""The emulator's errors.

EmulatorError
|-- UnsupportedError   E_UNSUPPORTED  not built, or no such instruction on that architecture
|-- OperandError       E_OPERAND      a shape, dtype or value that the call cannot take
|-- NonFiniteError     E_NONFINITE    NaN or Inf where a pinned operation must abort
`-- FloatEnvironmentError  E_FLOAT_ENVIRONMENT  this thread flushes subnormals or rounds oddly
"""

from __future__ import annotations

from typing import ClassVar


class EmulatorError(Exception):
    """Base of all errors this package raises on purpose."""

    code: ClassVar[str] = "E_EMULATOR"


class UnsupportedError(EmulatorError):
    """The requested instruction, dtype or profile does not exist or is not built."""

    code = "E_UNSUPPORTED"


class OperandError(EmulatorError, ValueError):
    """An operand has a shape, dtype or value that the call cannot take."""

    code = "E_OPERAND"


class NonFiniteError(EmulatorError, ArithmeticError):
    """A pinned operation met NaN or Inf; the step must abort."""

    code = "E_NONFINITE"


class FloatEnvironmentError(EmulatorError, RuntimeError):
    """The calling thread's floating point is not IEEE's; some library changed its mode."""

    code = "E_FLOAT_ENVIRONMENT"
