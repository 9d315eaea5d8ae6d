"""Declaring that a logged step is wrong: what a trainer does who finds out by itself.

The log is append-only, so a step that was logged with wrong values stays logged. When executing
it again gives other bits, its trainer can say so in a signed statement. The commitment lists
these statements, so none can be made once it is known which steps are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.graph import StepGraph
from transcript.files import write_atomic
from transcript.keys import PrivateKey, PublicKey
from transcript.log import StepLeaf
from transcript.merkle import leaf_hash
from transcript.model import utc_now
from transcript.predicates import DeclaredFault
from transcript.run import RunFolder
from transcript.statements import open_statement, sign_statement

Bytes = NDArray[np.uint8]
Evidence = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Redone:
    """One step as it was logged and as executing it again gives it.

    `found` is what each rank says of the first value that differs in its arena, in rank order:
    empty where the arenas are equal, or where the logged one was not recorded.
    """

    logged: StepLeaf
    again: StepLeaf
    found: Sequence[Evidence]


def declare(redone: Redone, folder: RunFolder, key: PrivateKey) -> list[str]:
    """Sign and write one statement for each rank whose arena differs; return their digests.

    If no arena differs the fault lies in what all ranks share, and one statement names no rank.

    Raises:
        transcript.errors.StorageError: the disk fails.

    """
    digests = []
    for fault in _faults(redone):
        envelope, digest = sign_statement(fault, key)
        write_atomic(folder.fault(digest), envelope)
        digests.append(digest)
    return digests


def declared(folder: RunFolder, key: PublicKey) -> tuple[str, ...]:
    """Return the digests of all faults that were declared, ascending: what a commitment lists.

    Raises:
        transcript.errors.TranscriptError: one of the files is none of ours.

    """
    if not folder.faults.is_dir():
        return ()
    paths = [path for path in folder.faults.iterdir() if not path.name.startswith(".")]
    opened = (open_statement(folder.read(p), DeclaredFault, [key], file=str(p)) for p in paths)
    return tuple(sorted(signed.digest for signed in opened))


def first_difference(graph: StepGraph, logged: Bytes, again: Bytes) -> dict[str, str]:
    """Say which value of two arenas is the first to differ as they were made; {} if none does.

    Args:
        graph: the step graph.
        logged: uint8 [arena bytes], of the step as it was logged.
        again: the same, as it was executed again.

    Returns:
        `value`, `operator`, and the first differing 4 bytes of either as a pattern in hex.

    """
    committed = sorted(graph.committed, key=graph.producers.__getitem__)
    for value in committed:
        entry = graph.arena.entry(graph.values[value].name)
        part = slice(entry.offset, entry.offset + entry.bytes)
        differs = np.flatnonzero(logged[part] != again[part])
        if len(differs):
            word = slice(start := entry.offset + int(differs[0]) // 4 * 4, start + 4)
            return {
                "value": entry.name,
                "operator": graph.nodes[graph.producers[value]].op,
                "logged": logged[word][::-1].tobytes().hex(),
                "again": again[word][::-1].tobytes().hex(),
            }
    return {}


def _faults(redone: Redone) -> Iterator[DeclaredFault]:
    logged, again = redone.logged, redone.again
    pairs = zip(logged.arenas, again.arenas, strict=True)
    ranks = [rank for rank, (old, new) in enumerate(pairs) if old != new]
    for rank in ranks:
        roots = {"arena.logged": logged.arenas[rank], "arena.again": again.arenas[rank]}
        yield _fault(redone, rank, {**roots, **redone.found[rank]})
    if not ranks:
        roots = {"state_after.logged": logged.state_after, "state_after.again": again.state_after}
        yield _fault(redone, None, roots)


def _fault(redone: Redone, rank: int | None, evidence: Evidence) -> DeclaredFault:
    logged = redone.logged
    return DeclaredFault(
        run_id=logged.run_id,
        registration=logged.registration,
        step=logged.step,
        rank=rank,
        operator=evidence.get("operator", ""),
        leaf=leaf_hash(logged.encode()).hex(),
        detail="executed again from the state before it, the step gives other bits",
        evidence=dict(evidence),
        created=utc_now(),
    )
