from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.ray_session import RaySession, ray_session

pytestmark = pytest.mark.ray


def listeners(root: int) -> set[str]:
    """Return the local addresses that the TCP sockets of a process's children listen on."""
    import psutil

    found = set()
    for process in psutil.Process(root).children(recursive=True):
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.add(connection.laddr.ip)
    return found


def test_private_ray_is_private(local_ray: RaySession) -> None:
    """A private Ray listens on the loopback interface only and demands a token."""
    assert local_ray.owned
    assert listeners(os.getpid()) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_session_inside_a_session_joins_it(local_ray: RaySession) -> None:
    """What is already connected is used, and left connected."""
    import ray

    with ray_session() as inner:
        assert not inner.owned
    assert ray.is_initialized()


SCRIPT = """
import os, sys
from cluster.ray_session import ray_session
try:
    with ray_session(sys.argv[1] or None) as session:
        print("connected", session.owned)
except Exception as error:
    print(type(error).__name__, error.code, error, "|", error.next_step)
"""


def connect(address: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, address],
        env={**os.environ, "RAY_ADDRESS": "", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_nobody_at_the_address() -> None:
    """An address where nothing listens is refused in seconds, in one line, with what to do."""
    answer = connect("127.0.0.1:9")
    assert answer.startswith("RayError E_RAY no Ray cluster answers at 127.0.0.1:9")
    assert "leave the address out" in answer


def test_job_address_is_told_apart() -> None:
    """The address of the job API, also in RAY_ADDRESS, is answered with how to submit a job."""
    for answer in (connect("http://127.0.0.1:8265"), connect("", RAY_ADDRESS="http://h:8265")):
        assert "no address of a Ray node" in answer
        assert "ray job submit" in answer


def test_private_ray_leaves_nothing_behind(tmp_path: Path) -> None:
    """A private Ray ends with its session: no output, no process, no files, no token at home."""
    script = SCRIPT.replace('print("connected', 'print(session.logs, "connected')
    done = subprocess.run(
        [sys.executable, "-c", script, "local"],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr.rstrip().endswith("connected True")
    logs = Path(done.stderr.split()[0])
    assert "bw-" in str(logs)
    assert not logs.parents[1].exists()
    assert list(tmp_path.iterdir()) == []
