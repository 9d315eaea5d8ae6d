from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import pool
from cluster.audit import AuditRequest, Workers, audit_command
from cluster.errors import ActorLostError, UsageError
from cluster.pool import Mapper
from cluster.ray_session import RaySession
from cluster.train import TrainResult
from verifier.errors import BudgetError, OptionError

pytestmark = pytest.mark.ray


def square(number: int) -> int:
    return number * number


def fail(number: int) -> int:
    raise OptionError(f"task {number}")


def end_once(mark: Path) -> int:
    """End the worker's process at the first call, answer at the second."""
    if mark.exists():
        return os.getpid()
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def end_always(_: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@contextlib.contextmanager
def inline() -> Iterator[Mapper]:
    yield pool.inline


POOLS = {
    "inline": inline,
    "processes": lambda: pool.processes(2, 1),
    "ray": lambda: pool.ray_actors(2, 1),
}


@pytest.mark.parametrize("name", POOLS)
def test_mapper_applies_to_every_task(local_ray: RaySession, name: str) -> None:
    """Whoever does the work, each task has one result, and errors come back as they were."""
    with POOLS[name]() as mapper:
        assert sorted(mapper(square, range(20))) == [n * n for n in range(20)]
        assert list(mapper(square, [])) == []
        with pytest.raises(OptionError, match="task 3"):
            list(mapper(fail, [3]))


def test_lost_verifier_is_replaced(local_ray: RaySession, tmp_path: Path) -> None:
    """A task whose actor dies is given to another; one that ends every actor is an error."""
    with pool.ray_actors(1, 1) as mapper:
        assert len(list(mapper(end_once, [tmp_path / "mark"]))) == 1
        with pytest.raises(ActorLostError, match="a verifier actor died"):
            list(mapper(end_always, [0]))


def test_lost_process_is_an_error() -> None:
    """Without Ray, a worker that dies ends the audit with one line."""
    with pool.processes(1, 1) as mapper, pytest.raises(ActorLostError, match="process died"):
        list(mapper(end_always, [0]))


@pytest.mark.parametrize("workers", [Workers(count=2), Workers(ray=False)], ids=["actors", "alone"])
def test_audit_passes(
    local_ray: RaySession, trained: TrainResult, tmp_path: Path, workers: Workers
) -> None:
    """An honest run passes an audit by actors and in one process, with all files written."""
    out = tmp_path / "audit"
    outcome = audit_command(
        AuditRequest(
            run=trained.folder, steps=3, nonce="00" * 32, beacon_hex="ab", out=out, workers=workers
        )
    )
    assert outcome.exit_code == 0
    document = json.loads(json.dumps(outcome.document))
    assert (document["verdict"], document["sampled"], document["faults"]) == ("PASS", 3, [])
    for name in ("result", "report"):
        assert Path(document[name]).parent == out
        assert Path(document[name]).stat().st_size > 0
        assert document[name] in outcome.text
    assert outcome.text.startswith("Verdict    PASS")


def test_failed_audit_exits_with_one(trained: TrainResult, tmp_path: Path) -> None:
    """A run whose weights were swapped fails, with exit code 1 and the fault in the summary."""
    import shutil

    run = tmp_path / "run"
    shutil.copytree(trained.folder, run)
    weights = run / "weights" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    outcome = audit_command(AuditRequest(run=run, steps=2, workers=Workers(ray=False)))
    assert outcome.exit_code == 1
    assert outcome.document["verdict"] == "FAIL"
    assert "weights" in " ".join(outcome.document["faults"])
    assert "Fault      " in outcome.text


def test_options_are_checked(trained: TrainResult, tmp_path: Path) -> None:
    """Two beacons, a nonce that is none, and too small a budget are refused before any work."""
    beacon = tmp_path / "beacon"
    beacon.write_bytes(b"dice")
    run = trained.folder
    with pytest.raises(UsageError, match="exclude each other"):
        audit_command(AuditRequest(run=run, beacon=beacon, beacon_hex="ab"))
    with pytest.raises(OptionError):
        audit_command(AuditRequest(run=run, nonce="xyz"))
    with pytest.raises(BudgetError):
        audit_command(AuditRequest(run=run, budget=1e-9, workers=Workers(ray=False)))
