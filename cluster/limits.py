"""A worker's share of the cores, for the libraries that look at the environment."""

from __future__ import annotations

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def thread_limits(threads: int) -> dict[str, str]:
    """Return the environment that limits a process to so many threads a library."""
    return dict.fromkeys(_VARIABLES, str(threads))
