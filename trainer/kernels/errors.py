"""The kernels' errors.

TrainerError
|-- KernelError              E_KERNEL   a shape, stride or dtype that no kernel takes
`-- EnvironmentMissingError  E_NO_GPU   CuPy or a GPU is missing, or the GPU is too old
"""

from __future__ import annotations

from trainer.errors import TrainerError


class KernelError(TrainerError):
    """An operand has a shape, stride or dtype that the kernels do not take."""

    code = "E_KERNEL"


class EnvironmentMissingError(TrainerError):
    """`device: cuda` cannot work here; the command line exits with 3."""

    code = "E_NO_GPU"
