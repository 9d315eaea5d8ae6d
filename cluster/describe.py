"""What a run's folder holds, read as it stands and judged by nobody: `bitwitness inspect`.

Signatures are reported and nothing is replayed; `bitwitness audit` is what checks a run.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from cluster.border import Outcome, one_line
from cluster.places import existing_run
from transcript.dsse import ENVELOPE_LIMIT
from transcript.keys import PublicKey
from transcript.log import LogReader, StepLeaf
from transcript.log_reader import checkpoint_sizes
from transcript.run import RunFolder
from transcript.statements import (
    Commitment,
    Registration,
    Signed,
    open_registration,
    open_statement,
)
from verifier.text_view import one_line as escaped

_NOUNS = {"training": "run", "generation": "generation"}


def inspect_command(run: Path) -> Outcome:
    """Describe the run of that path; see `describe_run` for the errors."""
    return describe_run(existing_run(run))


def describe_run(folder: Path) -> Outcome:
    """Read a run's statements, log and sizes.

    Raises:
        transcript.errors.TranscriptError: the registration, the log or the commitment is not
            one, or is not signed by the key that the registration names.

    """
    run = RunFolder(folder)
    signed = open_registration(
        run.read(run.registration, ENVELOPE_LIMIT), file=str(run.registration)
    )
    document = {
        "run": str(folder),
        "kind": signed.predicate.kind,
        **_registered(signed),
        **_generated(run, signed.predicate),
        **_logged(run, signed.predicate.run_id),
        **_committed(run, signed.predicate.public_key),
        "bytes": {"store": _size(run.store), "dataset": _size(run.dataset)},
    }
    return Outcome(document=document, text=_text(document))


def _registered(signed: Signed[Registration]) -> dict[str, Any]:
    registration = signed.predicate
    return {
        "run_id": registration.run_id,
        "registered": registration.created,
        "registration": signed.digest,
        "key_id": signed.signers[0].key_id,
        "arch": registration.arch,
        "profile": registration.profile,
        "ranks": registration.world,
        "steps": registration.steps,
        "record": registration.record,
        "dataset_tokens": registration.dataset.tokens,
        "code_version": registration.code_version,
    }


def _generated(run: RunFolder, registration: Registration) -> dict[str, Any]:
    """Return what is particular to a generation, as its registration and its folder say it."""
    if registration.kind == "training":
        return {}
    config = registration.config
    return {
        "trained": str(config.get("run", "")),
        "trained_commitment": str(config.get("commitment", "")),
        "cache": str(config.get("cache", "")),
        "prompt_bytes": registration.dataset.tokens,
        "text_hex": run.read(run.text).hex() if run.text.exists() else None,
    }


def _logged(run: RunFolder, run_id: str) -> dict[str, Any]:
    if not run.leaves.exists():
        return {"logged": 0, "first_loss": None, "last_loss": None, "tree_heads": []}
    with LogReader(run.log, run_id) as log:
        ends = (log.leaf(0), log.leaf(len(log) - 1)) if len(log) else ()
        losses = [_loss(leaf) for leaf in ends] or [None, None]
        return {
            "logged": len(log),
            "first_loss": losses[0],
            "last_loss": losses[1],
            "tree_heads": list(checkpoint_sizes(run.log)),
        }


def _committed(run: RunFolder, pem: str) -> dict[str, Any]:
    if not run.commitment.exists():
        return {"committed": None, "commitment": None, "log_root": None, "weights": []}
    file = str(run.commitment)
    data = run.read(run.commitment, ENVELOPE_LIMIT)
    signed = open_statement(data, Commitment, [PublicKey.from_pem(pem.encode())], file=file)
    commitment = signed.predicate
    return {
        "committed": commitment.created,
        "commitment": signed.digest,
        "log_root": commitment.log.root,
        "weights": [{"path": item.path, "sha256": item.sha256} for item in commitment.weights],
    }


def _loss(leaf: StepLeaf) -> float | None:
    bits = leaf.metrics.get("loss")
    value = float(np.uint32(int(bits or "7fc00000", 16)).view(np.float32))
    return value if isfinite(value) else None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _text(facts: dict[str, Any]) -> str:
    size = facts["bytes"]["store"] / 1e6
    committed = facts["committed"] or f"not yet: the {_NOUNS[facts['kind']]} did not finish"
    what = _loss_lines(facts) if facts["kind"] == "training" else _text_lines(facts)
    return "\n".join(
        (
            f"{_NOUNS[facts['kind']].capitalize():<10} {facts['run_id']} in {facts['run']}",
            f"Registered {facts['registered']} by key {facts['key_id'][:16]}",
            f"Numerics   {facts['arch']}, profile {facts['profile']}, {facts['ranks']} rank(s)",
            f"Steps      {facts['logged']} of {facts['steps']} logged, recorded: {facts['record']}",
            *what,
            f"Store      {size:.1f} MB",
            f"Committed  {committed}",
        )
    )


def _loss_lines(facts: dict[str, Any]) -> list[str]:
    loss = "none yet"
    if facts["first_loss"] is not None and facts["last_loss"] is not None:
        loss = f"{facts['first_loss']:.3f} -> {facts['last_loss']:.3f}"
    return [f"Loss       {loss}"]


def _text_lines(facts: dict[str, Any]) -> list[str]:
    whose = one_line(f"{facts['trained']}, commitment {facts['trained_commitment'][:16]}")
    lines = [f"Weights    of run {whose}", f"Cache      {one_line(facts['cache'])}"]
    if facts["text_hex"] is None:
        return [*lines, "Text       none yet"]
    text, prompt = bytes.fromhex(facts["text_hex"]), facts["prompt_bytes"]
    return [
        *lines,
        f'Prompt     "{escaped(text[:prompt])}"',
        f'Text       "{escaped(text[prompt:])}"',
    ]
