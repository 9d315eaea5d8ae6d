"""Jobs submitted to a real Ray head, as docs/cluster.md says."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.ray_head import RayHead, ray_head

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def uploaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what git tracks, and what it will: that is what a job's working directory holds."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    folder = tmp_path_factory.mktemp("uploaded")
    for name in listed.stdout.splitlines():
        if name.endswith((".py", ".yaml", ".j2", ".html", ".css", ".rayignore", ".gitignore")):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy2(ROOT / name, target)
    return folder


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """Give a head node whose jobs keep their runs in a temporary folder."""
    storage = tmp_path_factory.mktemp("storage")
    with ray_head(3, BITWITNESS_STORAGE=str(storage)) as head:
        yield head


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """Parse the JSON object that a job printed among the log lines of `ray job submit`."""
    assert done.returncode == 0, done.stdout + done.stderr
    start = done.stdout.index("\n{\n") + 1
    document: dict[str, object] = json.JSONDecoder().raw_decode(done.stdout[start:])[0]
    return document


def test_train_and_audit_as_jobs(head: RayHead, uploaded: Path) -> None:
    """Train and audit run as jobs from an uploaded folder, and their results outlive it."""
    storage = Path(head.environment["BITWITNESS_STORAGE"])
    done = head.submit(uploaded, "python", "-m", "cluster.train", "configs/test.yaml", "--json")
    trained = result_of(done)
    assert trained["run"] == str(storage / "runs" / "test")
    assert "train 4/4  loss" in done.stdout
    done = head.submit(
        uploaded, "python", "-m", "cluster.audit", "runs/test", "--steps=3", "--json"
    )
    audited = result_of(done)
    assert (audited["verdict"], audited["sampled"]) == ("PASS", 3)
    assert Path(str(audited["report"])).parent == storage / "runs" / "test.audits" / "001"
    for name in ("result", "report"):
        assert Path(str(audited[name])).stat().st_size > 0
    assert "Traceback" not in done.stdout


def test_head_listens_on_loopback_only(head: RayHead) -> None:
    """No process of the head can be reached from another machine."""
    for process in psutil.Process(head.process.pid).children(recursive=True):
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip in {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
