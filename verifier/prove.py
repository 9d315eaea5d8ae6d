"""Making a fraud proof out of a run and a difference that its replay found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from trainer.graph import GEMM
from transcript import canonical
from transcript.layout import Layout
from verifier.context import RunContext, open_context
from verifier.errors import ProofFileError
from verifier.fraud import FORMAT, FraudProof, check_proof, dump_proof, pack_graph
from verifier.openings import Bytes, Opening, open_leaves
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
    steps = context.plan.steps
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
            **_openings(context, difference.rank, step, tile.leaves()),
        )
    data = dump_proof(proof)
    check_proof(data)
    return data


def _openings(
    context: RunContext, rank: int, step: int, wanted: Mapping[str, list[int]]
) -> dict[str, tuple[Opening, ...]]:
    """Open the wanted leaves of each byte range; one of which none are wanted is not read."""
    store, layouts = context.steps_store(), context.layouts
    ranges: Mapping[str, tuple[Callable[[], Bytes], Layout]] = {
        "arena": (partial(store.read_arena, rank, step), layouts.arena),
        "state": (partial(store.read_state, step), layouts.state),
        "state_after": (partial(store.read_state, step + 1), layouts.state),
        "constants": (context.store().read_constants, layouts.constants),
    }
    return {
        name: open_leaves(read(), layout, wanted[name]) if wanted[name] else ()
        for name, (read, layout) in ranges.items()
    }
