"""`python -m benchmarks.gpu`: all GPU benchmarks, in one run on one machine."""

from __future__ import annotations

import sys

import torch

from benchmarks.gpu import hashing, products, step
from trainer.kernels import require
from trainer.kernels.errors import EnvironmentMissingError
from trainer.kernels.register import architecture


def main() -> int:
    """Say what the GPU is, then run each benchmark; 3 if there is none."""
    try:
        rt = require()
        arch = architecture(torch.cuda.current_device())
    except EnvironmentMissingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    print(f"{torch.cuda.get_device_name()}, arch {arch}, torch {torch.__version__}\n")
    products.main(rt)
    step.main(rt, arch)
    hashing.main(rt)
    return 0


if __name__ == "__main__":
    sys.exit(main())
