"""Attack 25: an honest bit flip, declared in time, and lies that pretend to be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.conftest import CHEATED_STEP, Judgement, cheating_run, judge, tamper_with
from tests.attacks.test_numerics import GEMMS, flip_lowest_bit
from tests.attacks.test_trajectory import resign
from tests.verifier import runs
from trainer.logged import logged_leaves
from transcript.files import write_atomic
from transcript.merkle import leaf_hash
from transcript.model import utc_now
from transcript.run import RunFolder
from transcript.statements import DeclaredFault, sign_statement
from verifier.audit import Audit, AuditOptions
from verifier.files import PROOF_FILE
from verifier.verdict import Overall, Verdict

DECLARED, MISMATCH = {Verdict.DECLARED_FAULT}, {Verdict.MISMATCH}
VALUES = f"step.values@{CHEATED_STEP}"


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run with one wrong bit in one product of each rank's step CHEATED_STEP."""

    def change(step, value, tensor):
        cheat = step == CHEATED_STEP and value.name == GEMMS[3]
        return flip_lowest_bit(tensor, 5) if cheat else tensor

    root = tmp_path_factory.mktemp("flipped") / "run"
    return cheating_run(root, tamper_with(change), train={"steps": 4})


@pytest.fixture
def folder(flipped: Path, tmp_path: Path) -> RunFolder:
    """Copy it."""
    return runs.copy(flipped, tmp_path / "run")


def declaration(folder: RunFolder, step: int = CHEATED_STEP, **changes: object) -> DeclaredFault:
    leaf = logged_leaves(folder)[step]
    fault = DeclaredFault(
        run_id=leaf.run_id, registration=leaf.registration, step=step, rank=0,
        operator="bitwitness::gemm", leaf=leaf_hash(leaf.encode()).hex(),
        detail="executed again, it differs", evidence={}, created=utc_now(),
    )  # fmt: skip
    return fault.model_copy(update=changes)


def declare(folder: RunFolder, *faults: DeclaredFault, listed: bool = True) -> list[str]:
    """Sign declarations and write them; `listed` signs a commitment that lists them."""
    digests = []
    for fault in faults:
        envelope, digest = sign_statement(fault, runs.KEY)
        write_atomic(folder.fault(digest), envelope)
        digests.append(digest)
    if listed:
        resign(folder, faults=tuple(sorted(digests)))
    return digests


def test_a_declared_flip_accuses_nobody(folder: RunFolder, tmp_path: Path) -> None:
    """The differing step is DECLARED_FAULT, the audit INCOMPLETE, and no fraud proof is made."""
    declare(folder, declaration(folder))
    judgement = judge(folder.root)
    assert judgement.faults() == {"faults.declared": DECLARED, VALUES: DECLARED}
    assert judgement.overall is Overall.INCOMPLETE
    assert judgement.step(CHEATED_STEP).differing == 1
    out = tmp_path / "audit"
    with Audit.open(folder.root, AuditOptions(steps=64, threads=1)) as audit:
        audit.conclude(audit.run(), out, runs.KEY)
    assert not (out / PROOF_FILE).exists()
    assert "DECLARED_FAULT" in (out / "report.html").read_text()


def test_a_flip_that_is_not_declared_is_a_lie(folder: RunFolder) -> None:
    """Without a declaration the same run fails."""
    assert judge(folder.root).faults() == {VALUES: MISMATCH}


def test_declaring_after_the_commitment(folder: RunFolder) -> None:
    """A declaration that the commitment does not list was made when the draw was known already."""
    declare(folder, declaration(folder), listed=False)
    judgement = judge(folder.root)
    assert judgement.faults() == {VALUES: MISMATCH}
    assert judgement.overall is Overall.FAIL


def test_committing_again_with_a_declaration(folder: RunFolder) -> None:
    """A commitment signed again to list it is another commitment, and draws other steps."""
    with Audit.open(folder.root, AuditOptions(nonce=bytes(16))) as audit:
        seed = audit.challenge.seed
    declare(folder, declaration(folder))
    with Audit.open(folder.root, AuditOptions(nonce=bytes(16))) as audit:
        assert audit.challenge.seed != seed


