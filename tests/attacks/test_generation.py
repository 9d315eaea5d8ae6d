"""Attacks on a generated text: each is carried out against a real generation, and found."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainer.engine
import trainer.generate.prepare
import trainer.generate.run
from cluster.audit import Workers, audit
from cluster.border import Outcome
from cluster.progress import SilentMeter
from cluster.verify import verify_command
from tests.attacks.test_trajectory import resign
from tests.verifier import runs
from tests.verifier.generations import (
    CHEATED,
    PROMPT,
    STEPS,
    TOKENS,
    Report,
    StateChange,
    cheat,
    faults,
    make,
    verify,
)
from trainer.generate import generate
from trainer.graph import GEMM, StepGraph
from transcript.keys import PrivateKey
from transcript.predicates import WeightFile
from transcript.run import TEXT, RunFolder
from verifier.audit import AuditOptions
from verifier.context import open_context
from verifier.errors import ProofFileError
from verifier.files import PROOF_FILE, RESULT_FILE
from verifier.fraud import ProvedFraud, check_proof
from verifier.prove import make_proof
from verifier.verdict import Overall, Verdict

MISMATCH = Verdict.MISMATCH
ALONE = Workers(ray=False)
SHOWN = b"export"


@pytest.fixture(scope="module")
def steered(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raise one logit so that another byte wins; the rest follows from it honestly."""

    def change(graph: StepGraph, value: Any, tensor: Any) -> Any:
        if value.id != products(graph)[-1]:
            return tensor
        lie = tensor.clone()
        lie[0, ord("!")] = 1000
        return lie

    return cheat(honest, tmp_path_factory.mktemp("steered"), sink=change)


def products(graph: StepGraph) -> list[int]:
    """Return the outputs of a step's GEMMs in order; the last are the logits."""
    return [node.outputs[0] for node in graph.nodes if node.op == GEMM]


def spliced(honest: Path, out: Path, at: int, change: StateChange) -> Path:
    """Generate by a trainer that swaps the state before one step, in store and log alike."""
    original = trainer.generate.run._Session.run_step

    def run_step(session: Any, step: int) -> bytes:
        if step == at:
            layout = session._layouts.state
            held = layout.unpack_all(session._engine.packed_state())
            other = {name: array.copy() for name, array in held.items()}
            change(other, step)
            packed = layout.pack(other)
            session._root = session._engine.adopt(packed)
            session._recorder.write_state(step, packed)
        return original(session, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.generate.run._Session, "run_step", run_step)
        return make(honest, out)


def exported(honest: Path, out: Path, text: bytes) -> Report:
    """Judge a generation whose trainer exports that text, and signs that it does."""
    folder = RunFolder(make(honest, out))
    folder.text.write_bytes(text)
    digest = hashlib.sha256(text).hexdigest()
    resign(folder, weights=(WeightFile(path=TEXT, sha256=digest),))
    return verify(folder.root, honest)


def judged(folder: Path, run: Path, out: Path, workers: Workers = ALONE) -> Outcome:
    """Audit every step by the code behind the command line, and write the result to `out`."""
    options = AuditOptions(steps=64, threads=1, run=run)
    return audit(folder, options, out, PrivateKey.generate(), workers, SilentMeter())


def convicted(folder: Path, run: Path, out: Path, workers: Workers = ALONE) -> ProvedFraud:
    """Return what the fraud proof of an audit proves, once `bitwitness verify` accepts it."""
    outcome = judged(folder, run, out, workers)
    assert (outcome.exit_code, outcome.document["verdict"]) == (1, "FAIL")
    checked = verify_command([out / PROOF_FILE], None, None)
    assert checked.exit_code == 0
    proved = check_proof((out / PROOF_FILE).read_bytes(), (runs.KEY.public,))
    assert proved.kind == "generation"
    assert checked.text.startswith(f"Good       fraud-proof of generation {proved.run_id}")
    assert f"element {list(proved.index)} of {proved.value} was committed as" in checked.text
    return proved


def test_an_honest_one_passes(honest: Path, tmp_path: Path) -> None:
    """Nothing is raised, no proof is written, and the signed result verifies."""
    folder, out = make(honest, tmp_path / "g"), tmp_path / "audit"
    outcome = judged(folder, honest, out)
    assert (outcome.exit_code, outcome.document["faults"]) == (0, [])
    assert outcome.document["sampled"] == STEPS
    assert not (out / PROOF_FILE).exists()
    assert verify_command([out / RESULT_FILE], None, folder).exit_code == 0


