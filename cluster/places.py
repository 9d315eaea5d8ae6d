"""Where a run, its key and its audits lie when the caller does not say.

    runs/NAME                  the run, which is handed to auditors
    runs/NAME.key.pem          the trainer's private key: beside the run, never in it
    runs/NAME.pub.pem          its public half
    runs/KEYID.attempts.jsonl  every registration by that key here (trainer.attempts)
    runs/NAME.audits/001       the first audit of that run
    runs/NAME.audits/key.pem   the auditor's private key, and pub.pem

In a Ray job the current folder is a throw-away copy of what was uploaded. Relative paths are
therefore resolved there against a folder that stays: BITWITNESS_STORAGE, else the
configuration's `cluster.storage`, else ~/bitwitness on the node that runs the job.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cluster.border import Outcome
from cluster.errors import ExistsError, FileError
from cluster.ray_session import in_job
from transcript.keys import PrivateKey

STORAGE_VARIABLE: Final = "BITWITNESS_STORAGE"


def storage_root(configured: str | None = None) -> Path:
    """Return the absolute folder against which relative paths of results are resolved."""
    if not in_job():
        return Path.cwd()
    chosen = os.environ.get(STORAGE_VARIABLE) or configured
    root = Path(chosen).expanduser() if chosen else Path.home() / "bitwitness"
    if not root.is_absolute():
        msg = f"{chosen}: the storage folder of a Ray job must be an absolute path"
        raise FileError(msg, next_step=f"set {STORAGE_VARIABLE} or cluster.storage")
    return root


def run_folder(name: str, out: Path | None, configured: str | None) -> Path:
    """Return where a new run goes: absolute, and not there yet.

    Raises:
        ExistsError: something is there already; a run is never overwritten.

    """
    folder = storage_root(configured) / (out or Path("runs") / name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        msg = f"{folder}: there is a run already"
        raise ExistsError(msg, next_step="choose another --out, or move it away")
    return folder


def existing_run(run: Path) -> Path:
    """Return the absolute folder of a run to read.

    Raises:
        FileError: there is no such folder.

    """
    candidates = dict.fromkeys((Path.cwd() / run, storage_root() / run))
    for folder in candidates:
        if folder.is_dir():
            return folder
    where = " or ".join(str(folder) for folder in candidates)
    msg = f"{where}: no such folder"
    raise FileError(msg, next_step="name the folder that `bitwitness train` printed")


def audit_folder(run: Path, out: Path | None) -> Path:
    """Return where the next audit of a run goes: absolute, and not there yet.

    Raises:
        ExistsError: `out` is given and holds something.

    """
    if out is not None:
        folder = storage_root() / out
        if folder.exists() and any(folder.iterdir()):
            msg = f"{folder}: the folder is not empty"
            raise ExistsError(msg, next_step="choose another --out: audits are never overwritten")
        return folder
    audits = run.with_name(f"{run.name}.audits")
    taken = {entry.name for entry in audits.iterdir()} if audits.is_dir() else set()
    number = next(n for n in range(1, len(taken) + 2) if f"{n:03}" not in taken)
    return audits / f"{number:03}"


def key_paths(run: Path) -> tuple[Path, Path]:
    """Return where a run's private and public keys lie when none is given."""
    return run.with_name(f"{run.name}.key.pem"), run.with_name(f"{run.name}.pub.pem")


def audit_key_paths(out: Path) -> tuple[Path, Path]:
    """Return where an auditor's private and public keys lie when none is given."""
    return out.parent / "key.pem", out.parent / "pub.pem"


def signing_key(given: Path | None, private: Path, public: Path) -> Path:
    """Return the file of a usable key: the given one, or `private`, made there if missing.

    Raises:
        FileError: `given` is missing, or no Ed25519 key.
        transcript.errors.MalformedError: the file holds no usable key.

    """
    if given is not None:
        if not given.is_file():
            msg = f"{given}: no such key"
            raise FileError(msg, next_step="make one with `bitwitness keygen`")
        chosen = given
    elif private.is_file():
        chosen = private
    else:
        new_key_pair(private, public)
        return private
    if PrivateKey.load(chosen).public.algorithm != "ed25519":
        msg = f"{chosen}: not an Ed25519 key, which logs are signed with"
        raise FileError(msg, next_step="make one with `bitwitness keygen`")
    return chosen


def keygen_command(path: Path) -> Outcome:
    """Make a key pair: the private half at `path`, the public one beside it."""
    public = path.with_name(f"{path.name}.pub.pem")
    new_key_pair(path, public)
    document = {"private_key": str(path), "public_key": str(public)}
    return Outcome(document=document, text=f"Private    {path}\nPublic     {public}")


def new_key_pair(private: Path, public: Path) -> None:
    """Make a key pair; the private file is readable by its owner only.

    Raises:
        ExistsError: one of the files is there already; a key is never overwritten.

    """
    for path in (private, public):
        if path.exists():
            msg = f"{path}: there is a key already"
            raise ExistsError(msg, next_step="choose another path: a key is never overwritten")
    private.parent.mkdir(parents=True, exist_ok=True)
    key = PrivateKey.generate()
    key.save(private)
    public.write_text(key.public.pem(), encoding="ascii")
