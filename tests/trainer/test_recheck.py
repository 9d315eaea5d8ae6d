"""A rank's re-check of its own steps: what it looks at, what it finds, and what then happens."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import emulator_ext
from emulator_ext.paths import paths
from tests.runs import train_run
from tests.verifier import runs
from trainer.config import RunConfig
from trainer.engine import EmulatedEngine, Snapshot
from trainer.errors import SilentFaultError
from trainer.graph import Value
from trainer.prepare import prepare_run
from trainer.rank import RankTrainer
from trainer.recheck import EDGE, Recheck, _output_positions
from trainer.recorder import Recorder
from transcript.keys import PrivateKey
from transcript.run import RunFolder

KEY = PrivateKey.generate()
STEP = 1


def config(**sections: dict) -> RunConfig:
    return runs.config(**{**sections, "train": {"steps": 3, **sections.get("train", {})}})


def recheck(run: RunConfig, rank: RankTrainer, products: int) -> Recheck:
    """Make a re-check that looks at more than the run's own."""
    return Recheck(rank.graph, run.numerics, products=products, run_id="demo", rank=0)


def executed(root: Path, run: RunConfig) -> tuple[RankTrainer, EmulatedEngine, Snapshot]:
    """Execute one step; return the engine, its arena still filled, and the state before."""
    folder = RunFolder(root)
    prepare_run(run, folder, KEY, threads=1)
    rank = RankTrainer(run, folder, threads=1)
    engine = rank._engine
    snapshot = engine.snapshot()
    rank._write = lambda *_: None  # the buffer stays where it is
    rank.run_step()
    return rank, engine, snapshot


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"numerics": {"profile": "bf16", "arch": "ampere"}},
        {"numerics": {"profile": "exact"}},
        {"numerics": {"profile": "fp32"}},
        {"model": {"attention": "int16"}},
        {"model": {"width": 68, "hidden": 72, "context": 33, "layers": 1}, "train": {"batch": 3}},
    ],
    ids=str,
)
def test_an_honest_step_has_no_wrong_block(sections: dict, tmp_path: Path) -> None:
    """Blocks of all products, edges, views and heads included, are what the arena holds."""
    run = config(**sections)
    rank, engine, snapshot = executed(tmp_path, run)
    check = recheck(run, rank, 400)
    assert check.first_wrong(0, engine.arena(), snapshot.tensors) is None
    drawn = {block.node for block in check.draw(0)}
    assert drawn == {i for i, node in enumerate(rank.graph.nodes) if "gemm" in node.op}


def test_any_flipped_bit_of_a_drawn_block_is_found(tmp_path: Path) -> None:
    """Whichever element of a drawn block has another bit, it is named, with both patterns."""
    run = config()
    rank, engine, snapshot = executed(tmp_path, run)
    check = recheck(run, rank, 1)
    rng = np.random.default_rng(0)
    layout = rank.graph.arena
    for step in range(12):
        (block,) = check.draw(step)
        output = rank.graph.values[rank.graph.nodes[block.node].outputs[0]]
        positions = _output_positions(output.shape, block).ravel()
        chosen = int(rng.choice(positions))
        arena = engine.arena().clone()
        values = layout.unpack(arena.numpy(), output.name)
        values.reshape(-1).view(np.uint32)[chosen] ^= 1 << int(rng.integers(32))
        layout.pack_into(arena.numpy(), output.name, values)
        wrong = check.first_wrong(step, arena, snapshot.tensors)
        assert wrong is not None
        assert (wrong.value, wrong.operator) == (output.name, "bitwitness::gemm")
        assert np.ravel_multi_index(wrong.index, output.shape) == chosen
        difference = int(wrong.arena_bits, 16) ^ int(wrong.recomputed_bits, 16)
        assert difference.bit_count() == 1


def test_an_operand_that_became_infinite_is_found(tmp_path: Path) -> None:
    """A flip that makes an operand infinite is a wrong block, not an error of the training."""
    run = config()
    rank, engine, snapshot = executed(tmp_path, run)
    arena = engine.arena().clone()
    operand = rank.graph.arena.entries[0].name  # operands come first
    values = rank.graph.arena.unpack(arena.numpy(), operand)
    values[:] = np.inf
    rank.graph.arena.pack_into(arena.numpy(), operand, values)
    wrong = recheck(run, rank, 200).first_wrong(0, arena, snapshot.tensors)
    assert wrong is not None
    assert wrong.recomputed_bits == "7fc00000"


