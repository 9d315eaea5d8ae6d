"""`make demo`: the whole path once, on this machine, with the shipped configuration.

Trains, audits random steps with verifier actors of the same private Ray, writes the signed
result and the report, and says where everything is. It calls what the commands call.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Final

from cluster import border
from cluster.border import Outcome

CONFIG: Final = Path("configs/demo.yaml")
SAMPLES: Final = 8


def main() -> None:
    """Run the demo and exit with the audit's code."""
    raise SystemExit(border.run(demo, as_json=False, debug=False))


def demo() -> Outcome:
    """Train and audit; the text names every file that was made."""
    from cluster.audit import Workers, audit
    from cluster.config import load_job
    from cluster.places import audit_folder, audit_key_paths, key_paths, signing_key
    from cluster.progress import stderr_meter
    from cluster.ray_session import ray_session
    from cluster.train import train
    from transcript.keys import PrivateKey, PublicKey
    from verifier.audit import AuditOptions

    began = time.perf_counter()
    job = load_job(CONFIG)
    run = _free_folder(Path.cwd() / "runs", job.run.name)
    private, public = key_paths(run)
    key = signing_key(None, private, public)
    with stderr_meter() as meter, ray_session(job.cluster.address, cpus=job.cpus_wanted()):
        trained = train(job, run, key, meter=meter)
        trusted = (PublicKey.load(public),)
        options = AuditOptions(steps=SAMPLES, threads=1, trusted=trusted)
        out = audit_folder(run, None)
        auditor = PrivateKey.load(signing_key(None, *audit_key_paths(out)))
        outcome = audit(run, options, out, auditor, Workers(), meter)
    command = Path(sys.executable).with_name("bitwitness")
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    first, last = trained.losses[0], trained.losses[-1]
    lines = [
        f"Trained    {len(trained.losses)} steps, loss {first:.2f} -> {last:.2f}",
        outcome.text,
        f"Run        {run} ({size / 1e6:.0f} MB: every step's matrix operands)",
        f"Took       {time.perf_counter() - began:.0f} s in all",
        "Next       open the report in a browser; check a signature with",
        f"           {os.path.relpath(command)} verify {trained.commitment}",
    ]
    return Outcome(document=outcome.document, text="\n".join(lines), exit_code=outcome.exit_code)


def _free_folder(parent: Path, name: str) -> Path:
    """Return the first of NAME, NAME-2, NAME-3, ... that is not there: nothing is overwritten."""
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return next(parent / n for n in names if not (parent / n).exists())


if __name__ == "__main__":
    main()
