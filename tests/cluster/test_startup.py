"""Commands that third parties run wait for nothing that they do not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What takes seconds to import, or is there for training, replaying and reports only.
HEAVY = {"torch", "ray", "zarr", "jinja2", "mpmath", "py_ecc", "safetensors"}


@pytest.mark.parametrize(
    "arguments",
    [["keygen", "PATH"], ["inspect", "RUN"], ["verify", "FILE"], ["verify", "--help"]],
    ids=" ".join,
)
def test_quick_commands_import_nothing_heavy(arguments: list[str], tmp_path) -> None:
    """keygen, inspect and verify begin without torch, Ray and the store."""
    given = [arguments[0], *(str(tmp_path / "x") if a.isupper() else a for a in arguments[1:])]
    script = (
        "import sys; from cluster import cli\n"
        f"cli.run({given!r})\n"
        f"print(sorted({HEAVY} & {{*sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
