"""The detective behind `bitwitness probe`: what a tensor core does, to the bit.

The first half of the Hawkeye approach: a black box `mma(a, b, c)` is asked a sequence of
designed questions, each of which tells hypotheses about its arithmetic apart; the model that
is left is compared with it on random inputs; and if it is a machine of NUMERICS section 1, it
can be written as an architecture file that the emulator loads. A device outside the contract
is described by the experiments that contradict it.
"""

from emulator_ext.probe.cuda_device import open_cuda_devices
from emulator_ext.probe.device import Device, Instruction
from emulator_ext.probe.emulated import EmulatedDevice, emulated_instructions
from emulator_ext.probe.errors import DeviceMissingError, ProbeError
from emulator_ext.probe.report import render_text, to_document
from emulator_ext.probe.rows import known_rows, row_of, save
from emulator_ext.probe.session import Characterisation, run

__all__ = [
    "Characterisation",
    "Device",
    "DeviceMissingError",
    "EmulatedDevice",
    "Instruction",
    "ProbeError",
    "emulated_instructions",
    "known_rows",
    "open_cuda_devices",
    "render_text",
    "row_of",
    "run",
    "save",
    "to_document",
]