def test_another_last_token(honest: Path, tmp_path: Path) -> None:
    """A last byte that the model did not choose is in state, log and export, but not in a replay.

    The last step is always drawn, so the smallest audit finds it.
    """

    def change(state: dict[str, Any], step: int) -> None:
        if step == STEPS - 1:
            state["tokens"][0, STEPS] ^= 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.verifier.generations.CHEATED", STEPS - 1)
        folder = cheat(honest, tmp_path / "g", state=change)
    report = verify(folder, honest, steps=2)
    assert faults(report) == ({}, {STEPS - 1: {"step.state_after": MISMATCH}})
    assert report.verdict is Overall.FAIL


EXPORTS: dict[str, Callable[[bytes], bytes]] = {
    "other": lambda text: text[:-1] + bytes([text[-1] ^ 1]),
    "shorter": lambda text: text[:-1],
    "empty": lambda _: b"",
    "longer": lambda text: text + b"!",
}


@pytest.mark.parametrize("change", EXPORTS)
def test_an_export_that_was_not_decided(honest: Path, tmp_path: Path, change: str) -> None:
    """Whatever file the trainer signs: it has to be the final state's tokens, all and no more."""
    text = RunFolder(make(honest, tmp_path / "first")).text.read_bytes()
    assert len(text) == len(PROMPT) + TOKENS
    report = exported(honest, tmp_path / "g", EXPORTS[change](text))
    assert faults(report) == ({"text.final": MISMATCH}, {})
    assert report.verdict is Overall.FAIL


def test_a_cache_swapped_between_steps(honest: Path, tmp_path: Path) -> None:
    """A cache that changes between two steps breaks the chain, though every step replays."""

    def change(state: dict[str, Any], step: int) -> None:
        state["layer0.k"][0, 1, step - 1, 3] ^= 1

    report = verify(spliced(honest, tmp_path / "g", CHEATED, change), honest)
    assert faults(report) == ({"state.chain": MISMATCH}, {})
    chain = next(check for check in report.checks if check.name == "state.chain")
    assert f"first at step {CHEATED}" in chain.detail


def test_a_cache_rewritten_in_the_past(honest: Path, tmp_path: Path) -> None:
    """What an earlier step wrote is not for a later one to change: the prompt can't be edited."""

    def change(state: dict[str, Any], step: int) -> None:
        del step
        state["layer1.v"].numpy()[0, 0, 1, :] = state["layer1.v"].numpy()[0, 0, 2, :]

    report = verify(cheat(honest, tmp_path / "g", state=change, cache="f32"), honest)
    assert faults(report) == ({}, {CHEATED: {"step.state_after": MISMATCH}})
    check = next(check for check in report.steps[CHEATED].checks if not check.ok)
    assert "first in layer1.v[0, 0, 1, 0]" in check.detail


def test_other_weights_than_registered(honest: Path, tmp_path: Path) -> None:
    """Right weights are registered and stored, others are multiplied with: every step shows it."""
    execute = trainer.engine.execute

    def dishonest(graph: StepGraph, *, constants: Any, **rest: Any) -> Any:
        other = {**constants, "layer1.down": constants["layer1.down"] * 2}
        return execute(graph, constants=other, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.engine, "execute", dishonest)
        folder = make(honest, tmp_path / "g")
    report = verify(folder, honest)
    assert faults(report) == ({}, {s: {"step.values": MISMATCH} for s in range(STEPS)})
    proved = convicted(folder, honest, tmp_path / "audit")
    assert (proved.step, proved.rank) == (0, 0)
    graph = open_context(folder).graph
    [weights] = [value.id for value in graph.values if value.name == "layer1.down"]
    [product] = [n for n in graph.nodes if weights in {ref.value for ref in n.refs()}]
    assert proved.value == graph.values[product.outputs[0]].name


def test_another_prompt_is_registered(honest: Path, tmp_path: Path) -> None:
    """A prompt that looks better than the one that was fed is not what the steps began with."""
    write = trainer.generate.prepare.write_dataset

    def shown(folder: Any, tokens: Any, workers: int) -> Any:
        assert tokens.tobytes() == PROMPT
        return write(folder, np.frombuffer(SHOWN, np.uint8), workers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.generate.prepare, "write_dataset", shown)
        folder = make(honest, tmp_path / "g")
    report = verify(folder, honest)
    assert faults(report) == ({"initial_state": MISMATCH}, {})
    assert report.verdict is Overall.FAIL


def test_another_prompt_is_fed(honest: Path, tmp_path: Path) -> None:
    """A registered start that is not the one of step 0 breaks the chain at its first link."""

    def change(state: dict[str, Any], step: int) -> None:
        del step
        state["tokens"][0, : len(SHOWN)] = np.frombuffer(SHOWN, np.uint8)

    report = verify(spliced(honest, tmp_path / "g", 0, change), honest)
    assert faults(report) == ({"state.chain": MISMATCH}, {})
    assert next(c for c in report.checks if c.name == "state.chain").evidence["step"] == "0"


