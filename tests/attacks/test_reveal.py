"""Runs that record on challenge: answering, answering something else, and not answering."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.attacks.conftest import CHEATED_STEP, cheating_run
from tests.verifier import runs
from trainer.errors import ConfigError
from trainer.recorder import Recorder
from trainer.reveal import STORE, reveal
from transcript.run import RunFolder
from transcript.store import RunStore
from verifier.audit import Audit, AuditOptions
from verifier.challenge_file import answer_folder, load_request
from verifier.errors import OptionError
from verifier.verdict import Overall, Verdict
from verifier.verify import verify_file

ON_CHALLENGE = {"record": {"policy": "on_challenge", "keep_state": 4}}
NONCE = b"\x05" * 32
NON_RESPONSE = Verdict.NON_RESPONSE


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Train an honest run that keeps roots and every fourth state; not to be changed."""
    return runs.train(tmp_path_factory.mktemp("sparse") / "run", runs.config(**ON_CHALLENGE))


def options(revealed: Path | None = None, nonce: bytes = NONCE, steps: int = 4) -> AuditOptions:
    return AuditOptions(steps=steps, threads=1, nonce=nonce, revealed=revealed)


def drawn(run: Path, nonce: bytes = NONCE) -> list[int]:
    with Audit.open(run, options(nonce=nonce)) as audit:
        return audit.samples()


@pytest.fixture(scope="module")
def answer(run, tmp_path_factory) -> Path:
    """Reveal what NONCE draws; not to be changed."""
    out = tmp_path_factory.mktemp("answer") / "revealed"
    return reveal(RunFolder(run), drawn(run), out, threads=1).folder


def verdicts(
    run: Path,
    revealed: Path | None,
    nonce: bytes = NONCE,
    out: Path | None = None,
    steps: int = 4,
):
    """Audit; return the overall verdict and the faults by name."""
    with Audit.open(run, options(revealed, nonce, steps)) as audit:
        reports = audit.run()
        checks = [(c.name, c) for c in audit.structure()]
        checks += [(f"{c.name}@{r.step}", c) for r in reports for c in r.checks]
        if out is not None:
            audit.conclude(reports, out, runs.KEY)
    faults = {name: check.verdict for name, check in checks if not check.ok}
    failed = {Verdict.MISMATCH, Verdict.INVALID_COMMITMENT} & {*faults.values()}
    overall = Overall.FAIL if failed else Overall.INCOMPLETE if faults else Overall.PASS
    return overall, faults


def test_a_run_keeps_roots_and_states_only(run: Path) -> None:
    """No arena of any step is stored, and the state before each fourth, and the last."""
    store = run / "store.zarr"
    assert not (store / "operands" / "0").exists()
    assert sorted(p.name for p in (store / "state" / "c").iterdir()) == ["0", "1", "2"]


def test_an_honest_answer_passes(run: Path, answer: Path, tmp_path: Path) -> None:
    """Every step can be drawn; revealed, each matches what the log has bound all along."""
    assert verdicts(run, answer, out=tmp_path / "audit") == (Overall.PASS, {})
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "did not record" not in page


def test_several_ranks_answer_together(tmp_path: Path) -> None:
    """A run of several ranks is revealed with the same sums, on every rank."""
    config = runs.config(train={"world": 2, "steps": 3}, **ON_CHALLENGE)
    run = runs.train(tmp_path / "run", config)
    answer = reveal(RunFolder(run), drawn(run), tmp_path / "out", threads=1)
    assert verdicts(run, answer.folder) == (Overall.PASS, {})


def test_an_unanswered_challenge_is_incomplete(run: Path, tmp_path: Path) -> None:
    """Nothing revealed: one NON_RESPONSE for each step drawn, no PASS, and the request."""
    overall, faults = verdicts(run, None, out=tmp_path)
    assert overall is Overall.INCOMPLETE
    assert {*faults.values()} == {Verdict.NON_RESPONSE}
    assert [*faults] == [f"step.response@{step}" for step in drawn(run)]
    request = load_request(tmp_path / "challenge.json")
    assert [*request.steps] == drawn(run)
    assert request.nonce == NONCE.hex()
    assert verify_file(tmp_path / "audit-result.dsse.json").facts["verdict"] == "INCOMPLETE"


