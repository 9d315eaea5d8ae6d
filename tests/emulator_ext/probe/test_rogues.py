"""Devices that follow none of the models are noticed, by the experiment that contradicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulator_ext.probe import Instruction, ProbeError, known_rows, row_of, run
from emulator_ext.probe.device import Device
from tests.emulator_ext.probe.devices import (
    FmaDevice,
    IntegerDevice,
    Knobs,
    PairwiseDevice,
    StepDevice,
    Through,
)

F16 = Instruction(a="f16", b="f16", accumulator="f32", k=16)
BF16 = Instruction(a="bf16", b="bf16", accumulator="f32", k=16)
HALF = Instruction(a="f16", b="f16", accumulator="f16", k=16)
TF32 = Instruction(a="tf32", b="tf32", accumulator="f32", k=8)


def _hopper(instruction: Instruction = F16, **changes: Any) -> StepDevice:
    return StepDevice(instruction, Knobs(**{"F": 25, "L": 16, "e_zero": -133, **changes}))


# name: (device, the experiment that contradicts, what it found, whether the model found explains
# the random check)
ROGUES: dict[str, tuple[Device, str, str, bool]] = {
    "two's-complement floor": (
        _hopper(align="floor"),
        "alignment.rounding",
        "rounding at alignment: floor (two's complement)",
        True,
    ),
    "nearest at alignment": (
        _hopper(align="nearest"),
        "alignment.rounding",
        "rounding at alignment: nearest, ties to even",
        True,
    ),
    "sticky bit at alignment": (
        _hopper(align="sticky"),
        "alignment.rounding",
        "rounding at alignment: sticky",
        True,
    ),
    "sticky bit, groups of 8": (
        _hopper(align="sticky", L=8),
        "grouping.again",
        "groups of 8",
        True,
    ),
    "one bit more than any": (_hopper(F=26), "alignment.width", "alignment width F: 26", True),
    "normalised products": (
        _hopper(normalise_products=True),
        "alignment.product",
        "normalised product",
        True,
    ),
    "normalised subnormals": (
        _hopper(normalise_subnormals=True),
        "alignment.subnormal_operand",
        "normalised",
        True,
    ),
    "hidden extra bit of c": (
        _hopper(extra_bits={-1: 1}),
        "alignment.positions",
        "no hypothesis about alignment at all places fits",
        False,
    ),
    "hidden extra bit of one lane": (
        _hopper(extra_bits={5: 1}),
        "alignment.positions",
        "is refuted by 1 of",
        False,
    ),
    "32-bit sum": (_hopper(wrap_bits=32), "alignment.sum", "no hypothesis about width", True),
    "descending groups": (
        _hopper(L=8, groups=(tuple(range(8, 16)), tuple(range(8)))),
        "grouping",
        "{8-15} then {0-7}",
        True,
    ),
    "interleaved groups": (
        _hopper(groups=(tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))),
        "grouping",
        "{0,2,4,6,8,10,12,14} then {1,3,5,7,9,11,13,15}",
        True,
    ),
    "c added afterwards": (
        _hopper(c_last=True),
        "grouping",
        "c is added to the result at the end",
        True,
    ),
    "nearest at the end": (
        _hopper(end="nearest"),
        "result.rounding",
        "24 bits, nearest, ties to even",
        True,
    ),
    "23 bits at the end": (_hopper(precision=23), "result.rounding", "23 bits, toward zero", True),
    "f32 carried beside f16": (
        _hopper(HALF, F=24, L=8, e_zero=-20, precision=11, end="nearest", wide_carry=True),
        "result.carry",
        "kept as f32 between steps",
        True,
    ),
    "flushed a": (
        _hopper(BF16, flush=frozenset({"a"})),
        "limits.subnormal_a",
        "flushed to zero",
        True,
    ),
    "flushed b": (
        _hopper(BF16, flush=frozenset({"b"})),
        "limits.subnormal_b",
        "flushed to zero",
        True,
    ),
    "flushed c": (
        _hopper(BF16, flush=frozenset({"c"})),
        "limits.subnormal_c",
        "flushed to zero",
        True,
    ),
    "flushed results": (
        _hopper(BF16, flush=frozenset({"result"})),
        "limits.subnormal_result",
        "flushed to zero",
        True,
    ),
    "saturating": (_hopper(BF16, saturate=True), "specials.overflow", "the largest number", True),
    "NaN payloads": (_hopper(payload=True), "specials.nan", "no hypothesis about NaN fits", False),
    "negative zeros": (_hopper(negative_zero=True), "specials.zero", "IEEE", True),
    "tf32 rounded": (
        _hopper(TF32, L=8, round_tf32=True),
        "specials.tf32_bits",
        "rounded to nearest even",
        True,
    ),
    "multiply, then add": (FmaDevice(4, fused=False), "fma.rounding", "product rounded", False),
    "saturating integers": (
        IntegerDevice("s8", "s8", 32, saturate=True),
        "integer.overflow",
        "saturates",
        True,
    ),
}


@pytest.mark.parametrize("name", ROGUES)
def test_rogue_devices_are_contradicted_by_the_right_experiment(name: str) -> None:
    """The experiment that concerns the deviation contradicts NUMERICS and says what it found."""
    device, experiment, words, explained = ROGUES[name]
    found = run(device, checks=700)
    assert not found.follows
    assert experiment in found.contradictions
    conclusions = {e.name: e.conclusion for e in found.experiments}
    assert words in conclusions[experiment]
    assert found.check is not None
    if explained:
        # The description is right: a model with the deviation predicts every random answer.
        assert found.check.mismatches == 0
    with pytest.raises(ProbeError, match=experiment.replace(".", r"\.")):
        row_of(found)


def test_a_pairwise_tree_is_drawn() -> None:
    """A tree of additions is no chain of groups; its brackets are shown, and nothing assumed."""
    device = PairwiseDevice(
        Instruction(a="f16", b="f16", accumulator="f32", k=8),
        Knobs(F=50, L=1, e_zero=-133, end="nearest"),
    )
    found = run(device, checks=7)
    assert found.model is None
    assert found.check is None
    assert found.contradictions == ("grouping",)
    assert found.experiments[0].conclusion == (
        "a tree, not a chain of groups: ((((p0 p1) (p2 p3)) ((p4 p5) (p6 p7))) c)"
    )


@pytest.mark.parametrize("changes", [{"L": 4}, {"e_zero": -140}], ids=["group", "floor"])
def test_new_parameters_are_no_known_architecture(changes: dict[str, int]) -> None:
    """Another group or floor follows the contract, but no architecture has it."""
    found = run(_hopper(BF16, **changes), checks=350)
    assert found.follows
    assert known_rows(found) == ()
    row = row_of(found)
    assert (row.L, row.e_zero) == (changes.get("L", 16), changes.get("e_zero", -133))


def test_a_group_that_no_kernel_has_is_not_saved() -> None:
    """A device that follows the contract with L = 2 is described, and refused as a row."""
    found = run(_hopper(BF16, L=2), checks=70)
    assert found.follows
    with pytest.raises(ProbeError, match="the emulator has no F = 25, L = 2"):
        row_of(found)


def test_the_random_check_notices_what_no_experiment_asks() -> None:
    """A device that errs where no designed input looks is caught with its first inputs."""
    inner = _hopper()

    def flips(a: Any, b: Any, c: Any, d: Any) -> Any:
        return d ^ ((c & 0xFF) == 0x37).astype(d.dtype)

    found = run(Through(inner, flips), checks=7000)
    assert found.contradictions == ("check",)
    assert found.check is not None
    assert found.check.mismatches > 0
    example = found.check.examples[0]
    assert example.c & 0xFF == 0x37
    assert example.predicted != example.observed


def test_another_fp64_nan_is_no_row_of_the_emulator() -> None:
    """NUMERICS leaves the FP64 NaN open; the emulator has one, and claims no other."""

    def quiet(a: Any, b: Any, c: Any, d: Any) -> Any:
        return np.where(d == (1 << 63) - 1, np.uint64(0xFFF8 << 48), d)

    found = run(Through(FmaDevice(4), quiet), checks=350)
    assert found.follows
    assert known_rows(found) == ()
    with pytest.raises(ProbeError, match="FP64 NaN is not 0xfff8000000000000"):
        row_of(found)


def test_an_answer_of_the_wrong_shape_is_refused() -> None:
    """A device that breaks the protocol gives one clear error."""
    broken = Through(_hopper(), lambda *bits: bits[3][:-1])
    with pytest.raises(ProbeError, match="altered device: answered uint32"):
        run(broken)


def test_formats_without_experiments_are_refused() -> None:
    """A combination that no experiment was built for is refused by name."""
    odd = Instruction(a="f16", b="s8", accumulator="f32", k=4)
    with pytest.raises(ProbeError, match=r"no experiments for mma f16\*s8\+f32 k4"):
        run(StepDevice(odd, Knobs(F=25, L=4, e_zero=-133)))
    with pytest.raises(ProbeError, match="no format 'f8'"):
        Instruction(a="f8", b="f8", accumulator="f32", k=4)
    with pytest.raises(ProbeError, match="K must lie"):
        Instruction(a="f16", b="f16", accumulator="f32", k=0)
