"""The folder layout is the dependency order."""

from pathlib import Path

from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent


def test_no_import_runs_back_up() -> None:
    """A package imports only packages below it."""
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0
