"""A cluster of several nodes: they share this machine's loopback interface and its disk."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.config import load_job
from tests.cluster.ray_head import RayHead, kill_node, ray_head, ray_node
from tests.cluster.test_train import expected_roots, leaves_of, roots_of, verdict_of
from tests.conftest import tiny_document

pytestmark = pytest.mark.ray

TIMEOUT_S = 120.0
STEPS = 40


class Nodes:
    """A head whose one CPU has room for the commit actor but for no rank beside it, and nodes."""

    def __init__(self, head: RayHead, stack: contextlib.ExitStack) -> None:
        self.head = head
        self._stack = stack
        self._living: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        """Let a node with room for one rank join."""
        self._living.append(self._stack.enter_context(ray_node(self.head, 1)))

    def have(self, count: int) -> None:
        """Make sure that so many are there."""
        while len(self._living) < count:
            self.add()

    def kill(self) -> None:
        """Cut the oldest node's power."""
        kill_node(self._living.pop(0))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Give a cluster that notices a dead node within a second or two."""
    health = {
        "RAY_health_check_initial_delay_ms": "500",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "2",
    }
    with ray_head(1, **health) as head, contextlib.ExitStack() as stack:
        yield Nodes(head, stack)


def write_config(folder: Path, *, placement_timeout: int = 60) -> Path:
    document = tiny_document(
        train={"world": 2, "steps": STEPS}, record={"policy": "every", "every": 5}
    )
    document["cluster"] = {
        "threads_per_rank": 1,
        "restarts": 1,
        "placement_timeout": placement_timeout,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def start_training(head: RayHead, config: Path, run: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cluster.train", str(config), "--json"]
    return subprocess.Popen(
        [*command, "--address", head.address, "--out", str(run)],
        env=head.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_step(driver: subprocess.Popen[str], run: Path, step: int) -> None:
    """Wait until so many steps are in the log."""
    deadline = time.monotonic() + TIMEOUT_S
    log = run / "log" / "leaves.jsonl"
    while not log.exists() or log.read_bytes().count(b"\n") < step:
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.05)


@contextlib.contextmanager
def training(nodes: Nodes, config: Path, run: Path) -> Iterator[subprocess.Popen[str]]:
    """Train on two nodes, of which one dies when some steps are committed."""
    nodes.have(2)
    driver = start_training(nodes.head, config, run)
    try:
        wait_for_step(driver, run, 4)
        nodes.kill()
        yield driver
    finally:
        driver.kill()
        sys.stderr.write(driver.communicate()[1])  # shown with a failure


def test_run_outlives_a_node(nodes: Nodes, tmp_path: Path) -> None:
    """Two ranks on two nodes; one node dies, a third takes its rank, and no root changes."""
    config, run = write_config(tmp_path), tmp_path / "run"
    with training(nodes, config, run) as driver:
        nodes.add()
        out, err = driver.communicate(timeout=TIMEOUT_S)
    assert driver.returncode == 0, err
    assert json.loads(out)["restarts"] == 1
    assert len(leaves_of(run)) == STEPS
    assert roots_of(run) == expected_roots(load_job(config), tmp_path / "plain")
    assert verdict_of(run, tmp_path / "audit") == "PASS"


def test_a_lost_node_without_a_successor_is_named(nodes: Nodes, tmp_path: Path) -> None:
    """Where nothing can take the lost node's place, the run says so in time and in one line."""
    config, run = write_config(tmp_path, placement_timeout=5), tmp_path / "run"
    with training(nodes, config, run) as driver:
        _, err = driver.communicate(timeout=TIMEOUT_S)
    assert driver.returncode == 3
    assert "E_PLACEMENT" in err
    assert "Traceback" not in err
    assert len(leaves_of(run)) >= 4
