"""One good predicate of each kind."""

from __future__ import annotations

from tests.transcript.strategies import HEX
from transcript.predicates import AuditResult, Commitment, DeclaredFault, Registration

WEIGHTS = [{"path": "weights/model.safetensors", "sha256": HEX[::-1]}]


def registration(**changes: object) -> Registration:
    """Make a registration with some fields replaced."""
    fields: dict[str, object] = {
        "run_id": "demo-1", "attempt": 1, "created": "2026-01-01T00:00:00Z",
        "config": {"seed": 7, "optim": {"learning_rate": "0.003"}},
        "dataset": {"root": HEX, "tokens": 1_000_000}, "graph_digest": HEX, "constants_root": HEX,
        "initial_state_root": HEX, "arch": "hopper", "profile": "heal", "world": 1, "steps": 4,
        "record": "every:2", "code_version": "0.1.0", "public_key": "none",
    }  # fmt: skip
    return Registration(**{**fields, **changes})


REGISTRATION = registration(attempt=2, previous=HEX, probes=(HEX,))
FAULT = DeclaredFault.check(
    {
        "run_id": "demo-1", "registration": HEX, "step": 2, "rank": 0,
        "operator": "bitwitness::gemm", "leaf": HEX, "detail": "executed again, it differs",
        "evidence": {"arena.logged": HEX, "arena.again": HEX[::-1]},
        "created": "2026-01-01T00:30:00Z",
    }
)  # fmt: skip
COMMITMENT = Commitment.check(
    {
        "run_id": "demo-1", "registration": HEX, "created": "2026-01-01T01:00:00Z", "steps": 4,
        "log": {"root": HEX, "size": 4}, "final_state_root": HEX, "weights": WEIGHTS,
        "probes": [HEX], "faults": [HEX],
    }
)  # fmt: skip
AUDIT = AuditResult.check(
    {
        "run_id": "demo-1", "commitment": HEX, "weights": WEIGHTS, "verifier_key": HEX,
        "nonce": HEX[:32], "beacon": {"source": "file", "value": HEX}, "seed": HEX,
        "structure": [{"name": "state-chain", "verdict": "MATCH"}],
        "steps": [
            {
                "step": step,
                "checks": [{"name": "replay", "verdict": "MATCH", "detail": "all operators"}],
                "roots": {"state_after": HEX, "arena/0": HEX},
            }
            for step in (0, 3)
        ],
        "verdict": "PASS", "sampled": 2, "total": 4, "delta": "0.01", "f_max": "0.9",
        "coverage": {"macs": 123_456, "share": "0.5"},
        "not_checked": ["That no other training ran elsewhere."],
        "report": HEX, "created": "2026-01-01T02:00:00Z",
    }
)  # fmt: skip
