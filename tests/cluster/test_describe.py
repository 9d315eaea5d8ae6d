"""What `inspect` and `verify` say of a generation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cluster.describe import describe_run
from cluster.verify import verify_command
from tests.verifier import runs
from tests.verifier.generations import PROMPT, STEPS, make
from transcript.run import RunFolder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the tiny run; not to be changed."""
    return runs.train(tmp_path_factory.mktemp("trained") / "run", runs.config())


@pytest.fixture(scope="module")
def generation(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a generation of it; not to be changed."""
    return make(trained, tmp_path_factory.mktemp("made") / "generation")


def test_inspect_shows_what_it_is(trained: Path, generation: Path) -> None:
    """Kind, training run, prompt and text stand there; of a training run, its losses."""
    run_id = describe_run(trained).document["run_id"]
    outcome = describe_run(generation)
    document = outcome.document
    assert (document["kind"], document["trained"]) == ("generation", run_id)
    assert (document["logged"], document["steps"]) == (STEPS, STEPS)
    assert bytes.fromhex(document["text_hex"]) == RunFolder(generation).text.read_bytes()
    lines = outcome.text.splitlines()
    assert lines[0].startswith(f"Generation {document['run_id']}")
    assert f'Prompt     "{PROMPT.decode()}"' in lines
    assert f"Weights    of run {run_id}, commitment " in outcome.text
    assert not [line for line in lines if line.startswith("Loss")]
    assert describe_run(trained).text.startswith("Run        ")


def test_inspect_is_safe_on_a_terminal(generation: Path, tmp_path: Path) -> None:
    """Control sequences, line breaks and changes of direction in a text stay one visible line."""
    folder = RunFolder(Path(shutil.copytree(generation, tmp_path / "copy")))
    folder.text.write_bytes(PROMPT + b"\x1b[2J\n\xff" + "\u202e\x07".encode())
    outcome = describe_run(folder.root)
    assert outcome.text.isascii()
    assert '\nText       "\\x1b[2J\\n\\xff\\u202e\\x07"\n' in outcome.text


def test_inspect_of_an_unfinished_one(generation: Path, tmp_path: Path) -> None:
    """Without text and commitment it says so."""
    folder = RunFolder(Path(shutil.copytree(generation, tmp_path / "copy")))
    folder.text.unlink()
    folder.commitment.unlink()
    lines = describe_run(folder.root).text.splitlines()
    assert "Text       none yet" in lines
    assert "Committed  not yet: the generation did not finish" in lines


def test_verify_tells_a_generation(trained: Path, generation: Path) -> None:
    """Its statements say that they are a generation's, and whose weights it names."""
    folder, run_id = RunFolder(generation), describe_run(trained).document["run_id"]
    outcome = verify_command([folder.registration, folder.commitment], None, None)
    assert outcome.exit_code == 0
    made = describe_run(generation).document["run_id"]
    for kind in ("registration", "commitment"):
        assert f"Good       {kind} of generation {made}, " in outcome.text
    assert f"weights    of run {run_id}, commitment " in outcome.text
    assert "text/output.bin" in outcome.text
    assert (
        "registration of run " in verify_command([RunFolder(trained).registration], None, None).text
    )
