"""Write the golden files: a miniature run, in every format of docs/formats.

Run `python -m tests.transcript.make_golden` after a format got a new version, never to make a
test pass: files of an earlier version must stay readable, or be refused by name.
"""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.transcript.statement_samples import AUDIT, FAULT, registration
from tests.transcript.strategies import small_layout
from transcript.keys import PrivateKey
from transcript.layout import DTYPES, Layout
from transcript.leaves import ALGORITHM, arena_root, leaf_hashes
from transcript.log import Log
from transcript.merkle import leaf_hash
from transcript.predicates import AuditResult, Commitment, DeclaredFault
from transcript.run import RunFolder
from transcript.statements import sign_statement
from transcript.step import StepLeaf
from transcript.store import Layouts, RunStore

GOLDEN: Final = Path(__file__).parent / "golden"
KEY: Final = PrivateKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
STEPS: Final = 3
WEIGHTS: Final = b"the exported weights"
LAYOUTS: Final = Layouts(
    arena=Layout.build([("y", "f32", (3, 5)), ("loss", "f32", ())]),
    state=Layout.build([("params/w", "f32", (5, 3))]),
    constants=Layout.build([("cos", "f32", (2, 2))]),
)


def content(layout: Layout, seed: int) -> np.ndarray:
    """Fill a layout: element i of a tensor is (i + seed) mod 251, as its own dtype."""
    arrays = {
        entry.name: ((np.arange(np.prod(entry.shape, dtype=int)) + seed) % 251)
        .astype(DTYPES[entry.dtype])
        .reshape(entry.shape)
        for entry in layout.entries
    }
    return layout.pack(arrays)


def leaves_document() -> dict[str, object]:
    """Hash a layout with a tensor of each kind, filled by `content` with seed 1."""
    layout = small_layout()
    buffer = content(layout, 1)
    return {
        "layout": layout.document(),
        "leaf_hashes": [digest.hex() for digest in leaf_hashes(buffer, layout)],
        "root": arena_root(buffer, layout).hex(),
    }


def build(folder: Path) -> None:
    """Write all golden files into an empty folder."""
    run = RunFolder(folder / "run")
    run.log.mkdir(parents=True)
    (folder / "leaves.json").write_text(json.dumps(leaves_document(), indent=1) + "\n")
    write_store(run)
    registered = write_registration(run)
    with Log(run.log, "demo-1") as log:
        for step in range(STEPS):
            log.append(step_leaf(step, registered))
        head = log.checkpoint(KEY)
    fault = write_fault(run, registered)
    commitment = Commitment.check(
        {
            "run_id": "demo-1", "registration": registered, "created": "2026-01-01T01:00:00Z",
            "steps": STEPS, "log": {"root": head.root.hex(), "size": STEPS},
            "final_state_root": root(LAYOUTS.state, STEPS),
            "weights": [
                {"path": "weights/model.safetensors", "sha256": sha256(WEIGHTS).hexdigest()}
            ],
            "probes": [write_probe(run, "end")], "faults": [fault],
        }
    )  # fmt: skip
    data, committed = sign_statement(commitment, KEY)
    run.commitment.write_bytes(data)
    result = AuditResult.check(
        {
            **AUDIT.model_dump(), "commitment": committed, "verifier_key": KEY.public.key_id,
            "weights": commitment.model_dump()["weights"],
        }
    )  # fmt: skip
    (folder / "audit-result.dsse.json").write_bytes(sign_statement(result, KEY)[0])


def root(layout: Layout, seed: int) -> str:
    """Return the root of a filled layout."""
    return arena_root(content(layout, seed), layout).hex()


def write_store(run: RunFolder) -> None:
    """Record arenas 0 and 2 of one rank, all states, and the constants."""
    store = RunStore.create(run.store, LAYOUTS, recorded=[0, 2], states=range(STEPS + 1))
    for step in (0, 2):
        store.write_arena(0, step, content(LAYOUTS.arena, step))
    for step in range(STEPS + 1):
        store.write_state(step, content(LAYOUTS.state, step))
    store.write_constants(content(LAYOUTS.constants, 0))


def write_registration(run: RunFolder) -> str:
    """Register the run and return the statement's digest."""
    data, digest = sign_statement(
        registration(
            steps=STEPS, public_key=KEY.public.pem(), constants_root=root(LAYOUTS.constants, 0),
            initial_state_root=root(LAYOUTS.state, 0), digest_algorithm=ALGORITHM,
            probes=(write_probe(run, "start"),),
        ),
        KEY,
    )  # fmt: skip
    run.registration.write_bytes(data)
    return digest


def write_probe(run: RunFolder, moment: str) -> str:
    """Write what rank 0's device is said to have answered, and return its digest."""
    path, answers = run.probe(moment, 0), f"the answers at the {moment}".encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(answers)
    return sha256(answers).hexdigest()


def write_fault(run: RunFolder, registered: str) -> str:
    """Declare the last step faulty and return the statement's digest."""
    leaf = leaf_hash(step_leaf(STEPS - 1, registered).encode()).hex()
    fault = DeclaredFault.check(
        {**FAULT.model_dump(), "registration": registered, "step": STEPS - 1, "leaf": leaf}
    )
    data, digest = sign_statement(fault, KEY)
    run.faults.mkdir()
    run.fault(digest).write_bytes(data)
    return digest


def step_leaf(step: int, registered: str) -> StepLeaf:
    """Make the leaf of a step whose values are those of the store."""
    return StepLeaf(
        run_id="demo-1",
        registration=registered,
        step=step,
        graph_digest=registration().graph_digest,
        state_before=root(LAYOUTS.state, step),
        state_after=root(LAYOUTS.state, step + 1),
        batches=(root(Layout.build([("tokens", "i32", (2, 4))]), step),),
        scalars=("3a83126f", "41200000", "447a0000"),
        arenas=(root(LAYOUTS.arena, step),),
        metrics={"loss": "40b15c29"},
    )


def main() -> None:
    """Replace the golden folder."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir()
    build(GOLDEN)


if __name__ == "__main__":
    main()
