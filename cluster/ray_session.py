"""One connection to Ray: a cluster that is there, or a private one for as long as it is needed.

A private Ray listens on the loopback interface only, demands a random token of whoever
connects, keeps its files in a folder of its own that goes away with it, and sends no usage
statistics. Only what was started here is shut down here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cluster.errors import ActorLostError, RayError

CONNECT_TIMEOUT_S: Final = 5.0
# The arenas of a demo step are kilobytes to megabytes; Ray's default is 30 % of memory.
OBJECT_STORE_BYTES: Final = 256 << 20
# Ray's sockets live below this folder and AF_UNIX paths end at 107 bytes.
_TEMP_ROOT: Final = "/tmp"  # noqa: S108  # mkdtemp makes an unguessable folder, mode 0700

_JOB_NEXT = "submit a job instead: ray job submit --working-dir . -- python -m cluster.train CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySession:
    """A live connection.

    Attributes:
        address: what was connected to, or `local`.
        owned: whether this process started the cluster.
        logs: folder of the private cluster's logs, or empty.

    """

    address: str
    owned: bool
    logs: str


@contextmanager
def ray_session(address: str | None = None, *, cpus: int | None = None) -> Iterator[RaySession]:
    """Connect to `address`, else to RAY_ADDRESS, else to a private cluster of `cpus` CPUs.

    Raises:
        RayError: nothing answers there, or a private cluster does not start.

    """
    wanted = address or os.environ.get("RAY_ADDRESS", "")
    # Ray prints to standard output, which belongs to our result.
    with contextlib.redirect_stdout(sys.stderr):
        if _already_connected():
            yield RaySession(address=wanted or "local", owned=False, logs="")
        elif wanted and wanted != "local":
            yield from _existing(wanted)
        else:
            yield from _private(cpus or os.cpu_count() or 1)


def in_job() -> bool:
    """Whether this process is the entry point of a job submitted to a Ray cluster."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def _already_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _existing(address: str) -> Iterator[RaySession]:
    _check_reachable(address)
    try:
        _init(address=address)
        with _terminable():
            yield RaySession(address=address, owned=False, logs="")
    finally:
        _shutdown()


def _private(cpus: int) -> Iterator[RaySession]:
    folder = Path(tempfile.mkdtemp(prefix="bw-", dir=_TEMP_ROOT))
    logs = folder / "session_latest" / "logs"
    if "ray" not in sys.modules:
        # Ray reads them once, at import, so they stay for the life of this process. With a
        # Ray that somebody else imported, its own defaults hold.
        for name, value in _private_environment().items():
            os.environ.setdefault(name, value)
    evidence = False
    try:
        _init(
            address="local",
            include_dashboard=False,
            num_cpus=cpus,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=str(folder),
        )
        with _terminable():
            yield RaySession(address="local", owned=True, logs=str(logs))
    except (RayError, ActorLostError) as error:
        evidence = True
        error.next_step = error.next_step or f"Ray's logs are in {logs}"
        raise
    finally:
        _shutdown()
        if not evidence:
            shutil.rmtree(folder, ignore_errors=True)


def _private_environment() -> dict[str, str]:
    """Return what Ray reads when it is imported and when its processes start."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default, which it warns about
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name: use the loopback address
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


def _init(**options: Any) -> None:
    with _deferred_interrupt():
        _start(**options)


def _start(**options: Any) -> None:
    import ray

    # What goes wrong comes back as an exception; Ray also logs it, at length.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(configure_logging=False, log_to_driver=False, **options)
        # Ray's own switch (its debugger uses it) for what it prints of dead workers, who
        # come back as errors here.
        vars(ray._private.worker)["_worker_logs_enabled"] = False
    except (RuntimeError, OSError, ValueError, ray.exceptions.RayError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        msg = f"Ray at {options['address']}: {first}"
        raise RayError(msg) from error


@contextlib.contextmanager
def _handling(number: signal.Signals, handler: Callable[..., None]) -> Iterator[None]:
    """Handle a signal inside the block, where that is possible: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before or signal.SIG_DFL)


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Keep Ctrl-C for the end of the block.

    An interrupt inside Ray's start would leave its processes behind, and inside an import,
    while another thread imports too, would leave that thread waiting for ever.
    """
    seen: list[object] = []
    with _handling(signal.SIGINT, lambda *_: seen.append(_)):
        yield
    if seen:
        raise KeyboardInterrupt


def _terminable() -> contextlib.AbstractContextManager[None]:
    """Make SIGTERM, which `ray job stop` sends, end the block like Ctrl-C.

    Ray's own handler would abort the process with a stack trace.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    return _handling(signal.SIGTERM, interrupt)


def _shutdown() -> None:
    """Disconnect, or end the private cluster.

    References to objects must go before: the frames of an exception on its way out hold some,
    and freeing them afterwards can crash the interpreter when it ends.
    """
    import ray

    error = sys.exc_info()[1]
    if error is not None:
        traceback.clear_frames(error.__traceback__)
    ray.shutdown()


def _check_reachable(address: str) -> None:
    """Fail in seconds and in one line where Ray itself would retry for a minute."""
    if "://" in address:
        msg = f"{address} is no address of a Ray node (host:port or auto)"
        raise RayError(msg, next_step=_JOB_NEXT)
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S):
            return
    except (OSError, ValueError) as error:
        msg = f"no Ray cluster answers at {address}: {error}"
        raise RayError(msg, next_step="start one, or leave the address out") from None
