from __future__ import annotations

import errno
import importlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import border
from cluster.border import Outcome
from cluster.errors import ClusterError, ExistsError

ERROR_MODULES = (
    "cluster",
    "trainer",
    "transcript",
    "verifier",
    "emulator_ext",
    "trainer.kernels",
    "emulator_ext.probe",
)


def raises(error: BaseException) -> Outcome:
    raise error


def run(error: BaseException, *, as_json: bool = False, debug: bool = False) -> int:
    return border.run(lambda: raises(error), as_json=as_json, debug=debug)


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def all_error_types() -> list[type[Exception]]:
    bases = []
    for name in ERROR_MODULES:
        module = importlib.import_module(f"{name}.errors")
        bases += [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, Exception)
            and value.__module__ == module.__name__
            and "code" in vars(value)
        ]
    return bases


@pytest.mark.parametrize("kind", all_error_types(), ids=lambda kind: kind.__name__)
def test_every_error_of_ours_is_expected(
    kind: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each error class of each package ends as one line with its stable code and a known exit."""
    exit_code = run(kind("what is wrong"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"bitwitness: {kind.code}: what is wrong")
    assert captured.err.count("\n") == 1
    assert exit_code in {1, 2, 3}


def test_codes_are_unique() -> None:
    """No two error classes share a code, so a code says what happened."""
    codes = [kind.code for kind in all_error_types()]
    assert len(codes) == len(set(codes))


def test_every_code_in_the_tables_exists() -> None:
    """The border's tables name only codes that some error class has."""
    known = {kind.code for kind in all_error_types()}
    assert (border._EXITS.keys() | border._NEXT_STEPS.keys()) <= known


@pytest.mark.parametrize(
    ("error", "exit_code", "part"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.yaml"), 2, "a.yaml: No"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 3, "free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 3, "check permissions"),
        (KeyboardInterrupt(), 3, "E_INTERRUPTED"),
        (MemoryError(), 3, "E_MEMORY"),
        (ConnectionRefusedError("refused"), 3, "refused"),
    ],
)
def test_system_errors_are_expected(
    error: BaseException, exit_code: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the system refuses is one line without a traceback."""
    assert run(error) == exit_code
    captured = capsys.readouterr()
    assert part in captured.err
    assert captured.err.count("\n") == 1


def test_bug_leaves_its_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception that nobody expected is one line that names the file with its traceback."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(ZeroDivisionError("nobody expects this")) == 3
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    (file,) = tmp_path.iterdir()
    assert str(file) in captured.err
    assert "ZeroDivisionError: nobody expects this" in file.read_text()


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """With --debug the traceback of any error comes before its line."""
    run(ExistsError("there already"), debug=True)
    captured = capsys.readouterr()
    assert "Traceback" in captured.err
    assert captured.err.splitlines()[-1] == "bitwitness: E_EXISTS: there already"


def test_hostile_text_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Line breaks, escape sequences and length in a message cannot forge or flood the output."""
    run(ClusterError("a\n\x1b[2Jb" + "c" * 10_000))
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "\x1b" not in captured.err
    assert len(captured.err) < 1100


def test_json_names_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json a program finds code, message, next step and exit code on standard output."""
    assert run(ExistsError("there", next_step="go elsewhere"), as_json=True) == 2
    assert json.loads(capsys.readouterr().out) == {
        "error": {"code": "E_EXISTS", "message": "there", "next_step": "go elsewhere"},
        "exit_code": 2,
    }


def test_outcome_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A result goes to standard output, as text or as JSON, with the exit code of its command."""
    outcome = Outcome(document={"a": 1}, text="A is 1", exit_code=1)
    assert border.run(lambda: outcome, as_json=False, debug=False) == 1
    assert capsys.readouterr().out == "A is 1\n"
    assert border.run(lambda: outcome, as_json=True, debug=False) == 1
    assert json.loads(capsys.readouterr().out) == {"a": 1}


@pytest.mark.parametrize("kind", [ClusterError, *subclasses(ClusterError)])
def test_error_crosses_processes(kind: type[ClusterError]) -> None:
    """Message and next step survive pickling, as they must on their way through Ray."""
    error = pickle.loads(pickle.dumps(kind("what", next_step="then")))  # noqa: S301  # our own
    assert (type(error), error.message, error.next_step) == (kind, "what", "then")


def test_closed_pipe_is_quiet(tmp_path: Path) -> None:
    """`bitwitness ... | head -0` ends without a traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cluster.cli", "keygen", str(tmp_path / "key"), "--json"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (3, "")
