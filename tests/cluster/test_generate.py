"""`bitwitness generate` on a device that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import trainer.kernels
from cluster.cli import run
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
