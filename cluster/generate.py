"""What `bitwitness generate` does.

A generation continues a prompt with a run's committed weights, and is committed like a run;
`bitwitness audit` checks it like one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cluster.border import Outcome

if TYPE_CHECKING:
    from trainer.config import Device
    from trainer.generate.config import Cache


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
