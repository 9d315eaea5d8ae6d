"""Report data made by hand, of any size and outcome, for tests of the page."""

import struct
from decimal import Decimal

from verifier import bounds
from verifier.report_data import FORMAT, Draw, ReportData, RunFacts, Signature
from verifier.step_report import Difference, StepReport
from verifier.verdict import Check, Verdict, match, overall

HASH = "0123456789abcdef" * 4


def bits(value: float) -> str:
    return struct.pack(">f", value).hex()


def difference(**changes: object) -> Difference:
    fields = {
        "rank": 0, "node": 17, "op": "bitwitness::rmsnorm", "value": "0017.rmsnorm.0",
        "index": (3, 7), "committed_bits": "3f800001", "recomputed_bits": "3f800000",
        "differing": 12, "elements": 4096, "reads": ("0016.add", "params/layer0.mlp_norm"),
        "evidence": "exact",
    }  # fmt: skip
    return Difference(**(fields | changes))


def step_report(step: int, verdict: Verdict) -> StepReport:
    detail = "the committed values are what the operators give"
    check = Check(name="step.values", verdict=verdict, detail=detail, evidence={})
    differs = verdict is Verdict.MISMATCH
    return StepReport(
        step=step, checks=(check,), differences=(difference(),) if differs else (),
        operators=312, values=96, elements=1_234_567, differing=12 * differs, macs=40_000_000,
        milliseconds=1234,
    )  # fmt: skip


def sample(steps: int, outcomes: dict[int, Verdict], **changes: object) -> ReportData:
    reports = tuple(step_report(step, verdict) for step, verdict in sorted(outcomes.items()))
    checks = [match("registration.signature", "the registration is signed by its key")]
    checks += [match(f"log.check{i}", "all leaves are in order") for i in range(20)]
    result = overall([c.verdict for c in checks] + [r.verdict for r in reports])
    draws = max(len(outcomes) - 2, 0)
    f_max = bounds.f_max(draws, Decimal("0.01"), population=max(steps - 2, 0))
    fields = {
        "format": FORMAT,
        "run": RunFacts(
            run_id="demo-1", name="demo", steps=steps, recorded=steps, ranks=1, parameters=812_345,
            source="stdlib", device="emulated", arch="hopper", profile="heal",
            macs_per_step=40_000_000,
        ),
        "signatures": (
            Signature(what="Registration, before step 0", key_id=HASH, digest=HASH, pinned=True,
                      time="2026-05-01T10:00:00Z"),
            Signature(what="Commitment, after the last step", key_id=HASH, digest=HASH,
                      time="2026-05-01T10:05:00Z", pinned=False),
        ),
        "overall": result,
        "draw": Draw(
            seed=HASH, nonce=HASH, beacon_kind="none", beacon_value="", beacon="no beacon",
            drand=None, steps=tuple(sorted(outcomes)), random_draws=draws, delta="0.01",
            f_max=str(f_max) if result == "PASS" else None,
        ),
        "checks": tuple(checks),
        "steps": reports,
        "losses": tuple(bits(1.5 + 4 / (1 + i * 20 / steps) + (i * 37 % 11) / 60)
                        for i in range(steps)),
        "evidence": "recorded",
        "not_checked": ("That every step was replayed.", "That the data is good."),
        "commands": ("bitwitness audit RUN --steps 8 --nonce 00",),
    }  # fmt: skip
    return ReportData(**(fields | changes))