@pytest.mark.parametrize("step", [0, 3])
def test_declaring_another_step(folder: RunFolder, step: int) -> None:
    """A declaration excuses its own step and no other."""
    declare(folder, declaration(folder, step))
    judgement = judge(folder.root)
    assert judgement.faults() == {"faults.declared": DECLARED, VALUES: MISMATCH}
    assert judgement.overall is Overall.FAIL


def test_declaring_everything_is_no_pass(honest: Path, tmp_path: Path) -> None:
    """An honest run whose every step is declared faulty, to be safe, is never a PASS."""
    folder = runs.copy(honest, tmp_path / "run")
    declare(folder, *(declaration(folder, step) for step in range(runs.STEPS)))
    judgement = judge(folder.root)
    assert judgement.faults() == {"faults.declared": DECLARED}
    assert judgement.overall is Overall.INCOMPLETE


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"leaf": "ab" * 32}, Verdict.INVALID_COMMITMENT),
        ({"run_id": "other"}, Verdict.INVALID_COMMITMENT),
        ({"registration": "ab" * 32}, Verdict.INVALID_COMMITMENT),
        ({"step": 1}, Verdict.INVALID_COMMITMENT),
        ({"step": 99}, Verdict.NON_RESPONSE),
    ],
    ids=str,
)
def test_a_declaration_of_something_else(
    folder: RunFolder, changes: dict, verdict: Verdict
) -> None:
    """A listed declaration about another run, step or log entry excuses nothing."""
    declare(folder, declaration(folder, step=CHEATED_STEP).model_copy(update=changes))
    assert judge(folder.root).faults() == {"faults.declared": {verdict}, VALUES: MISMATCH}


def test_a_listed_declaration_that_is_missing_or_swapped(folder: RunFolder) -> None:
    """What the commitment lists has to be there, and be what it lists."""
    digest, other = declare(folder, declaration(folder), declaration(folder, 3))
    swapped = folder.fault(other).read_bytes()
    folder.fault(other).unlink()
    assert judge(folder.root).faults()["faults.declared"] == {
        Verdict.NON_RESPONSE, Verdict.DECLARED_FAULT,
    }  # fmt: skip
    folder.fault(digest).write_bytes(swapped)
    resign(folder, faults=(digest,))
    faults = judge(folder.root).faults()
    assert faults == {"faults.declared": {Verdict.INVALID_COMMITMENT}, VALUES: MISMATCH}


def test_a_declaration_does_not_excuse_the_schedule_or_the_store(folder: RunFolder) -> None:
    """Stored bytes with another root are a MISMATCH at a declared step, too."""
    declare(folder, declaration(folder))
    runs.flip(folder.store / "operands/0/c" / str(CHEATED_STEP) / "0", 1000)
    assert judge(folder.root).faults() == {
        "faults.declared": DECLARED,
        f"step.arena@{CHEATED_STEP}": MISMATCH,
    }


def judged_two_ranks(root: Path, wrong: set[int], declared: list[int | None]) -> Judgement:
    """Audit a run of two ranks, some of which were wrong and some of which were declared."""
    seen: dict[int, int] = {}

    def change(step, value, tensor):
        if step == 0 and value.name == GEMMS[3]:
            rank = seen.setdefault(0, 0)
            seen[0] += 1
            return flip_lowest_bit(tensor, 5) if rank in wrong else tensor
        return tensor

    run = cheating_run(root, tamper_with(change), train={"world": 2, "steps": 1})
    folder = RunFolder(run)
    declare(folder, *(declaration(folder, 0, rank=rank) for rank in declared))
    return judge(run)


@pytest.mark.parametrize(
    ("wrong", "declared", "verdict"),
    [
        ({0, 1}, [0], Verdict.MISMATCH),
        ({0, 1}, [0, 1], Verdict.DECLARED_FAULT),
        ({0, 1}, [None], Verdict.DECLARED_FAULT),
    ],
    ids=str,
)
def test_a_declaration_excuses_its_rank(
    tmp_path: Path, wrong: set[int], declared: list, verdict: Verdict
) -> None:
    """A difference of a rank that was not declared still convicts."""
    judgement = judged_two_ranks(tmp_path / "run", wrong, declared)
    assert judgement.faults() == {"faults.declared": DECLARED, "step.values@0": {verdict}}
