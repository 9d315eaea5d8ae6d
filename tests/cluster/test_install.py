"""The code runs from wherever it is put: an uploaded copy, or an ordinary install."""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("cluster", "emulator_ext", "trainer", "transcript", "verifier")
COMPILED = tuple(
    sorted(m.name for m in pkgutil.iter_modules() if m.name.startswith("_bitwitness_"))
)

WHERE = f"""
import importlib, json
names = {PACKAGES + COMPILED}
print(json.dumps({{name: importlib.import_module(name).__file__ for name in names}}))
"""


def python(folder: Path, *arguments: str, path: Path | None = None) -> str:
    """Run Python in a folder, with `path` before the installed packages, and return its output."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_uploaded_copy_shadows_the_checkout(tmp_path: Path) -> None:
    """In a folder with git's Python files those run, against the installed compiled modules."""
    assert len(COMPILED) >= 2
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    assert "Usage: python -m cluster.train" in python(tmp_path, "-m", "cluster.train", "--help")
    where = json.loads(python(tmp_path, "-c", WHERE))
    for name in PACKAGES:
        assert Path(where[name]).is_relative_to(tmp_path)
    for name in COMPILED:
        assert not Path(where[name]).is_relative_to(tmp_path)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel of this checkout; its compiled modules are those installed here.

    Compiling them again would take minutes and show nothing new: `make install` did it.
    """
    wheels = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--no-build-isolation", "-C", "wheel.cmake=false",
            "-C", f"build-dir={wheels / 'build'}", "--wheel-dir", str(wheels), str(ROOT),
        ],
        check=True,
        timeout=300,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = wheels.glob("bitwitness-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for name in COMPILED:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        shutil.copy2(spec.origin, folder)
    return folder


TRAIN = """
import sys
from pathlib import Path
from cluster.config import load_job
from trainer.commit import Committer
from trainer.prepare import prepare_run
from trainer.rank import RankTrainer
from transcript.keys import PrivateKey
from transcript.run import RunFolder

config, run, key = load_job(Path(sys.argv[1])).run, RunFolder(Path("run")), PrivateKey.generate()
prepare_run(config, run, key)
rank, committer = RankTrainer(config, run), Committer(config, run, key)
for _ in range(config.train.steps):
    committer.append([rank.run_step()])
committer.finish()
"""


def test_ordinary_install_is_complete(installed: Path, tmp_path: Path) -> None:
    """From the wheel's files alone a run is trained, audited and reported on."""
    where = json.loads(python(tmp_path, "-c", WHERE, path=installed))
    # An editable install's import hook finds its compiled modules wherever it is asked.
    assert all(Path(where[name]).is_relative_to(installed) for name in PACKAGES)
    python(tmp_path, "-c", TRAIN, str(ROOT / "configs" / "test.yaml"), path=installed)
    arguments = ("-m", "cluster.cli", "audit", "run", "--no-ray", "--json")
    audited = json.loads(python(tmp_path, *arguments, path=installed))
    assert audited["verdict"] == "PASS"
    assert Path(audited["report"]).stat().st_size > 0


def test_command_is_declared(installed: Path) -> None:
    """The wheel installs the command `bitwitness`."""
    (points,) = installed.glob("bitwitness-*.dist-info/entry_points.txt")
    assert "bitwitness = cluster.cli:main" in points.read_text().replace("=", " = ").replace(
        "  ", " "
    )
