"""A fraud proof: one file that shows, without the run, that one tile of one product is false.

It holds the signed registration, a signed tree head, the step's log entry with its inclusion
proof, and the opened leaves of the two operand panels and of the output tile. Whoever checks it
derives the step graph from the registered configuration, follows the hashes from the trainer's
own signature down to the operands, multiplies them, and finds other bits than were committed.
Format: docs/formats/fraud-proof.md. Only products in recorded or exact arithmetic can be proved
so; what lies between two products takes a replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from emulator_ext import EmulatorError
from trainer.config import RunConfig
from trainer.errors import TrainerError
from trainer.graph import StepGraph
from transcript.checkpoint import SignedCheckpoint
from transcript.keys import PublicKey
from transcript.log import StepLeaf
from transcript.merkle import leaf_hash, verify_inclusion
from transcript.statements import Registration, Signed, open_registration
from transcript.store import RunStore
from verifier.compare import FirstDifference
from verifier.context import derived_graph, open_context
from verifier.cost import GEMM
from verifier.errors import ProofFileError
from verifier.files import MAX_PROOF_BYTES
from verifier.openings import Opening, checked_leaves, open_leaves
from verifier.step_report import Difference
from verifier.tile import Opened, Tile

FORMAT: Final = "bitwitness/fraud-proof/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FraudProof:
    """The file's content; `arena` and `state` are openings against the roots of `leaf`."""

    format: Literal["bitwitness/fraud-proof/v1"]
    registration: str
    tree_head: str
    leaf: str
    inclusion: tuple[str, ...]
    rank: int
    output_leaf: int
    arena: tuple[Opening, ...]
    state: tuple[Opening, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedFraud:
    """What a fraud proof proves: of which step, value and element the committed bits are false."""

    run_id: str
    key_id: str
    registration: str
    step: int
    rank: int
    value: str
    index: tuple[int, ...]
    committed_bits: str
    recomputed_bits: str
    differing: int


_ADAPTER = TypeAdapter(FraudProof)


def provable(difference: Difference) -> bool:
    """Whether a difference is one that a fraud proof can show."""
    return difference.op == GEMM and difference.evidence in {"recorded", "exact"}


def make_proof(folder: Path, step: int, difference: Difference) -> bytes:
    """Return a fraud proof for a difference that a replay found.

    Raises:
        ProofFileError: the difference is not `provable`, or the proof does not hold.
        TranscriptError: the run no longer has what the replay saw.

    """
    if not provable(difference):
        raise ProofFileError(f"no fraud proof for {difference.op} ({difference.evidence})")
    context = open_context(folder)
    tile = Tile.of_element(context.graph, difference.value, difference.index)
    store = RunStore.open(context.folder.store, context.layouts)
    layouts, wanted = context.layouts, tile.leaves()
    arena, state = store.read_arena(difference.rank, step), store.read_state(step)
    steps = context.config.train.steps
    with context.log() as log:
        proof = FraudProof(
            format=FORMAT,
            registration=context.folder.read(context.folder.registration).decode(),
            tree_head=log.checkpoint_note(steps).decode(),
            leaf=log.line(step).decode(),
            inclusion=tuple(item.hex() for item in log.inclusion_proof(step, steps)),
            rank=difference.rank,
            output_leaf=tile.leaf,
            arena=open_leaves(arena, layouts.arena, wanted["arena"]),
            state=open_leaves(state, layouts.state, wanted["state"]),
        )
    data = _ADAPTER.dump_json(proof)
    check_proof(data)
    return data


def check_proof(data: bytes, trusted: tuple[PublicKey, ...] = (), *, file: str = "") -> ProvedFraud:
    """Check a fraud proof.

    Args:
        data: the file.
        trusted: keys one of which must be the trainer's; any by default.
        file: its name, for messages.

    Raises:
        ProofFileError: malformed, or it proves nothing.
        TranscriptError: a signature, hash or path in it is wrong.
        BudgetError: its configuration is too large to derive a graph from.

    """
    proof = _parse(data, file)
    signed = open_registration(proof.registration.encode(), trusted, file=file)
    config, graph = _derive(signed.predicate, file)
    leaf = _leaf(proof, signed, graph, file)
    if not 0 <= proof.rank < len(leaf.arenas):
        raise ProofFileError(f"there is no rank {proof.rank}", file=file)
    opened = {
        "arena": checked_leaves(proof.arena, graph.arena, leaf.arenas[proof.rank]),
        "state": checked_leaves(proof.state, graph.layout("state"), leaf.state_before),
    }
    tile, found = _judge(graph, config, proof.output_leaf, opened, file)
    return ProvedFraud(
        run_id=leaf.run_id,
        key_id=signed.signers[0].key_id,
        registration=signed.digest,
        step=leaf.step,
        rank=proof.rank,
        value=tile.output,
        index=tile.element(found),
        committed_bits=found.committed_bits,
        recomputed_bits=found.recomputed_bits,
        differing=found.differing,
    )


def _judge(
    graph: StepGraph, config: RunConfig, leaf: int, opened: Opened, file: str
) -> tuple[Tile, FirstDifference]:
    try:
        tile = Tile.of_leaf(graph, leaf)
        return tile, tile.judge(config.numerics, opened)
    except (ProofFileError, EmulatorError) as error:
        raise ProofFileError(str(error), file=file) from None


def _parse(data: bytes, file: str) -> FraudProof:
    if len(data) > MAX_PROOF_BYTES:
        raise ProofFileError(f"larger than {MAX_PROOF_BYTES} bytes", file=file)
    try:
        return _ADAPTER.validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise ProofFileError(f"not a fraud proof: {where}: {first['msg']}", file=file) from None


def _derive(registration: Registration, file: str) -> tuple[RunConfig, StepGraph]:
    try:
        config = RunConfig.from_document(registration.config, name=file or "config")
        return config, derived_graph(config)
    except TrainerError as error:
        raise ProofFileError(str(error)) from None


def _leaf(proof: FraudProof, signed: Signed[Registration], graph: StepGraph, file: str) -> StepLeaf:
    """Follow the trainer's signature to the step's log entry."""
    head = SignedCheckpoint.parse(proof.tree_head.encode(), file=file).verify(
        signed.signers[0], file=file
    )
    line = proof.leaf.encode()
    step = StepLeaf.decode(line, limit=len(line), file=file).step
    leaf = StepLeaf.parse(line, step=step, run_id=signed.predicate.run_id, file=file)
    bound = (head.run_id, leaf.registration, leaf.graph_digest)
    if bound != (leaf.run_id, signed.digest, graph.digest):
        raise ProofFileError("tree head, log entry and registration do not belong together")
    try:
        path = [bytes.fromhex(item) for item in proof.inclusion]
    except ValueError:
        raise ProofFileError("the inclusion proof is not hex", file=file) from None
    verify_inclusion(leaf_hash(line), step, head.size, path, head.root)
    return leaf
