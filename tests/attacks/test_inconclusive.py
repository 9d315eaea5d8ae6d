"""Attack 24: driving a replay out of the recorded numerics, so that nothing can be proved."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import emulator_ext
import trainer.engine
import trainer.prepare
from emulator_ext.architecture_file import (
    ProbedArchitecture,
    ProbedInstruction,
    write_architecture,
)
from tests.attacks.conftest import CHEATED_STEP, cheating_run, judge, tamper_with
from tests.attacks.test_numerics import COMMITTED, GEMMS, flip_lowest_bit, op_of
from tests.verifier import runs
from trainer.config import NumericsConfig
from trainer.executor import execute
from trainer.trace import derive_graph
from verifier.compare import Comparer
from verifier.element_evidence import ElementEvidence
from verifier.evidence import table_row
from verifier.plausible import allowance
from verifier.step_report import MAX_DIFFERENCES
from verifier.verdict import Overall, Verdict

MISMATCH, INCONCLUSIVE = {Verdict.MISMATCH}, {Verdict.INCONCLUSIVE}
TURING = {"numerics": {"arch": "turing"}, "train": {"steps": CHEATED_STEP + 1}}
VALUES, NUMERICS = f"step.values@{CHEATED_STEP}", f"step.numerics@{CHEATED_STEP}"


def test_a_small_difference_on_a_modelled_architecture_accuses_nobody(tmp_path: Path) -> None:
    """The hardware may add in another way than the published model."""

    def change(step, value, tensor):
        hit = step == CHEATED_STEP and value.name == GEMMS[1]
        return flip_lowest_bit(tensor, 5) if hit else tensor

    judgement = judge(cheating_run(tmp_path / "run", tamper_with(change), **TURING))
    assert judgement.faults() == {VALUES: INCONCLUSIVE}
    assert judgement.overall is Overall.INCOMPLETE


@pytest.mark.parametrize("lie", [lambda x: x * 1.25, torch.zeros_like, lambda x: -x], ids=str)
def test_a_lie_on_a_modelled_architecture(lie, tmp_path: Path) -> None:
    """Whoever registers an architecture that is only modelled is not free to commit anything."""

    def change(step, value, tensor):
        hit = step == CHEATED_STEP and value.name == GEMMS[1]
        return lie(tensor) if hit else tensor

    judgement = judge(cheating_run(tmp_path / "run", tamper_with(change), **TURING))
    assert judgement.faults() == {VALUES: INCONCLUSIVE, NUMERICS: MISMATCH}
    assert judgement.overall is Overall.FAIL
    (difference,) = judgement.step(CHEATED_STEP).differences
    assert (difference.value, difference.evidence) == (GEMMS[1], "implausible")


def test_hiding_one_false_element_among_differences_of_the_last_bit(tmp_path: Path) -> None:
    """The elements that differ most are looked at, wherever they lie."""

    def change(step, value, tensor):
        if step == CHEATED_STEP and value.name == GEMMS[1]:
            tensor = tensor.clone()
            tensor.view(torch.int32).bitwise_xor_(1)
            tensor.view(-1)[777 % tensor.numel()] += 10
        return tensor

    judgement = judge(cheating_run(tmp_path / "run", tamper_with(change), **TURING))
    assert judgement.faults() == {VALUES: INCONCLUSIVE, NUMERICS: MISMATCH}
    (difference,) = judgement.step(CHEATED_STEP).differences
    assert difference.index != (0,) * len(difference.index)


def test_hiding_a_wrong_norm_behind_products(tmp_path: Path) -> None:
    """However many products differ inconclusively before it, what IEEE 754 fixes is judged."""
    norm = [name for name in COMMITTED if op_of(name) == "bitwitness::rmsnorm_backward"][-1]

    def change(step, value, tensor):
        hit = step == CHEATED_STEP and value.name in {*GEMMS, norm}
        return flip_lowest_bit(tensor, 5) if hit else tensor

    judgement = judge(cheating_run(tmp_path / "run", tamper_with(change), **TURING))
    report = judgement.step(CHEATED_STEP)
    assert len(GEMMS) > MAX_DIFFERENCES
    assert judgement.faults() == {VALUES: MISMATCH}
    assert [d.value for d in report.differences if d.evidence == "exact"] == [norm]


@pytest.mark.parametrize("wrong", ["last bit", "gross"])
def test_a_false_element_beside_one_at_the_floor(wrong: str) -> None:
    """In bf16 an element of tiny products may differ; its neighbours may not, nor itself by much.

    The first differing element of a value does not speak for the others.
    """
    config = runs.config(numerics={"profile": "bf16"})
    graph = derive_graph(config)
    node = next(n for n in graph.nodes if n.op == "bitwitness::gemm" and len(graph.values[
        n.outputs[0]].shape) == 2)  # fmt: skip
    left, right = (graph.values[ref.value] for ref in list(node.refs())[:2])
    output = graph.values[node.outputs[0]]
    rng = np.random.default_rng(0)
    a = rng.standard_normal(left.shape, np.float32)
    a[0] *= np.float32(2.0**-70)
    b = rng.standard_normal(right.shape, np.float32)
    b[:, :] *= np.float32(2.0**-66)
    arena = np.zeros(graph.arena.bytes, np.uint8)
    graph.arena.pack_into(arena, left.name, a)
    ref = list(node.refs())[1]
    view = np.lib.stride_tricks.as_strided(b, ref.shape, [4 * s for s in ref.stride])
    right_product = emulator_ext.gemm(a, view, profile="bf16", arch="hopper")
    committed = right_product.copy()
    committed.view(np.uint32)[0, 0] ^= 1
    if wrong == "gross":
        committed[0, 1] = 1.0
    else:
        committed.view(np.uint32)[3, 3] ^= 1
    evidence = ElementEvidence(graph, config.numerics, arena, {right.name: torch.from_numpy(b)})
    comparer = Comparer(graph, arena, 0, evidence, evidence.plausible)
    comparer.note(output, committed, right_product)
    (difference,) = comparer.differences
    assert (difference.index, difference.evidence) == (
        ((0, 1), "implausible") if wrong == "gross" else ((3, 3), "recorded")
    )
    alone = Comparer(graph, arena, 0, evidence, evidence.plausible)
    committed = right_product.copy()
    committed.view(np.uint32)[0, 0] ^= 1
    alone.note(output, committed, right_product)
    assert alone.differences[0].evidence == "modelled"


def test_an_instruction_that_does_not_exist(tmp_path: Path) -> None:
    """Volta has no bf16: an honest trainer cannot run it, so to register it is no claim at all."""
    original = emulator_ext.gemm
    sections = {"numerics": {"arch": "volta", "profile": "bf16"}, "train": {"steps": 2}}

    def gemm(a, b, **options):
        return original(a, b, **{**options, "arch": "hopper"})

    with pytest.raises(emulator_ext.UnsupportedError):
        runs.train(tmp_path / "honest", runs.config(**sections))
    run = cheating_run(
        tmp_path / "run", lambda patch: patch.setattr(emulator_ext, "gemm", gemm), **sections
    )
    judgement = judge(run)
    assert judgement.faults()["numerics.evidence"] == {Verdict.INVALID_COMMITMENT}
    assert judgement.overall is Overall.FAIL


def test_data_that_no_operator_takes(tmp_path: Path) -> None:
    """Tokens outside the vocabulary stop an honest trainer, so they convict, and do not confuse."""
    model = {"vocab": 64}

    def patches(patch: pytest.MonkeyPatch) -> None:
        def clipped(graph, **inputs):
            batch = {name: tensor % 64 for name, tensor in inputs["batch"].items()}
            return execute(graph, **{**inputs, "batch": batch})

        patch.setattr(trainer.engine, "execute", clipped)

    with pytest.raises(emulator_ext.OperandError):
        runs.train(tmp_path / "honest", runs.config(model=model, train={"steps": 1}))
    run = cheating_run(tmp_path / "run", patches, model=model, train={"steps": 2})
    judgement = judge(run)
    assert {f"step.finite@{t}" for t in range(2)} <= judgement.faults().keys()
    assert judgement.faults()["step.finite@0"] == MISMATCH
    assert judgement.overall is Overall.FAIL


def machine(folder: Path, dtype: str, F: int, L: int, e_zero: int | None) -> str:
    """Let a tensor core exist that adds otherwise; return its name."""
    zero = "inert" if e_zero is None else f"m{-e_zero}"
    name = f"t_{dtype}_{F}_{L}_{zero}"
    path = folder / f"{name}.yaml"
    if not path.exists():
        row = ProbedInstruction(
            instruction="mma", operands=dtype, accumulator="f32", k=16, engine="chain", F=F, L=L,
            e_zero=e_zero, rounding="rz_f32", checks=1, seed=1,
        )  # fmt: skip
        architecture = ProbedArchitecture(
            name=name, device="made up", date=dt.date(2026, 1, 1).isoformat(), instructions=(row,)
        )
        write_architecture(path, architecture)
    return emulator_ext.load_architecture(path)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


def operands(seed: int, spread: int, low: int) -> tuple[np.ndarray, np.ndarray]:
    """Return f32 [8, 96] and [96, 8] of `spread` binades from 2^low, many pairs cancelling."""
    rng = np.random.default_rng(seed)

    def draw() -> np.ndarray:
        x = rng.standard_normal((8, 96)) * np.exp2(rng.integers(low, low + spread, (8, 96)))
        x[:, 1::2] = np.where(rng.random((8, 48)) < 0.3, -x[:, ::2], x[:, 1::2])
        return np.where(rng.random((8, 96)) < 0.1, 0, x).astype(np.float32)

    return draw(), np.ascontiguousarray(draw().T)


def require_within(a: np.ndarray, b: np.ndarray, config: NumericsConfig, other: str) -> None:
    row = table_row(config)
    assert row is not None
    model, hardware = (
        emulator_ext.gemm(a, b, profile=config.profile, arch=arch).astype(np.float64)
        for arch in (config.arch, other)
    )
    allowed = np.array([[allowance(x, y, config.profile, row) for y in b.T] for x in a])
    assert (np.abs(model - hardware) <= allowed).all()


laws = settings(deadline=None, max_examples=40)


@laws
@given(
    seed=st.integers(0, 1 << 30), spread=st.integers(1, 30), low=st.integers(-40, 10),
    F=st.integers(20, 25), L=st.sampled_from([4, 8, 16]),
)  # fmt: skip
def test_no_tensor_core_leaves_what_a_modelled_row_allows(
    machines: Path, seed: int, spread: int, low: int, F: int, L: int
) -> None:
    """Hardware that keeps other bits, or adds other groups, than the model is never accused."""
    a, b = operands(seed, spread, low)
    config = NumericsConfig(arch="turing", profile="heal")
    require_within(a, b, config, machine(machines, "f16", F, L, None))


@laws
@given(
    seed=st.integers(0, 1 << 30), spread=st.integers(1, 80), low=st.integers(-126, -50),
    e_zero=st.sampled_from([-200, -150, -134, -132, -126]),
)  # fmt: skip
def test_no_floor_leaves_what_a_recorded_row_allows(
    machines: Path, seed: int, spread: int, low: int, e_zero: int | None
) -> None:
    """Hardware with another floor than e_zero is never accused, whatever lies beside tiny sums."""
    a, b = operands(seed, spread, low)
    config = NumericsConfig(arch="hopper", profile="bf16")
    require_within(a, b, config, machine(machines, "bf16", 25, 16, e_zero))


def test_the_allowance_is_small() -> None:
    """A change of a hundredth of a typical element is found on any row."""
    a, b = (x * np.float32(1) for x in operands(1, 2, 0))
    for config in (
        NumericsConfig(arch="turing", profile="heal"),
        NumericsConfig(arch="hopper", profile="bf16"),
    ):
        row = table_row(config)
        assert row is not None
        product = emulator_ext.gemm(a, b, profile=config.profile, arch=config.arch)
        allowed = [[allowance(x, y, config.profile, row) for y in b.T] for x in a]
        assert np.median(allowed) < (0.05 if row.evidence == "modelled" else 0.002) * np.median(
            np.abs(product)
        )