def test_the_draw_covers_every_block_and_depends_on_run_step_and_rank(tmp_path: Path) -> None:
    """Nothing else moves it, so a step that is executed again is looked at in the same places."""
    run = config()
    graph = executed(tmp_path, run)[0].graph

    def draw(products: int = 64, run_id: str = "demo", rank: int = 0, step: int = 0) -> list:
        check = Recheck(graph, run.numerics, products=products, run_id=run_id, rank=rank)
        return check.draw(step)

    assert draw() == draw() == draw(128)[:64]
    assert (
        len({str(draw(**other)) for other in ({}, {"run_id": "x"}, {"rank": 1}, {"step": 1})}) == 4
    )
    counts = Counter(str(block) for block in draw(20_000))
    shapes = [graph.values[n.outputs[0]].shape for n in graph.nodes if "gemm" in n.op]
    blocks = sum(
        int(np.prod(s[:-2], dtype=int)) * -(-s[-2] // EDGE) * -(-s[-1] // EDGE) for s in shapes
    )
    assert len(counts) == blocks
    assert max(counts.values()) < 3 * 20_000 / blocks
    assert draw(0) == []


@pytest.mark.skipif(len(paths()) < 2, reason="this processor has one code path")
def test_blocks_are_computed_by_another_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The re-check runs another code path of the emulator than the step did."""
    taken = []
    original = emulator_ext.gemm

    def gemm(a: np.ndarray, b: np.ndarray, **options: object) -> np.ndarray:
        taken.append(options.get("path") or paths()[-1])
        return original(a, b, **options)

    run = config()
    rank, engine, snapshot = executed(tmp_path, run)
    monkeypatch.setattr(emulator_ext, "gemm", gemm)
    recheck(run, rank, 3).first_wrong(0, engine.arena(), snapshot.tensors)
    assert taken == ["scalar"] * 3


def corrupt(times: int) -> Callable[[pytest.MonkeyPatch, RankTrainer], None]:
    """Flip a bit of a product's output in the re-checked block of step STEP, so many times."""
    left = [times]

    def install(patch: pytest.MonkeyPatch, rank: RankTrainer) -> None:
        (block, *_) = rank._recheck.draw(STEP)
        output = rank.graph.values[rank.graph.nodes[block.node].outputs[0]]
        position = int(_output_positions(output.shape, block).ravel()[0])
        original = Recorder.sink

        def sink(self: Recorder, value: Value, tensor: torch.Tensor) -> torch.Tensor:
            if rank.step == STEP and value.name == output.name and left[0]:
                left[0] -= 1
                tensor = tensor.clone()
                tensor.view(torch.int32).view(-1)[position] ^= 1
            return original(self, value, tensor)

        patch.setattr(Recorder, "sink", sink)

    return install


class Flipping(RankTrainer):
    """A rank on a machine that computes wrongly, so many times."""

    times = 1

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.patch = pytest.MonkeyPatch()
        corrupt(self.times)(self.patch, self)


class Broken(Flipping):
    """The same machine, always."""

    times = 1 << 20


@pytest.fixture
def undo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what `corrupt` patched when the test ends."""
    monkeypatch.setattr(Recorder, "sink", Recorder.sink)


@pytest.mark.usefixtures("undo")
def test_a_flip_that_passes_leaves_an_honest_run(tmp_path: Path) -> None:
    """The step is executed again; the run has the roots of an undisturbed one, and says so."""
    honest = train_run(config(), tmp_path / "honest", KEY)
    steps = train_run(config(), tmp_path / "run", KEY, trainer=Flipping)
    for name in ("state_before", "state_after", "arena", "metrics"):
        assert [getattr(s, name) for s in steps] == [getattr(s, name) for s in honest]
    assert [bool(step.fault) for step in steps] == [t == STEP for t in range(len(steps))]
    assert f"step {STEP}, rank 0: element [" in steps[STEP].fault
    assert "executed again and is right now" in steps[STEP].fault
    assert all(step.recheck_seconds > 0 for step in steps)


@pytest.mark.usefixtures("undo")
def test_a_flip_that_stays_ends_the_run_before_it_is_committed(tmp_path: Path) -> None:
    """The error names operator, element and both patterns; the wrong step is not in the log."""
    with pytest.raises(SilentFaultError, match="also when it was executed again") as caught:
        train_run(config(), tmp_path / "run", KEY, trainer=Broken)
    assert caught.value.code == "E_SILENT_FAULT"
    assert caught.value.step == STEP
    evidence = caught.value.evidence
    assert evidence["operator"] == "bitwitness::gemm"
    bits = [int(evidence[name], 16) for name in ("arena_bits", "recomputed_bits")]
    assert bits[0] ^ bits[1] == 1
    assert len(RunFolder(tmp_path / "run").leaves.read_bytes().splitlines()) == STEP
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # our own bytes
    assert (str(again), again.step, again.evidence) == (str(caught.value), STEP, evidence)


@pytest.mark.usefixtures("undo")
def test_a_rank_among_others_does_not_put_it_right_alone(tmp_path: Path) -> None:
    """Others have summed the wrong product by then: the rank says so after one execution."""
    run = config(train={"world": 2})
    folder = RunFolder(tmp_path)
    prepare_run(run, folder, KEY, threads=1)
    rank = Flipping(run, folder, threads=1)
    alone = runs.Exchange(1)
    alone.run_step(rank)
    with pytest.raises(SilentFaultError, match="other ranks have used it"):
        alone.run_step(rank)
    assert rank.step == STEP


def test_without_products_nothing_is_computed_twice(tmp_path: Path) -> None:
    """`products: 0` turns the re-check off; what is committed is the same."""
    off = train_run(config(recheck={"products": 0}), tmp_path / "off", KEY)
    on = train_run(config(), tmp_path / "on", KEY)
    assert [step.arena for step in off] == [step.arena for step in on]
