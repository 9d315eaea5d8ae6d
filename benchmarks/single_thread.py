"""Runs a measurement in a child process whose BLAS has one thread and its best kernels.

Some machines name an old OpenBLAS kernel in the environment; a current NumPy is slower with it.
"""

from __future__ import annotations

import os
import subprocess
import sys

_SLOWING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def measure(module: str) -> None:
    """Call `module._measure()` there; what it prints comes after what was printed here."""
    environment = {k: v for k, v in os.environ.items() if k not in _SLOWING}
    environment.update(dict.fromkeys(_ONE_THREAD, "1"))
    sys.stdout.flush()
    call = f"import importlib; importlib.import_module({module!r})._measure()"
    subprocess.run([sys.executable, "-c", call], env=environment, check=True)
