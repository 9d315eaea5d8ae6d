"""`python -m benchmarks.gpu`: all GPU benchmarks, in one run on one machine.

A part that fails is reported, and the rest goes on. Exit codes: 0, 1 something failed, 3 no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks.gpu import hashing, products, step
from benchmarks.gpu.timing import DeviceLostError, Report
from trainer.kernels import Runtime, require
from trainer.kernels.errors import EnvironmentMissingError
from trainer.kernels.register import architecture
from trainer.kernels.tiles import WGMMA_CAPABILITY

DEFAULT_SECONDS = 300
PARTS = ("products", "step", "hashing")


def main(arguments: Sequence[str] | None = None) -> int:
    """Say what the GPU is, then run each benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description="Measure on the GPU.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="after these nothing is begun"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    report = Report(deadline=time.monotonic() + options.seconds)
    try:
        rt = require()
        arch = architecture(torch.cuda.current_device())
    except EnvironmentMissingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    report.say(f"{torch.cuda.get_device_name()}, arch {arch}, torch {torch.__version__}\n")
    return measure(rt, arch, report, options.parts or PARTS)


def measure(rt: Runtime, arch: str, report: Report, parts: Sequence[str]) -> int:
    """Run the named parts; return the exit code.

    All by mma first: a fault of Hopper's own kernels might leave nothing of the device to others.
    """
    speeds: dict[products.Shape, products.Speeds] = {}
    runs: list[tuple[str, Callable[[], object]]] = [
        ("products", partial(products.main, rt, report, "mma", speeds)),
        ("step", partial(step.main, rt, arch, report, "mma")),
        ("hashing", partial(hashing.main, rt, report)),
    ]
    if rt.device.capability == WGMMA_CAPABILITY:
        runs += [
            ("products", partial(products.main, rt, report, "wgmma", speeds)),
            ("step", partial(step.main, rt, arch, report, "wgmma")),
        ]
    try:
        for part, run in runs:
            if part in parts:
                report.attempt(part, run)
    except DeviceLostError:
        report.say("the device is lost; nothing more was measured")
    products.fastest(report, speeds)
    if report.left_out:
        report.say(f"left out, time was up: {', '.join(report.left_out)}")
    if report.failed:
        report.say(f"FAILED: {', '.join(report.failed)}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