def test_answering_only_the_good_samples(run: Path, tmp_path: Path) -> None:
    """A step that is left out is a missing answer, however good the others are."""
    steps = drawn(run)
    left_out = steps.pop(1)
    answer = reveal(RunFolder(run), steps, tmp_path / "some", threads=1).folder
    overall, faults = verdicts(run, answer)
    assert overall is Overall.INCOMPLETE
    assert faults == {f"step.state_before@{left_out}": Verdict.NON_RESPONSE}


def test_losing_a_chunk_of_an_answer(run: Path, answer: Path, tmp_path: Path) -> None:
    """An arena that is missing from the answer is a missing answer, too."""
    shutil.copytree(answer, tmp_path / "out")
    (tmp_path / "out" / STORE / "operands" / "0" / "c" / "1" / "0").unlink()
    overall, faults = verdicts(run, tmp_path / "out")
    assert overall is Overall.INCOMPLETE
    assert faults == {f"step.arena@{drawn(run)[1]}": Verdict.NON_RESPONSE}


@pytest.mark.parametrize("part", ["state", "operands/0"])
def test_revealing_another_step(run: Path, answer: Path, tmp_path: Path, part: str) -> None:
    """Another step's state or arena in a step's place has another root than was committed."""
    shutil.copytree(answer, tmp_path / "out")
    chunks = tmp_path / "out" / STORE / part / "c"
    shutil.copy(chunks / "2" / "0", chunks / "1" / "0")
    overall, faults = verdicts(run, tmp_path / "out")
    name = "step.state_before" if part == "state" else "step.arena"
    assert overall is Overall.FAIL
    assert faults == {f"{name}@{drawn(run)[1]}": Verdict.MISMATCH}


def test_a_stale_answer_does_no_harm(run: Path, answer: Path) -> None:
    """An answer to another challenge answers the steps that both drew, and no others."""
    other = next(bytes([i]) * 32 for i in range(64) if drawn(run, bytes([i]) * 32) != drawn(run))
    overall, faults = verdicts(run, answer, nonce=other)
    assert overall is Overall.INCOMPLETE
    unanswered = {*drawn(run, other)} - {*drawn(run)}
    assert faults == dict.fromkeys(
        (f"step.state_before@{step}" for step in unanswered), Verdict.NON_RESPONSE
    )


def test_an_answer_is_found_by_its_seed(run: Path, answer: Path, tmp_path: Path) -> None:
    """In the run's own folder only the answer to this very challenge is taken, behind no link."""
    own = runs.copy(run, tmp_path / "run")
    with Audit.open(own.root, options()) as audit:
        place = answer_folder(own.root, audit.challenge.seed)
        assert audit.open_challenge
    shutil.copytree(answer, place)
    assert verdicts(own.root, None) == (Overall.PASS, {})
    with Audit.open(own.root, options(nonce=b"\x06" * 32)) as audit:
        assert audit.open_challenge
    shutil.rmtree(place)
    place.symlink_to(answer)
    with Audit.open(own.root, options()) as audit:
        assert audit.open_challenge


def test_a_hostile_answer_is_not_decoded(run: Path, answer: Path, tmp_path: Path) -> None:
    """The answer's documents are compared with what the layouts demand, like the run's."""
    shutil.copytree(answer, tmp_path / "out")
    document = tmp_path / "out" / STORE / "operands" / "0" / "zarr.json"
    document.write_text(document.read_text().replace("uint8", "object"))
    overall, faults = verdicts(run, tmp_path / "out")
    assert overall is Overall.FAIL
    assert {*faults.values()} == {Verdict.INVALID_COMMITMENT}


