"""MMA-Sim as a peer: its instructions, and how to run them on numpy arrays."""

from __future__ import annotations

import importlib
import sys
import types
import warnings

import numpy as np
import torch

import emulator_ext
from emulator_ext import isa
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
MANY, SOME = 200_000, 20_000
_MANY = {(arch, "mma", dtype) for arch in ("ampere", "hopper") for dtype in ("f16", "bf16")}
_FP8 = ("e4m3", "e5m2")


def _qualifier(arch, instruction, a, b, acc):
    """Name an instruction as MMA-Sim does; none for what it does not model."""
    depth = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}.get(a)
    if depth is None or (instruction == "mma" and a in _FP8 and arch in ("hopper", "blackwell")):
        return None  # f64 and integers, and NUMERICS 1.3: the golden records have it
    if instruction == "wgmma":
        return f"m64n8k{depth}.{acc}.{a}.{b}"
    if instruction == "tcgen05":
        kind = "f8f6f4" if a in _FP8 else ("tf32" if a == "tf32" else "f16")
        return f"m64n8k{depth}.kind::{kind}.{acc}.{a}.{b}"
    shape = {"volta": "m8n8k4", "turing": "m16n8k8"}.get(arch, f"m16n8k{depth}")
    kind = "kind::f8f6f4." if a in _FP8 and arch == "rtx_blackwell" else ""
    return f"{shape}.{kind}{acc}.{a}.{b}.{acc}"


def _cases():
    """List arch, instruction, qualifier, operand dtypes, accumulator and patterns of each."""
    for arch in NAMES:
        for row in isa.existing(arch):
            instruction, a, acc = row.split()
            for b in _FP8 if a in _FP8 else (a,):
                qualifier = _qualifier(arch, instruction, a, b, acc)
                many = (arch, instruction, a) in _MANY and acc == "f32"
                if qualifier is not None:
                    yield arch, instruction, qualifier, (a, b), acc, MANY if many else SOME


CASES = list(_cases())
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
    return sum(_compare_dots(nv_ptx, case, rng, share, *kinds) for kinds in _kinds())


def compare_products(nv_ptx, case, rng, rows, cols):
    """Compare every element of products [rows, k] x [k, cols], on each path; returns how many.

    Vector kernels decide by rows and panels which of their ways a value may take, so operands of
    one product are of one kind, but for a few elements of another.
    """
    return sum(_compare_product(nv_ptx, case, rng, (rows, cols), *kinds) for kinds in _kinds())


def _kinds():
    return [(kind, c_kind) for kind in KINDS for c_kind in ("bits", "normal")]


def _depth(case):
    return int(case[2].split(".")[0].split("k")[1])


def _compare_dots(nv_ptx, case, rng, share, kind, c_kind):
    arch, instruction, qualifier, names, acc, _ = case
    a, b = (operand(rng, name, (share, _depth(case)), kind) for name in names)
    c = accumulator(rng, acc, (share,), c_kind)
    expected = simulate(nv_ptx, arch, instruction, qualifier, a, b, c, names, acc)
    out = emulator_ext.dot(a, b, c, arch=arch, acc=acc, instruction=instruction)
    assert_same_bits(out.view(expected.dtype), expected, f"{case} {kind} {c_kind}")
    return len(out)


def _compare_product(nv_ptx, case, rng, shape, kind, c_kind):
    arch, instruction, qualifier, names, acc, _ = case
    a, b = (
        operand(rng, name, (n, _depth(case)), kind) for name, n in zip(names, shape, strict=True)
    )
    for x, name in ((a, names[0]), (b, names[1])):
        x[-1] = operand(rng, name, x.shape[1:], rng.choice(KINDS))
    c = accumulator(rng, acc, shape, c_kind)
    pairs = (np.repeat(a, shape[1], axis=0), np.tile(b, (shape[0], 1)), c.reshape(-1))
    expected = simulate(nv_ptx, arch, instruction, qualifier, *pairs, names, acc).reshape(shape)
    for path in emulator_ext.paths():
        out = emulator_ext.matmul(a, b.T, c, arch=arch, acc=acc, instruction=instruction, path=path)
        assert_same_bits(out.view(expected.dtype), expected, f"{case} {kind} {c_kind} {path}")
    return expected.size
