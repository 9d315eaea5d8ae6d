"""`bitwitness generate`: what it says next, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import trainer.kernels
from cluster.cli import run
from cluster.places import key_paths
from tests.verifier import runs


def test_a_missing_gpu_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--device cuda` without CuPy ends with exit code 3, one line, and nothing written."""
    trained = runs.train(tmp_path / "run", runs.config())
    key, out = tmp_path / "key.pem", tmp_path / "generation"
    runs.KEY.save(key)
    monkeypatch.setitem(sys.modules, "cupy", None)
    trainer.kernels.runtime.cache_clear()
    options = ["--prompt", "de", "--key", str(key), "--out", str(out), "--tokens=3"]
    assert run(["generate", str(trained), *options, "--device", "cuda"]) == 3
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("bitwitness: E_NO_GPU: device cuda: CuPy is missing")
    assert sum("bitwitness:" in line for line in error) == 1
    assert not out.exists()
    assert run(["generate", str(trained), *options, "--device", "emulated"]) == 0


def test_what_comes_next_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that `generate` names finds run and key wherever the text lies, and passes."""
    trained = runs.train(tmp_path / "run", runs.config())
    private, public = key_paths(trained)
    runs.KEY.save(private)
    public.write_text(runs.KEY.public.pem(), encoding="ascii")
    for where in ([], ["--out", str(tmp_path / "text")]):
        assert run(["generate", str(trained), "--prompt", "de", "--tokens=3", *where]) == 0
        said = capsys.readouterr().out.splitlines()[-1]
        assert said.startswith("Next       bitwitness audit ")
        assert ("--run" in said, "--trust" in said) == (bool(where), True)
        assert run([*said.split()[2:], "--no-ray", "--steps", "2"]) == 0


def test_a_text_that_does_not_fit_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too much for the model's window is refused with what would fit, and nothing is written."""
    trained = runs.train(tmp_path / "run", runs.config())
    runs.KEY.save(key_paths(trained)[0])
    assert run(["generate", str(trained), "--prompt", "de", "--tokens=16"]) == 2
    [error] = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("bitwitness: E_USAGE: generation: 2 bytes of prompt and 16 to generate")
    assert "which takes 17 together" in error
    assert not (trained / "generations").exists()
