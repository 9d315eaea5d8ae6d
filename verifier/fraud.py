"""A fraud proof: one file that shows, without the run, that one tile of one product is false.

It holds the signed registration, the step graph whose digest that registers, a signed tree head,
the step's log entry with its inclusion proof, and the opened leaves of the two operand panels and
of the output tile. Whoever checks it follows the hashes from the trainer's own signature down to
the graph and to the operands, multiplies them, and finds other bits than were committed. The
graph is the one that the trainer signed: whether it is that of the registered configuration is
for an audit to say, and takes nothing from the proof. Format: docs/formats/fraud-proof.md. Only
products in recorded or exact arithmetic can be proved so; what lies between two products takes a
replay. Nothing here needs torch or the store: a proof is made by prove.py.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from emulator_ext import EmulatorError
from trainer.config import NumericsConfig
from trainer.errors import GraphError
from trainer.graph import StepGraph
from trainer.graph_document import MAX_GRAPH_BYTES, parse_graph
from transcript.checkpoint import SignedCheckpoint
from transcript.keys import PublicKey
from transcript.log import StepLeaf
from transcript.merkle import leaf_hash, verify_inclusion
from transcript.statements import Registration, Signed, open_registration
from verifier.bits import FirstDifference
from verifier.errors import ProofFileError
from verifier.files import MAX_PROOF_BYTES, PROOF_PREFIX
from verifier.openings import Opening, checked_leaves
from verifier.tile import Opened, Tile

FORMAT: Final = "bitwitness/fraud-proof/v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class FraudProof:
    """The file's content.

    Attributes:
        graph: the step graph's document, zlib in base64.
        arena: opened leaves against the arena root of `rank` in `leaf`.
        state: the same against the root of the state before.
        state_after: the same against the root of the state after.
        constants: the same against the registered root of the constants.

    """

    format: Literal["bitwitness/fraud-proof/v2"]
    registration: str
    graph: str
    tree_head: str
    leaf: str
    inclusion: tuple[str, ...]
    rank: int
    output_leaf: int
    arena: tuple[Opening, ...]
    state: tuple[Opening, ...]
    state_after: tuple[Opening, ...] = ()
    constants: tuple[Opening, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedFraud:
    """What a fraud proof proves: of which step, value and element the committed bits are false.

    `kind` is what the run of that id is, as its registration says: training or generation.
    """

    kind: str
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


def dump_proof(proof: FraudProof) -> bytes:
    """Return the file; byte ranges that operands seldom lie in are left out if they do not."""
    return _ADAPTER.dump_json(proof, exclude_defaults=True)


def pack_graph(document: bytes) -> str:
    """Return a graph's document as `FraudProof.graph` holds it."""
    return base64.b64encode(zlib.compress(document, 9)).decode()


def check_proof(data: bytes, trusted: tuple[PublicKey, ...] = (), *, file: str = "") -> ProvedFraud:
    """Check a fraud proof.

    Args:
        data: the file.
        trusted: keys one of which must be the trainer's; any by default.
        file: its name, for messages.

    Raises:
        ProofFileError: malformed, of another version, or it proves nothing.
        TranscriptError: a signature, hash or path in it is wrong.

    """
    proof = _parse(data, file)
    signed = open_registration(proof.registration.encode(), trusted, file=file)
    graph = _graph(proof, signed.predicate, file)
    leaf = _leaf(proof, signed, file)
    if not 0 <= proof.rank < len(leaf.arenas):
        raise ProofFileError(f"there is no rank {proof.rank}", file=file)
    opened = _opened(proof, graph, leaf, signed.predicate)
    tile, found = _judge(graph, _numerics(signed.predicate, file), proof.output_leaf, opened, file)
    return ProvedFraud(
        kind=signed.predicate.kind,
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


def _opened(
    proof: FraudProof, graph: StepGraph, leaf: StepLeaf, registration: Registration
) -> Opened:
    """Check every opened leaf against the root of its byte range."""
    state = graph.layout("state")
    ranges = {
        "arena": (proof.arena, graph.arena, leaf.arenas[proof.rank]),
        "state": (proof.state, state, leaf.state_before),
        "state_after": (proof.state_after, state, leaf.state_after),
        "constants": (
            proof.constants, graph.layout("constant"), registration.constants_root,
        ),
    }  # fmt: skip
    return {name: checked_leaves(*opened) for name, opened in ranges.items()}


def _judge(
    graph: StepGraph, numerics: NumericsConfig, leaf: int, opened: Opened, file: str
) -> tuple[Tile, FirstDifference]:
    try:
        tile = Tile.of_leaf(graph, leaf)
        return tile, tile.judge(numerics, opened)
    except (ProofFileError, EmulatorError) as error:
        raise ProofFileError(str(error), file=file) from None


def _parse(data: bytes, file: str) -> FraudProof:
    if len(data) > MAX_PROOF_BYTES:
        raise ProofFileError(f"larger than {MAX_PROOF_BYTES} bytes", file=file)
    if data.startswith(PROOF_PREFIX + b'v1"'):
        raise ProofFileError("a fraud proof of version 1, which lacks the step graph", file=file)
    try:
        return _ADAPTER.validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise ProofFileError(f"not a fraud proof: {where}: {first['msg']}", file=file) from None


def _graph(proof: FraudProof, registration: Registration, file: str) -> StepGraph:
    """Unpack the graph and check that it is the one that the trainer signed."""
    try:
        unpacker = zlib.decompressobj()
        packed = base64.b64decode(proof.graph, validate=True)
        document = unpacker.decompress(packed, MAX_GRAPH_BYTES + 1)
    except (binascii.Error, ValueError, zlib.error):
        raise ProofFileError("the step graph is not zlib in base64", file=file) from None
    try:
        return parse_graph(document, registration.graph_digest)
    except GraphError as error:
        raise ProofFileError(str(error), file=file) from None


def _numerics(registration: Registration, file: str) -> NumericsConfig:
    try:
        return NumericsConfig.model_validate(
            {"arch": registration.arch, "profile": registration.profile}
        )
    except ValidationError:
        raise ProofFileError(
            f"there is no arithmetic {registration.profile} on {registration.arch}", file=file
        ) from None


def _leaf(proof: FraudProof, signed: Signed[Registration], file: str) -> StepLeaf:
    """Follow the trainer's signature to the step's log entry."""
    head = SignedCheckpoint.parse(proof.tree_head.encode(), file=file).verify(
        signed.signers[0], file=file
    )
    line = proof.leaf.encode()
    step = StepLeaf.decode(line, limit=len(line), file=file).step
    leaf = StepLeaf.parse(line, step=step, run_id=signed.predicate.run_id, file=file)
    bound = (head.run_id, leaf.registration, leaf.graph_digest)
    if bound != (leaf.run_id, signed.digest, signed.predicate.graph_digest):
        raise ProofFileError("tree head, log entry and registration do not belong together")
    try:
        path = [bytes.fromhex(item) for item in proof.inclusion]
    except ValueError:
        raise ProofFileError("the inclusion proof is not hex", file=file) from None
    verify_inclusion(leaf_hash(line), step, head.size, path, head.root)
    return leaf