def test_a_prompt_of_another_length(honest: Path, tmp_path: Path) -> None:
    """Bytes of the prompt that the configuration does not count are no prompt."""
    write = trainer.generate.prepare.write_dataset

    def shown(folder: Any, tokens: Any, workers: int) -> Any:
        return write(folder, np.concatenate([tokens, tokens]), workers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.generate.prepare, "write_dataset", shown)
        folder = make(honest, tmp_path / "g")
    report = verify(folder, honest)
    assert faults(report) == ({"initial_state": Verdict.INVALID_COMMITMENT}, {})
    assert report.verdict is Overall.FAIL


def test_a_steered_text(steered: Path, honest: Path) -> None:
    """A raised logit gives another text, and is the one element that no product gives."""
    text = RunFolder(steered).text.read_bytes()
    assert text[CHEATED + 1] == ord("!")
    report = verify(steered, honest)
    assert faults(report) == ({}, {CHEATED: {"step.values": MISMATCH}})
    [difference] = report.steps[CHEATED].differences
    assert (difference.index, difference.differing) == ((0, ord("!")), 1)
    assert difference.committed_bits == "447a0000"


def test_a_steered_text_convicts(steered: Path, honest: Path, tmp_path: Path) -> None:
    """By workers too, the audit leaves a proof that names the logit, and that stands alone."""
    proved = convicted(steered, honest, tmp_path / "audit", Workers(ray=False, count=2))
    assert (proved.step, proved.index) == (CHEATED, (0, ord("!")))
    assert proved.committed_bits == "447a0000"
    page = (tmp_path / "audit" / "report.html").read_text(encoding="ascii")
    assert f"element [0, {ord('!')}]" in page


@pytest.mark.parametrize("profile", ["heal", "bf16", "exact"])
@pytest.mark.parametrize(
    ("number", "index"), [(1, (0, 1, 0, 2)), (2, (0, 18))], ids=["scores", "mixture"]
)
def test_a_false_product_over_the_cache(
    honest: Path, tmp_path: Path, profile: str, number: int, index: tuple[int, ...]
) -> None:
    """With an f32 cache what reads the state after is a GEMM too, and a false one convicts.

    The mixture of all heads is committed as the one matrix that the next product reads.
    """
    run = honest
    if profile != "heal":
        run = runs.train(tmp_path / "run", runs.config(numerics={"profile": profile}))

    def change(graph: StepGraph, value: Any, tensor: Any) -> Any:
        if value.id != products(graph)[number]:
            return tensor
        lie = tensor.clone()
        lie[index] += 1
        return lie

    folder = cheat(run, tmp_path / "g", sink=change, cache="f32")
    proved = convicted(folder, run, tmp_path / "audit")
    assert (proved.step, proved.index, proved.differing) == (CHEATED, index, 1)
    assert b'"state_after"' in (tmp_path / "audit" / PROOF_FILE).read_bytes()


def test_integer_products_are_shown_by_replay(honest: Path, tmp_path: Path) -> None:
    """With an INT16 cache scores are no GEMMs: a false one fails the audit, without a proof."""

    def change(graph: StepGraph, value: Any, tensor: Any) -> Any:
        node = next(n for n in graph.nodes if n.op == "bitwitness::int16_scores")
        return tensor + 1 if value.id == node.outputs[0] else tensor

    folder, out = cheat(honest, tmp_path / "g", sink=change), tmp_path / "audit"
    assert judged(folder, honest, out).document["verdict"] == "FAIL"
    assert not (out / PROOF_FILE).exists()
    [difference] = verify(folder, honest).steps[CHEATED].differences
    with pytest.raises(ProofFileError, match="int16_scores"):
        make_proof(folder, CHEATED, difference)


def test_the_text_of_another_generation(honest: Path, tmp_path: Path) -> None:
    """A log that was signed for one text is none of another's, whatever else is copied."""
    first = RunFolder(make(honest, tmp_path / "first"))
    other = generate(honest, SHOWN, TOKENS, key=runs.KEY, threads=1, out=tmp_path / "other").folder
    for name in ("text", "commitment"):
        path: Path = getattr(first, name)
        path.write_bytes(getattr(RunFolder(other), name).read_bytes())
    whole, _ = faults(verify(first.root, honest))
    assert whole["commitment.registration"] is MISMATCH
    assert whole["text.final"] is MISMATCH
    assert whole["state.final"] is MISMATCH
