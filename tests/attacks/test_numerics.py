"""Attacks 18 to 23: cheaper or wrong arithmetic, anywhere in a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import emulator_ext
from emulator_ext import pinned
from tests.attacks.conftest import CHEATED_STEP, cheating_run, judge, tamper_with
from tests.verifier import runs
from trainer.trace import derive_graph
from verifier.verdict import Overall, Verdict

GRAPH = derive_graph(runs.config())
ARENA = GRAPH.arena
VALUES = {value.name: value for value in GRAPH.values}


def op_of(name: str) -> str:
    """Name the operator that makes a value of the tiny step."""
    return GRAPH.nodes[GRAPH.producers[VALUES[name].id]].op


COMMITTED = [entry.name for entry in ARENA.entries]
GEMMS = [name for name in COMMITTED if op_of(name) == "bitwitness::gemm"]


def flip_lowest_bit(tensor: torch.Tensor, index: int) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(torch.int32).view(-1)[index] ^= 1
    return changed


@pytest.mark.parametrize("name", [GEMMS[0], GEMMS[len(GEMMS) // 2], GEMMS[-1]])
def test_one_element_of_one_gemm_output(name: str, tmp_path: Path) -> None:
    """One flipped bit in one GEMM output, used by all that follows, is found where it is."""
    index = 5

    def change(step, value, tensor):
        cheat = step == CHEATED_STEP and value.name == name
        return flip_lowest_bit(tensor, index) if cheat else tensor

    judgement = judge(cheating_run(tmp_path / "run", tamper_with(change)))
    assert judgement.faults() == {f"step.values@{CHEATED_STEP}": {Verdict.MISMATCH}}
    assert judgement.overall is Overall.FAIL
    report = judgement.step(CHEATED_STEP)
    assert report.differing == 1
    (difference,) = report.differences
    shape = VALUES[name].shape
    assert (difference.op, difference.value) == ("bitwitness::gemm", name)
    assert np.ravel_multi_index(difference.index, shape) == index
    bits = [int(b, 16) for b in (difference.committed_bits, difference.recomputed_bits)]
    assert bits[0] ^ bits[1] == 1


def test_wrong_rmsnorm(tmp_path: Path) -> None:
    """A norm with another epsilon is found at the norm first, in every step.

    What the norm hands to its backward pass is not committed, so gradients differ as well.
    """
    original = pinned.rmsnorm

    def patches(patch):
        patch.setattr(pinned, "rmsnorm", lambda x, w, eps, **k: original(x, w, eps * 1.5, **k))

    judgement = judge(cheating_run(tmp_path / "run", patches))
    expected = {f"step.values@{t}": {Verdict.MISMATCH} for t in range(runs.STEPS)}
    assert judgement.faults() == expected
    assert {s.differences[0].op for s in judgement.steps} == {"bitwitness::rmsnorm"}


@pytest.mark.parametrize(
    ("function", "op"),
    [
        ("causal_softmax", "bitwitness::causal_softmax"),
        ("swiglu_backward", "bitwitness::swiglu_backward"),
        ("cross_entropy_backward", "bitwitness::cross_entropy_backward"),
        ("rope", "bitwitness::rope"),
    ],
)
def test_one_ulp_between_two_gemms(function: str, op: str, tmp_path: Path) -> None:
    """An operator between GEMMs that errs in the last bit of one element is named first."""
    original = getattr(pinned, function)

    def wrong(*args, **kwargs):
        result = original(*args, **kwargs)
        result.reshape(-1).view(np.uint32)[0] ^= 1
        return result

    judgement = judge(
        cheating_run(tmp_path / "run", lambda patch: patch.setattr(pinned, function, wrong))
    )
    assert judgement.overall is Overall.FAIL
    assert {step.differences[0].op for step in judgement.steps} == {op}


def test_optimiser_that_errs(tmp_path: Path) -> None:
    """AdamW without its weight decay gives another state, and only that."""
    original = pinned.adamw

    def patches(patch):
        patch.setattr(pinned, "adamw", lambda *a, **k: original(*a[:9], 0.0, **k))

    judgement = judge(cheating_run(tmp_path / "run", patches))
    assert judgement.overall is Overall.FAIL
    expected = {f"step.state_after@{t}": {Verdict.MISMATCH} for t in range(runs.STEPS)}
    assert judgement.faults() == expected
    assert {d.op for step in judgement.steps for d in step.differences} == {"bitwitness::adamw"}


@pytest.mark.parametrize(
    ("declared", "used"),
    [
        ({"profile": "heal"}, {"profile": "bf16"}),
        ({"profile": "heal"}, {"profile": "fp32"}),
        ({"profile": "bf16"}, {"profile": "heal"}),
        ({"profile": "heal", "arch": "hopper"}, {"arch": "ampere"}),
    ],
)
def test_other_arithmetic_than_declared(declared: dict, used: dict, tmp_path: Path) -> None:
    """Cheaper products, or another generation's, than registered are found in the GEMMs."""
    original = emulator_ext.gemm

    def gemm(a, b, **options):
        return original(a, b, **{**options, **used})

    judgement = judge(
        cheating_run(
            tmp_path / "run",
            lambda patch: patch.setattr(emulator_ext, "gemm", gemm),
            numerics=declared,
            train={"steps": 2},
        )
    )
    assert judgement.overall is Overall.FAIL
    assert {d.op for step in judgement.steps for d in step.differences} == {"bitwitness::gemm"}


def test_made_up_operands_with_a_consistent_product(tmp_path: Path) -> None:
    """Operands that nobody computed are found although every product of them is right."""
    name = next(n for n in COMMITTED if op_of(n) == "bitwitness::swiglu")

    def change(step, value, tensor):
        if step != CHEATED_STEP or value.name != name:
            return tensor
        return torch.from_numpy(
            np.random.default_rng(0).standard_normal(tensor.shape).astype(np.float32)
        )

    judgement = judge(cheating_run(tmp_path / "run", tamper_with(change)))
    assert judgement.faults() == {f"step.values@{CHEATED_STEP}": {Verdict.MISMATCH}}
    (difference,) = judgement.step(CHEATED_STEP).differences
    assert (difference.value, difference.op) == (name, "bitwitness::swiglu")
    assert difference.differing > 0.99 * difference.elements


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_value(value: float, tmp_path: Path) -> None:
    """NaN or infinity stops the trainer itself."""

    def change(step, committed, tensor):
        if step == CHEATED_STEP and committed.name == GEMMS[0]:
            tensor = tensor.clone()
            tensor.view(-1)[0] = value
        return tensor

    with pytest.raises(emulator_ext.NonFiniteError):
        cheating_run(tmp_path / "run", tamper_with(change))


def test_negative_zero_is_another_value(tmp_path: Path) -> None:
    """Bits are compared, not numbers: -0 for +0 above a softmax's diagonal is found."""
    name = next(n for n in COMMITTED if op_of(n) == "bitwitness::causal_softmax")

    def change(step, value, tensor):
        if step == CHEATED_STEP and value.name == name:
            tensor = tensor.clone()
            assert tensor[..., 0, 1].view(-1)[0] == 0
            tensor[..., 0, 1] = -0.0
        return tensor

    judgement = judge(cheating_run(tmp_path / "run", tamper_with(change)))
    assert judgement.faults() == {f"step.values@{CHEATED_STEP}": {Verdict.MISMATCH}}
    assert judgement.step(CHEATED_STEP).differences[0].value == name
