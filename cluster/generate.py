"""What `bitwitness generate` does, and `bitwitness audit` on what it made.

A generation continues a prompt with a run's committed weights and is committed like a run.
Its audit replays it in this process: a step is one row through the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.border import Outcome, one_line

if TYPE_CHECKING:
    from trainer.config import Device
    from trainer.generate.config import Cache
    from verifier.generation import GenerationReport

_SHOWN_FAULTS = 5


def generate_command(
    run: Path,
    prompt: str,
    tokens: int,
    out: Path | None,
    key: Path | None,
    cache: Cache,
    device: Device | None = None,
) -> Outcome:
    """Continue a prompt greedily and say what was written where; the run's device by default."""
    from cluster.places import existing_run, key_paths, signing_key, storage_root
    from cluster.progress import stderr_meter
    from trainer.generate import generate
    from transcript.keys import PrivateKey

    folder = existing_run(run)
    signer = PrivateKey.load(signing_key(key, *key_paths(folder)))
    target = None if out is None else storage_root() / out
    given = prompt.encode()
    with stderr_meter() as meter:
        meter.start("write", len(given) + tokens - 1)
        made = generate(
            folder,
            given,
            tokens,
            key=signer,
            out=target,
            cache=cache,
            device=device,
            on_token=lambda step, _: meter.advance(step + 1, ""),
        )
    text = made.text.decode("utf-8", errors="replace")
    document = {
        "text": text,
        "generation": str(made.folder),
        "run_id": made.run_id,
        "commitment": made.commitment,
    }
    lines = [text, f"Generation {made.folder}", f"Next       bitwitness audit {made.folder}"]
    return Outcome(document=document, text="\n".join(lines))


def is_generation(folder: Path) -> bool:
    """Whether a folder's registration is a generation's; what cannot be read is none."""
    from transcript.errors import TranscriptError
    from transcript.run import RunFolder
    from transcript.statements import open_registration

    run = RunFolder(folder)
    try:
        registration = open_registration(run.read(run.registration)).predicate
    except TranscriptError:
        return False
    return registration.config.get("kind") == "generation"


def audit_generation(folder: Path, trust: Path | None, threads: int | None) -> Outcome:
    """Replay a generation against its training run; exit code 1 unless it passes.

    The run is found where `generate` puts a generation, inside the run's folder; one that lies
    elsewhere can only be INCOMPLETE.

    Args:
        folder: the generation's.
        trust: the key that must have registered the generation.
        threads: of the replay.

    """
    from transcript.keys import PublicKey
    from verifier.generation import verify_generation

    trusted = (PublicKey.load(trust),) if trust else ()
    around = folder.parent.parent
    beside = around if (around / "registration.dsse.json").is_file() else None
    report = verify_generation(folder, run=beside, threads=threads, trusted=trusted)
    return _outcome(report, folder)


def _outcome(report: GenerationReport, folder: Path) -> Outcome:
    from verifier.verdict import exit_code

    checks = [*report.checks, *(check for step in report.steps for check in step.checks)]
    faults = [f"{c.name}: {c.verdict}: {c.detail}" for c in checks if not c.ok]
    document: dict[str, Any] = {
        "verdict": str(report.verdict),
        "generation": str(folder),
        "replayed": len(report.steps),
        "faults": faults,
    }
    lines = [
        f"Verdict    {report.verdict}",
        f"Replayed   {len(report.steps)} steps of a generation",
        *(f"Fault      {one_line(fault)}" for fault in faults[:_SHOWN_FAULTS]),
    ]
    return Outcome(document=document, text="\n".join(lines), exit_code=exit_code(report.verdict))
