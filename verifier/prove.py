"""Making a fraud proof out of a run and a difference that its replay found."""

from __future__ import annotations

from pathlib import Path

from trainer.graph import GEMM
from transcript import canonical
from transcript.store import RunStore
from verifier.context import open_context
from verifier.errors import ProofFileError
from verifier.fraud import FORMAT, FraudProof, check_proof, dump_proof, pack_graph
from verifier.openings import open_leaves
from verifier.step_report import Difference
from verifier.tile import Tile


def provable(difference: Difference) -> bool:
    """Whether a difference is one that a fraud proof can show."""
    return difference.op == GEMM and difference.evidence in {"recorded", "exact"}


def make_proof(
    folder: Path, step: int, difference: Difference, revealed: Path | None = None
) -> bytes:
    """Return a fraud proof for a difference that a replay found, in a run or what it revealed.

    Raises:
        ProofFileError: the difference is not `provable`, or the proof does not hold.
        TranscriptError: the run no longer has what the replay saw.

    """
    if not provable(difference):
        raise ProofFileError(f"no fraud proof for {difference.op} ({difference.evidence})")
    context = open_context(folder, revealed=revealed)
    tile = Tile.of_element(context.graph, difference.value, difference.index)
    store = RunStore.open(context.steps_store, context.layouts)
    layouts, wanted = context.layouts, tile.leaves()
    arena, state = store.read_arena(difference.rank, step), store.read_state(step)
    steps = context.config.train.steps
    with context.log() as log:
        proof = FraudProof(
            format=FORMAT,
            registration=context.folder.read(context.folder.registration).decode(),
            graph=pack_graph(canonical.dumps(context.graph.document())),
            tree_head=log.checkpoint_note(steps).decode(),
            leaf=log.line(step).decode(),
            inclusion=tuple(item.hex() for item in log.inclusion_proof(step, steps)),
            rank=difference.rank,
            output_leaf=tile.leaf,
            arena=open_leaves(arena, layouts.arena, wanted["arena"]),
            state=open_leaves(state, layouts.state, wanted["state"]),
        )
    data = dump_proof(proof)
    check_proof(data)
    return data
