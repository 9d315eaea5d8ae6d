"""One more Ray node on this machine: `python -m tests.cluster.ray_node GCS_ADDRESS CPUS`.

`ray start` refuses a second node on the loopback interface. Ray's own tests of clusters make theirs
like this (ray.cluster_utils), so a test can have several nodes that nobody else can reach.
"""

from __future__ import annotations

import signal
import sys

import ray._private.node
import ray._private.parameter


def main(address: str, cpus: str) -> None:
    """Join the cluster, say so, and stay until a signal comes."""
    parameters = ray._private.parameter.RayParams(
        gcs_address=address,
        node_ip_address="127.0.0.1",
        num_cpus=int(cpus),
        num_gpus=0,
        object_store_memory=100_000_000,
        node_manager_port=0,
        min_worker_port=0,
        max_worker_port=0,
        dashboard_agent_listen_port=0,
        include_log_monitor=False,
    )
    ray._private.node.Node(parameters, head=False, shutdown_at_exit=True, spawn_reaper=True)
    print("joined", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
