"""How each tensor-core instruction adds: the table of NUMERICS 1.1 with its evidence.

Which instructions exist at all is `emulator_ext.isa`'s question, asked first. A row is
"recorded" if the golden outputs of real hardware cover that instruction, dtype and accumulator,
and "modelled" if only a published model (MMA-Sim 2.1.1) or a standard describes it. Rows that
were loaded from an architecture file are "probed": one device was asked, on one day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from _bitwitness_mma import Arithmetic, Rounding

from emulator_ext import isa
from emulator_ext.dtypes import dtype_name
from emulator_ext.errors import UnsupportedError

Evidence = Literal["recorded", "modelled", "probed", "unknown"]
Engine = Literal["chain", "fp8_through_f16", "fma", "integer"]

_FP8 = ("e4m3", "e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """How one instruction turns products and an accumulator into a result.

    F: fraction bits kept at alignment. L: products per step. e_zero: the floor of emax.
    rounding: "rz_f32", "rz_e8m13" (14 significant bits), "rne_f16", "ieee_fma" or "exact".
    engine: "chain" of steps; "fp8_through_f16" (NUMERICS 1.3: two f16 steps for every 32
    products, then one addition); "fma" (FP64); "integer". F, L and e_zero are None where the
    engine has none. evidence: see the module.
    """

    arch: str
    dtype: str
    acc: str
    instruction: str
    engine: Engine
    F: int | None
    L: int | None
    e_zero: int | None
    rounding: str
    evidence: Evidence

    def core(self) -> Arithmetic:
        """Return the C++ core's value of a row whose engine runs steps."""
        if self.F is None or self.L is None or self.e_zero is None:
            raise UnsupportedError(f"{self.dtype} on {self.arch} is no chain of steps")
        return Arithmetic(self.F, self.L, self.e_zero, getattr(Rounding, self.rounding))


# Fraction bits of the 16-bit and tf32 datapath and its products per step, in 16-bit operands.
_DATAPATH: dict[str, tuple[int, int]] = {
    "volta": (23, 4),
    "turing": (24, 8),
    "ampere": (24, 8),
    "ada": (24, 8),
    "hopper": (25, 16),
    "blackwell": (25, 16),
    "rtx_blackwell": (25, 16),
}
_E_ZERO_F32 = {23: -131, 24: -132, 25: -133}
_E_ZERO_F16 = {23: -19, 24: -20, 25: -21}

# (arch, instruction): {dtype: accumulators} with recorded outputs.
_RECORDED: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("volta", "mma"): {"f16": ("f32", "f16")},
    ("ampere", "mma"): {"f16": ("f32", "f16"), "bf16": ("f32",), "tf32": ("f32",)},
    ("ada", "mma"): {
        "f16": ("f32", "f16"),
        "bf16": ("f32",),
        "tf32": ("f32",),
        "e4m3": ("f32", "f16"),
        "e5m2": ("f32", "f16"),
    },
    ("hopper", "mma"): {
        "f16": ("f32", "f16"),
        "bf16": ("f32",),
        "tf32": ("f32",),
        "e4m3": ("f16",),
        "e5m2": ("f16",),
    },
    ("hopper", "wgmma"): {"e4m3": ("f32",), "e5m2": ("f32",)},
    ("blackwell", "mma"): {
        "f16": ("f32", "f16"),
        "bf16": ("f32",),
        "tf32": ("f32",),
        "e4m3": ("f32", "f16"),
        "e5m2": ("f32", "f16"),
    },
}


_probed: dict[tuple[str, str, str, str], Numerics] = {}  # rows loaded from files


def add_row(row: Numerics) -> None:
    """Add a row of a loaded architecture. `emulator_ext.loaded` is the only caller."""
    _probed[row.arch, row.instruction, row.dtype, row.acc] = row


def numerics(
    arch: str, dtype: object, acc: str | None = None, instruction: str = "mma"
) -> Numerics:
    """Look up the table row of one instruction.

    dtype is a name ("f16", "bf16", "tf32", "e4m3", "e5m2", "f64", "s8", "u8") or a numpy or
    ml_dtypes dtype (float32 stands for tf32). acc None means the widest accumulator: "f32",
    or "f64" and "s32" for f64 and 8-bit integers.

    Raises UnsupportedError if the architecture has no such instruction, naming those it has.
    """
    name = dtype_name(dtype)
    acc = isa.natural_accumulator(name) if acc is None else acc
    isa.require(arch, instruction, name, name, acc)
    probed = _probed.get((arch, instruction, name, acc))
    if probed is not None:
        return probed
    engine, F, L, e_zero, rounding = _row(arch, instruction, name, acc)
    recorded = acc in _RECORDED.get((arch, instruction), {}).get(name, ())
    return Numerics(
        arch=arch,
        dtype=name,
        acc=acc,
        instruction=instruction,
        engine=engine,
        F=F,
        L=L,
        e_zero=e_zero,
        rounding=rounding,
        evidence="recorded" if recorded else "modelled",
    )


def _row(
    arch: str, instruction: str, dtype: str, acc: str
) -> tuple[Engine, int | None, int | None, int | None, str]:
    if dtype == "f64":
        return "fma", None, 1, None, "ieee_fma"
    if dtype in {"s8", "u8"}:
        return "integer", None, None, None, "exact"
    F, L = _DATAPATH[arch]
    rounding = "rne_f16" if acc == "f16" else "rz_f32"
    engine: Engine = "chain"
    if dtype == "tf32":
        L //= 2
    elif dtype in _FP8:
        engine, F, L, rounding = _fp8_row(arch, instruction, F, L, rounding)
    # Below 23 fraction bits a step keeps the floor of the datapath it is built on (inert).
    floor = _DATAPATH[arch][0]
    e_zero = _E_ZERO_F16[floor] if acc == "f16" else _E_ZERO_F32[floor]
    return engine, F, L, e_zero, rounding


def _fp8_row(
    arch: str, instruction: str, F: int, L: int, rounding: str
) -> tuple[Engine, int, int, str]:
    if arch in {"hopper", "blackwell"} and instruction == "mma":
        return "fp8_through_f16", F, L, rounding
    if arch in {"ada", "hopper"}:
        return "chain", 13, 2 * L, "rz_e8m13" if rounding == "rz_f32" else rounding
    return "chain", F, 2 * L, rounding
