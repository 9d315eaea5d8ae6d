"""Attacks 1 to 5: choosing, grinding or escaping the challenge."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.conftest import judge
from tests.verifier import runs
from verifier.audit import Audit, AuditOptions
from verifier.beacon import NO_BEACON, beacon_from_hex
from verifier.verdict import Overall, Verdict


def draw(run: Path, **options) -> list[int]:
    with Audit.open(run, AuditOptions(steps=4, threads=1, **options)) as audit:
        return audit.samples()


def test_draw_depends_on_nonce_and_beacon_and_not_on_the_run_alone(honest: Path) -> None:
    """Whoever grinds the commitment faces a nonce and a beacon that it cannot know."""
    nonces = {tuple(draw(honest, nonce=bytes([i]) * 32)) for i in range(24)}
    fixed = b"\x07" * 32
    beacons = {
        tuple(draw(honest, nonce=fixed, beacon=beacon_from_hex(f"{i:04x}"))) for i in range(24)
    }
    assert len(nonces) > 3
    assert len(beacons) > 3
    assert draw(honest, nonce=fixed) == draw(honest, nonce=fixed)


def test_first_and_last_step_are_always_drawn(honest: Path) -> None:
    """No draw spares the ends of a run."""
    for i in range(16):
        samples = draw(honest, nonce=bytes([i]) * 8)
        assert samples[0] == 0
        assert samples[-1] == runs.STEPS - 1
        assert len(set(samples)) == 4


def test_audit_without_a_beacon_says_so(honest: Path, tmp_path: Path) -> None:
    """A draw that rests on the auditor's nonce alone is named as such in the signed result."""
    with Audit.open(honest, AuditOptions(steps=2, threads=1, beacon=NO_BEACON)) as audit:
        path = audit.conclude(audit.run(), tmp_path, runs.KEY)
    page = path.with_name("report.html").read_text()
    assert "There was no public beacon" in page


def test_withholding_one_drawn_step_is_no_pass(copied) -> None:
    """Answering only the good samples is a missing answer."""
    (copied.store / "operands" / "0" / "c" / "3" / "0").unlink()
    judgement = judge(copied.root)
    assert judgement.faults() == {"step.arena@3": {Verdict.NON_RESPONSE}}
    assert judgement.overall is Overall.INCOMPLETE
