"""The numerics of Bitwitness: tensor cores emulated to the bit, and the pinned operators.

`dot` and `matmul` are single tensor-core instructions on whole operands, `gemm` the profiles
that the trainer uses, `numerics` the table behind them; `emulator_ext.pinned` holds everything
of a training step that is not a matrix product. Implements NUMERICS sections 1 to 4.
"""

from emulator_ext.arithmetic import Numerics, numerics
from emulator_ext.engines import Regions
from emulator_ext.errors import EmulatorError, NonFiniteError, OperandError, UnsupportedError
from emulator_ext.gemm import gemm
from emulator_ext.loaded import load_architecture
from emulator_ext.matmul import dot, matmul
from emulator_ext.paths import paths
from emulator_ext.schedule import Schedule

__all__ = [
    "EmulatorError",
    "NonFiniteError",
    "Numerics",
    "OperandError",
    "Regions",
    "Schedule",
    "UnsupportedError",
    "dot",
    "gemm",
    "load_architecture",
    "matmul",
    "numerics",
    "paths",
]
