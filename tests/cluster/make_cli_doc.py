"""Write docs/cli.md from the help texts: python -m tests.cluster.make_cli_doc."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
COMMANDS = (
    "train",
    "audit",
    "reveal",
    "report",
    "verify",
    "inspect",
    "keygen",
    "generate",
    "probe",
)

HEAD = """# The command line

Progress goes to standard error: a bar on a terminal, a line every few seconds elsewhere. The
result goes to standard output, as text, or as one JSON object with `--json`.

Exit codes: 0 verified or done; 1 a verification failed; 2 bad input or usage; 3 environment
(Ray, disk, device, an interrupt). An error is one line on standard error,
`bitwitness: CODE: what is wrong; what to do next`, whose code is stable; with `--json` it also
stands on standard output. `python -m cluster.train` and `python -m cluster.audit` are the
commands `train` and `audit` for Ray jobs: see cluster.md.

This page is written by `python -m tests.cluster.make_cli_doc`, and a test compares it with what
`--help` says.
"""


@cache
def help_text(*command: str) -> str:
    """Return what `bitwitness COMMAND --help` prints on a terminal of 80 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "cluster.cli", *command, "--help"],
        env={**os.environ, "COLUMNS": "80", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def block(*command: str) -> str:
    """Return the help text as the fenced block that documents show."""
    line = " ".join(("$ bitwitness", *command, "--help"))
    return f"```text\n{line}\n{help_text(*command).rstrip()}\n```\n"


def document() -> str:
    """Return docs/cli.md."""
    parts = [HEAD, block()]
    parts += [f"## {command}\n\n{block(command)}" for command in COMMANDS]
    return "\n".join(parts)


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="ascii")
