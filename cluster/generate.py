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
    from trainer.generate.run import Generation
    from transcript.keys import PublicKey


def generate_command(
    run: Path,
    prompt: str,
    tokens: int,
    out: Path | None,
    key: Path | None,
    cache: Cache,
    device: Device | None = None,
) -> Outcome:
    """Continue a prompt greedily and say what was written where; the run's device by default.

    Raises:
        cluster.errors.UsageError: prompt and text do not fit the model, or `out` holds a run.

    """
    from cluster.errors import UsageError
    from cluster.places import existing_run, key_paths, signing_key, storage_root
    from cluster.progress import stderr_meter
    from trainer.errors import ConfigError
    from trainer.generate import generate
    from transcript.keys import PrivateKey

    folder = existing_run(run)
    signer = PrivateKey.load(signing_key(key, *key_paths(folder)))
    target = None if out is None else storage_root() / out
    given = prompt.encode()
    with stderr_meter() as meter:
        meter.start("write", len(given) + tokens - 1)
        try:
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
        except ConfigError as error:
            raise UsageError(str(error), next_step="see bitwitness generate --help") from None
    return _outcome(made, folder, signer.public)


def _outcome(made: Generation, run: Path, key: PublicKey) -> Outcome:
    """Show the text, whatever its bytes are, and how to audit it."""
    from cluster.places import key_paths
    from transcript.keys import PublicKey
    from verifier.generation import run_around
    from verifier.text_view import pieces

    document = {
        "text": made.text.decode("utf-8", errors="replace"),
        "text_hex": made.text.hex(),
        "generation": str(made.folder),
        "run_id": made.run_id,
        "commitment": made.commitment,
    }
    public = key_paths(run)[1]
    ours = public.is_file() and PublicKey.load(public).key_id == key.key_id
    from_run = "" if run_around(made.folder) == run.absolute() else f" --run {run}"
    trust = f" --trust {public}" if ours else ""
    lines = [
        "".join(piece.text for piece in pieces(made.text)),
        f"Generation {made.folder}",
        f"Next       bitwitness audit {made.folder}{from_run}{trust}",
    ]
    return Outcome(document=document, text="\n".join(lines))
