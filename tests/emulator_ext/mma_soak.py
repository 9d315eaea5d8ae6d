"""A long differential run against MMA-Sim: `python -m tests.emulator_ext.mma_soak`.

Half of the elements are single chains, half are products on every path of this processor. Logs
its seed and, from time to time, how many element results agreed; the first difference ends it
with an error. One hundred million elements take some ten minutes on one core.
"""

from __future__ import annotations

import argparse
import secrets

import numpy as np

from tests.emulator_ext import mma_mmasim
from tests.emulator_ext.mma_mmasim import CASES

SHARE = 2_000
SHAPE = (40, 50)


def main() -> None:
    """Compare random elements of every instruction in turn until the count is reached."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--elements", type=int, default=100_000_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(63))
    arguments = parser.parse_args()
    print(f"soak: seed {arguments.seed}, {arguments.elements} elements", flush=True)
    nv_ptx = mma_mmasim.load()
    rng = np.random.default_rng(arguments.seed)
    total = 0
    while total < arguments.elements:
        for case in CASES:
            total += mma_mmasim.compare(nv_ptx, case, rng, SHARE)
            total += mma_mmasim.compare_products(nv_ptx, case, rng, *SHAPE)
        print(f"soak: {total} elements agree", flush=True)


if __name__ == "__main__":
    main()
