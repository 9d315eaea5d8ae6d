from __future__ import annotations

import http.client
import time

import pytest

from cluster.gauges import StepGauges
from cluster.ray_session import RaySession

pytestmark = pytest.mark.ray

PATIENCE_S = 30.0


def metrics() -> str:
    """Read what Prometheus would from the node's endpoint."""
    import ray

    (node,) = ray.nodes()
    connection = http.client.HTTPConnection("127.0.0.1", node["MetricsExportPort"], timeout=5)
    try:
        connection.request("GET", "/metrics")
        with connection.getresponse() as answer:
            return answer.read().decode()
    finally:
        connection.close()


def test_gauges_reach_prometheus(local_ray: RaySession) -> None:
    """Loss, step, seconds and faults of a run stand at Ray's metrics endpoint, by run."""
    StepGauges("gauged").show(12, 3.5, 0.25, 2)
    expected = {"ray_bitwitness_step": 12.0, "ray_bitwitness_loss": 3.5}
    expected |= {"ray_bitwitness_step_seconds": 0.25, "ray_bitwitness_faults": 2.0}
    deadline = time.monotonic() + PATIENCE_S
    found: dict[str, float] = {}
    while found != expected and time.monotonic() < deadline:
        time.sleep(0.5)
        lines = [line for line in metrics().splitlines() if 'run="gauged"' in line]
        found = {line.split("{")[0]: float(line.split()[-1]) for line in lines}
    assert found == expected
