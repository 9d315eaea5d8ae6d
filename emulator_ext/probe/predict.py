"""Asks any hypothesis what a device should answer."""

from __future__ import annotations

import numpy as np

from emulator_ext.probe import aligned_sum
from emulator_ext.probe.device import Instruction
from emulator_ext.probe.exact import Scalar, add, decode, product, round_to
from emulator_ext.probe.formats import F64, Bits, Ints
from emulator_ext.probe.model import AnyModel, FmaModel, IntegerModel, Model, Place

_INT32 = 1 << 32


def predict(model: AnyModel, instruction: Instruction, a: Bits, b: Bits, c: Bits) -> Bits:
    """Return the result bits of the hypothesis; a, b [n, K], c [n] -> [n]."""
    if isinstance(model, Model):
        return aligned_sum.evaluate(model, instruction, a, b, c)
    if isinstance(model, FmaModel):
        rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        return np.array([_fma_chain(model, x, y, z) for x, y, z in rows], dtype=F64.dtype)
    return _integers(model, a, b, c)


def _integers(model: IntegerModel, a: Bits, b: Bits, c: Bits) -> Bits:
    x = a.astype(np.int8 if model.signed_a else np.uint8).astype(np.int64)
    y = b.astype(np.int8 if model.signed_b else np.uint8).astype(np.int64)
    total: Ints = (x * y).sum(axis=1) + c.astype(np.int32).astype(np.int64)
    if model.saturates:
        total = np.clip(total, -(_INT32 // 2), _INT32 // 2 - 1)
    return (total % _INT32).astype(np.uint32)


def _fma_chain(model: FmaModel, a: list[int], b: list[int], c_bits: int) -> int:
    bits = c_bits
    for index in model.order:
        x = _flushed(model, "a", decode(F64, a[index]))
        y = _flushed(model, "b", decode(F64, b[index]))
        term = product(x, y)
        if not model.fused and term.significand:
            total = -term.significand if term.negative else term.significand
            term = decode(F64, round_to(F64, total, term.exponent, model.rounding))
        carry = _flushed(model, "c", decode(F64, bits))
        bits = add(F64, term, carry, model.rounding, model.nan_bits)
        if "result" in model.flushed and decode(F64, bits).significand < 1 << F64.fraction_bits:
            bits = bits if _special(bits) else bits & F64.sign_bit
    return bits


def _flushed(model: FmaModel, place: Place, value: Scalar) -> Scalar:
    if place in model.flushed and 0 < value.significand < 1 << F64.fraction_bits:
        return Scalar(negative=value.negative, significand=0, exponent=value.exponent)
    return value


def _special(bits: int) -> bool:
    value = decode(F64, bits)
    return value.nan or value.infinite