def false_product(patch: pytest.MonkeyPatch) -> None:
    """Patch the recorder: one element of one product is false in the step that is cheated at."""
    original, seen = Recorder.sink, []

    def sink(self, value, tensor):
        if value.name == "0007.gemm":
            seen.append(value)
            if len(seen) == CHEATED_STEP + 1:
                tensor = tensor.clone()
                tensor.view(-1)[7] = tensor.view(-1)[7].nextafter(tensor.new_tensor(9.0))
        return original(self, value, tensor)

    patch.setattr(Recorder, "sink", sink)


def test_a_false_step_cannot_be_revealed(tmp_path: Path) -> None:
    """Who committed a false product is caught by the honest re-execution, or by the replay."""
    run = cheating_run(tmp_path / "run", false_product, **ON_CHALLENGE, recheck={"products": 0})
    honest = reveal(RunFolder(run), [*range(6)], tmp_path / "honest", threads=1)
    assert (honest.steps, [*honest.withheld]) == ((0, 1, 4, 5), [CHEATED_STEP, 3])
    why = f"step {CHEATED_STEP}: the arena of rank 0 was committed as"
    assert all(reason.startswith(why) for reason in honest.withheld.values())
    overall, faults = verdicts(run, honest.folder, steps=64)
    assert overall is Overall.INCOMPLETE
    assert faults == {
        f"step.arena@{CHEATED_STEP}": NON_RESPONSE,
        "step.state_before@3": NON_RESPONSE,
    }

    with pytest.MonkeyPatch.context() as patch:
        false_product(patch)
        reveal(RunFolder(run), [CHEATED_STEP], tmp_path / "lie", threads=1)
    with Audit.open(run, options(tmp_path / "lie", steps=64)) as audit:
        reports = {report.step: report for report in audit.run()}
        audit.conclude(reports.values(), tmp_path / "audit", runs.KEY)
    faults = {c.name: c.verdict for c in reports[CHEATED_STEP].checks if not c.ok}
    assert faults == {"step.values": Verdict.MISMATCH}
    assert verify_file(tmp_path / "audit" / "fraud-proof.json").kind == "fraud-proof"


def test_a_kept_state_that_is_not_the_committed_one(run: Path, answer: Path, tmp_path) -> None:
    """A changed state is found before anything is executed from it."""
    own = runs.copy(run, tmp_path / "run")
    state = own.store / "state" / "c"
    shutil.copy(state / "2" / "0", state / "1" / "0")
    found = reveal(own, [3, 5], tmp_path / "out", threads=1)
    assert (found.steps, [*found.withheld], found.executed) == ((3,), [5], 4)
    assert found.withheld[5].startswith("step 4: the state before was committed as")


def test_what_is_no_question(run: Path, tmp_path: Path) -> None:
    """Steps that the run does not have, runs that recorded, and answers to them are refused."""
    with pytest.raises(ConfigError, match="has steps 0 to 5 only"):
        reveal(RunFolder(run), [6], tmp_path / "out")
    with pytest.raises(OptionError, match="no such folder of revealed steps"):
        Audit.open(run, options(tmp_path / "absent"))


def test_runs_that_recorded_reveal_nothing(honest: Path, answer: Path, tmp_path: Path) -> None:
    """A run that kept its arenas is replayed on these and nothing else."""
    with pytest.raises(ConfigError, match="records all: nothing to reveal"):
        reveal(RunFolder(honest), [0], tmp_path / "out")
    with pytest.raises(OptionError, match="nothing to be revealed"):
        Audit.open(honest, options(answer))


def test_the_answer_opens_like_a_store(run: Path, answer: Path) -> None:
    """An answer holds the drawn steps, with the state before each, in the store's own format."""
    with Audit.open(run, options()) as audit:
        store = RunStore.open(answer / STORE, audit.context.layouts)
    assert [*store.recorded] == [*store.states] == drawn(run)
