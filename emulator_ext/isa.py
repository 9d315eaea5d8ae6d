"""Which tensor-core instructions exist: architecture x instruction x dtypes x accumulator.

From the PTX ISA's target notes. How an instruction adds is `emulator_ext.arithmetic`'s.
"""

from __future__ import annotations

from emulator_ext.errors import UnsupportedError

ARCHITECTURES = ("volta", "turing", "ampere", "ada", "hopper", "blackwell", "rtx_blackwell")
INSTRUCTIONS = ("mma", "wgmma", "tcgen05")

_Rows = dict[str, tuple[str, ...]]

_HALF: _Rows = {"f16": ("f32", "f16")}
_INTEGERS: _Rows = {"s8": ("s32",), "u8": ("s32",)}
_SM80: _Rows = {**_HALF, "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",), **_INTEGERS}
_FP8: _Rows = {"e4m3": ("f32", "f16"), "e5m2": ("f32", "f16")}
_ASYNCHRONOUS: _Rows = {**_HALF, "bf16": ("f32",), "tf32": ("f32",), **_FP8, **_INTEGERS}

_EXISTING: dict[tuple[str, str], _Rows] = {
    ("volta", "mma"): _HALF,
    ("turing", "mma"): {**_HALF, **_INTEGERS},
    ("ampere", "mma"): _SM80,
    ("ada", "mma"): {**_SM80, **_FP8},
    ("hopper", "mma"): {**_SM80, **_FP8},
    ("hopper", "wgmma"): _ASYNCHRONOUS,
    ("blackwell", "mma"): {**_SM80, **_FP8},
    ("blackwell", "tcgen05"): _ASYNCHRONOUS,
    ("rtx_blackwell", "mma"): {**_SM80, **_FP8},
}
_added: list[str] = []  # architectures loaded from files, in order
# Operand dtypes that one instruction may mix.
_MIXABLE = (frozenset({"e4m3", "e5m2"}), frozenset({"s8", "u8"}))


def architectures() -> tuple[str, ...]:
    """All architectures: the built-in ones, then those loaded from files."""
    return (*ARCHITECTURES, *_added)


def add_architecture(arch: str, rows: dict[str, dict[str, tuple[str, ...]]]) -> None:
    """Let an architecture exist: rows are {instruction: {dtype: accumulators}}.

    `emulator_ext.loaded` is the only caller. Raises UnsupportedError if the name is taken.
    """
    if arch in architectures():
        raise UnsupportedError(f"architecture {arch!r} exists already")
    for instruction, dtypes in rows.items():
        _EXISTING[arch, instruction] = dtypes
    _added.append(arch)


def natural_accumulator(dtype: str) -> str:
    """Return the accumulator that `acc=None` stands for."""
    if dtype == "f64":
        return "f64"
    return "s32" if dtype in {"s8", "u8"} else "f32"


def existing(arch: str) -> tuple[str, ...]:
    """List all instructions of `arch`, as "instruction dtype acc"."""
    return tuple(
        f"{instruction} {dtype} {acc}"
        for (owner, instruction), rows in _EXISTING.items()
        if owner == arch
        for dtype, accumulators in rows.items()
        for acc in accumulators
    )


def require(arch: str, instruction: str, a_dtype: str, b_dtype: str, acc: str) -> None:
    """Raise UnsupportedError, naming what exists, unless the instruction does."""
    if arch not in architectures():
        raise UnsupportedError(
            f"unknown architecture {arch!r}; known are {', '.join(architectures())}"
        )
    rows = _EXISTING.get((arch, instruction), {})
    mixed = a_dtype == b_dtype or any({a_dtype, b_dtype} <= pair for pair in _MIXABLE)
    if not mixed or acc not in rows.get(a_dtype, ()) or acc not in rows.get(b_dtype, ()):
        operands = a_dtype if a_dtype == b_dtype else f"{a_dtype} x {b_dtype}"
        raise UnsupportedError(
            f"{arch} has no {instruction} of {operands} with a {acc} accumulator; it has: "
            f"{', '.join(existing(arch))}"
        )
