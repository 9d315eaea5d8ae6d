"""What the probe refuses, under the emulator's own error tree.

EmulatorError
|-- ProbeError            E_PROBE         a device that breaks the protocol, or an unknown format
`-- DeviceMissingError    E_NO_DEVICE     no GPU, no CuPy, or no such instruction on the GPU
"""

from __future__ import annotations

from emulator_ext.errors import EmulatorError


class ProbeError(EmulatorError):
    """The black box or its description cannot be probed."""

    code = "E_PROBE"


class DeviceMissingError(EmulatorError):
    """The hardware or the library that the black box needs is not there."""

    code = "E_NO_DEVICE"
