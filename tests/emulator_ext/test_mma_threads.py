"""The kept threads of the compiled modules: several callers, forked children."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import emulator_ext

_FORK = """
import os
import numpy as np
import emulator_ext

a = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
product = lambda: emulator_ext.gemm(a, a, profile="heal", arch="hopper", threads=4).tobytes()
before = product()
child = os.fork()
if child == 0:
    os._exit(0 if product() == before else 1)
assert os.waitpid(child, 0)[1] == 0
assert product() == before
"""


def test_callers_at_the_same_time_get_the_bits_of_one() -> None:
    """Products that share the kept threads have the bits of one thread alone."""
    a = np.random.default_rng(1).standard_normal((160, 160)).astype(np.float32)
    expected = emulator_ext.gemm(a, a, profile="bf16", arch="hopper", threads=1).tobytes()

    def product(_: int) -> bytes:
        return emulator_ext.gemm(a, a, profile="bf16", arch="hopper", threads=3).tobytes()

    with ThreadPoolExecutor(4) as callers:
        assert set(callers.map(product, range(24))) == {expected}


def test_a_forked_child_starts_threads_of_its_own() -> None:
    """A child forked after a threaded product computes it again, and so does its parent."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORK]
    subprocess.run(command, check=True, timeout=60)
