"""Ray nodes for tests: child processes, on the loopback interface, ended by their own ids.

`ray stop` is not an option: it ends every Ray on the machine, by name.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHead:
    """A running head node."""

    process: subprocess.Popen[bytes]
    address: str
    jobs: str
    environment: dict[str, str]

    def submit(self, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
        """Run `ray job submit` of a command from a working directory and wait for its end."""
        return subprocess.run(
            [_ray(), "job", "submit", "--address", self.jobs, "--working-dir", ".", "--", *command],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@contextlib.contextmanager
def ray_head(cpus: int, **environment: str) -> Iterator[RayHead]:
    """Start a head node with so many CPUs; end it and all that it started, whatever happens."""
    # Ray's sockets live below it, and AF_UNIX paths end at 107 bytes.
    temp = Path(tempfile.mkdtemp(prefix="bw-head-", dir="/tmp"))
    gcs, dashboard, agent = _free_ports(3)
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        # A job's `python` is the one on the head's PATH: as with an activated environment.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        **environment,
    }
    log = temp / "head.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                _ray(), "start", "--head", "--block", "--node-ip-address=127.0.0.1",
                f"--port={gcs}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
                f"--dashboard-agent-listen-port={agent}", f"--num-cpus={cpus}",
                f"--temp-dir={temp}", "--object-store-memory=200000000", "--disable-usage-stats",
            ],
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    head = RayHead(
        process=process,
        address=f"127.0.0.1:{gcs}",
        jobs=f"http://127.0.0.1:{dashboard}",
        environment=env,
    )
    try:
        _wait_until_up(head, log)
        yield head
    finally:
        _stop(process)
        shutil.rmtree(temp, ignore_errors=True)


@contextlib.contextmanager
def ray_node(head: RayHead, cpus: int) -> Iterator[subprocess.Popen[bytes]]:
    """Let another node join the head, on the same machine; end it, whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.ray_node", head.address, str(cpus)],
        cwd=ROOT,
        env=head.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Ray tells how it drains a node
    )
    try:
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline() == b"joined\n"
        yield process
    finally:
        _stop(process)


def kill_node(process: subprocess.Popen[bytes]) -> None:
    """End a node as a power cut would: all of its processes at once, by their ids."""
    for each in (*psutil.Process(process.pid).children(recursive=True), process):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)
    process.wait()


def _wait_until_up(head: RayHead, log: Path) -> None:
    host = head.jobs.removeprefix("http://")
    headers = {"Authorization": f"Bearer {head.environment['RAY_AUTH_TOKEN']}"}
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert head.process.poll() is None, log.read_text()
        connection = http.client.HTTPConnection(host, timeout=5)
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            contextlib.closing(connection),
        ):
            connection.request("GET", "/api/jobs/", headers=headers)
            with connection.getresponse() as answer:
                if answer.status == 200:
                    return
        time.sleep(0.2)
    raise AssertionError(f"no job API after {START_TIMEOUT_S} s\n{log.read_text()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the head to end; kill what is left of it by the ids it had."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # psutil compares creation times, so an id that was given to somebody else is left alone.
    _, alive = psutil.wait_procs(children, timeout=STOP_TIMEOUT_S)
    for child in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    _, alive = psutil.wait_procs(alive, timeout=STOP_TIMEOUT_S)
    assert not alive, f"still there: {alive}"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _ray() -> str:
    return str(Path(sys.executable).with_name("ray"))
