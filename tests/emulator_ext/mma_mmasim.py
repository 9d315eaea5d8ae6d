"""MMA-Sim as a peer: its instructions, and how to run them on numpy arrays."""

from __future__ import annotations

import importlib
import sys
import types
import warnings

import numpy as np
import torch

import emulator_ext
from tests.emulator_ext.mma_model import UNSIGNED
from tests.emulator_ext.mma_operands import KINDS, accumulator, assert_same_bits, operand

NAMES = {
    "volta": "Volta",
    "turing": "Turing",
    "ampere": "Ampere",
    "ada": "Ada Lovelace",
    "hopper": "Hopper",
    "blackwell": "Blackwell",
    "rtx_blackwell": "RTX Blackwell",
}
# arch, instruction, MMA-Sim's qualifier, operand dtypes, accumulator, patterns
CASES = [
    ("ampere", "mma", "m16n8k16.f32.f16.f16.f32", ("f16", "f16"), "f32", 200_000),
    ("ampere", "mma", "m16n8k16.f32.bf16.bf16.f32", ("bf16", "bf16"), "f32", 200_000),
    ("hopper", "mma", "m16n8k16.f32.f16.f16.f32", ("f16", "f16"), "f32", 200_000),
    ("hopper", "mma", "m16n8k16.f32.bf16.bf16.f32", ("bf16", "bf16"), "f32", 200_000),
    ("ada", "mma", "m16n8k16.f32.bf16.bf16.f32", ("bf16", "bf16"), "f32", 20_000),
    ("volta", "mma", "m8n8k4.f32.f16.f16.f32", ("f16", "f16"), "f32", 20_000),
    ("volta", "mma", "m8n8k4.f16.f16.f16.f16", ("f16", "f16"), "f16", 20_000),
    ("turing", "mma", "m16n8k8.f32.f16.f16.f32", ("f16", "f16"), "f32", 20_000),
    ("turing", "mma", "m16n8k8.f16.f16.f16.f16", ("f16", "f16"), "f16", 20_000),
    ("ampere", "mma", "m16n8k16.f16.f16.f16.f16", ("f16", "f16"), "f16", 20_000),
    ("ampere", "mma", "m16n8k8.f32.tf32.tf32.f32", ("tf32", "tf32"), "f32", 20_000),
    ("ada", "mma", "m16n8k32.f32.e4m3.e4m3.f32", ("e4m3", "e4m3"), "f32", 20_000),
    ("ada", "mma", "m16n8k32.f16.e4m3.e5m2.f16", ("e4m3", "e5m2"), "f16", 20_000),
    ("hopper", "mma", "m16n8k16.f16.f16.f16.f16", ("f16", "f16"), "f16", 20_000),
    ("hopper", "mma", "m16n8k8.f32.tf32.tf32.f32", ("tf32", "tf32"), "f32", 20_000),
    ("hopper", "wgmma", "m64n8k32.f32.e5m2.e4m3", ("e5m2", "e4m3"), "f32", 20_000),
    ("hopper", "wgmma", "m64n8k32.f16.e5m2.e5m2", ("e5m2", "e5m2"), "f16", 20_000),
    ("hopper", "wgmma", "m64n8k16.f16.f16.f16", ("f16", "f16"), "f16", 20_000),
    ("blackwell", "mma", "m16n8k16.f32.bf16.bf16.f32", ("bf16", "bf16"), "f32", 20_000),
    (
        "blackwell",
        "tcgen05",
        "m64n8k32.kind::f8f6f4.f32.e4m3.e5m2",
        ("e4m3", "e5m2"),
        "f32",
        20_000,
    ),
    (
        "blackwell",
        "tcgen05",
        "m64n8k32.kind::f8f6f4.f16.e4m3.e4m3",
        ("e4m3", "e4m3"),
        "f16",
        20_000,
    ),
    ("blackwell", "tcgen05", "m64n8k8.kind::tf32.f32.tf32.tf32", ("tf32", "tf32"), "f32", 20_000),
    ("rtx_blackwell", "mma", "m16n8k32.f32.e5m2.e5m2.f32", ("e5m2", "e5m2"), "f32", 20_000),
    ("rtx_blackwell", "mma", "m16n8k16.f16.f16.f16.f16", ("f16", "f16"), "f16", 20_000),
]
TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "f32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32}


def load():
    """Import MMA-Sim without its FP64 helper, which would run a C++ compiler at import."""
    helper = "mmasim.arithmetic.fma"
    stub = types.ModuleType(helper)
    stub.MMA_FMA = None
    sys.modules.setdefault(helper, stub)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("mmasim.nv_ptx")


def simulate(nv_ptx, arch, instruction, qualifier, a, b, c, names, acc):
    """Run MMA-Sim's dot products on numpy arrays; the result as bits."""
    factory = {"mma": nv_ptx.MMA, "wgmma": nv_ptx.WGMMA, "tcgen05": nv_ptx.TCGen05MMA}[instruction]

    def tensor(x, name):
        return torch.from_numpy(x.view(SIGNED[x.itemsize]).copy()).view(TORCH[name])

    out = factory(NAMES[arch], qualifier).dpa(
        tensor(a, names[0]), tensor(b, names[1]), tensor(c, acc)
    )
    signed = torch.int16 if acc == "f16" else torch.int32
    return out.contiguous().view(signed).numpy().view(UNSIGNED[out.itemsize])


def compare(nv_ptx, case, rng, share):
    """Compare `share` random elements of each kind and accumulator kind; returns how many."""
    arch, instruction, qualifier, names, acc, _ = case
    depth = int(qualifier.split(".")[0].split("k")[1])
    checked = 0
    for kind in KINDS:
        for c_kind in ("bits", "normal"):
            a = operand(rng, names[0], (share, depth), kind)
            b = operand(rng, names[1], (share, depth), kind)
            c = accumulator(rng, acc, (share,), c_kind)
            expected = simulate(nv_ptx, arch, instruction, qualifier, a, b, c, names, acc)
            out = emulator_ext.dot(a, b, c, arch=arch, acc=acc, instruction=instruction)
            assert_same_bits(out.view(expected.dtype), expected, f"{case} {kind} {c_kind}")
            checked += len(out)
    return checked
