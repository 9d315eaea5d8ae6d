"""`python -m trainer.kernels.gpu_check`: every kernel on this machine's GPU against its CPU.

Needs CuPy, a GPU and the compiled modules; neither Ray nor Zarr. It compares at least 10^8 outputs
bit for bit, then trains a configuration for a few steps on both devices, with each profile and
with INT16 attention, generates on both, and prints their roots, which must be equal. Exit codes:
0 all equal, 1 a bit differs, 2 bad input, 3 no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
import yaml

from trainer.config import RunConfig
from trainer.errors import ConfigError, TrainerError
from trainer.generate.config import Cache
from trainer.kernels.check_cases import (
    GEMM_SHAPES,
    PROFILES,
    Shape,
    Tally,
    check_leaves,
    check_operators,
    check_products,
    profiles_of,
)
from trainer.kernels.check_runs import (
    CACHES,
    Attention,
    check_generation,
    check_training,
    with_attention,
)
from trainer.kernels.device import Runtime
from trainer.kernels.errors import EnvironmentMissingError
from trainer.kernels.register import architecture, require
from trainer.kernels.tiles import WGMMA_CAPABILITY, taking

LEAST_OUTPUTS: Final = 100_000_000
ROWS: Final = 2000
DEFAULT_CONFIG: Final = Path("configs/demo.yaml")
DEFAULT_STEPS: Final = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return the exit code."""
    parser = argparse.ArgumentParser(prog="gpu_check", description="Compare the GPU with the CPU.")
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="a run to train")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="steps on each device")
    options = parser.parse_args(arguments)
    try:
        config = read_config(options.config)
        rt = require()
        arch = architecture(torch.cuda.current_device())
        print(f"{torch.cuda.get_device_name()}, arch {arch}, torch {torch.__version__}")
        return 0 if check(rt, arch, config, options.steps) else 1
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, EnvironmentMissingError) else 2


def check(
    rt: Runtime,
    arch: str,
    config: RunConfig,
    steps: int,
    *,
    least_outputs: int = LEAST_OUTPUTS,
    shapes: Sequence[Shape] = GEMM_SHAPES,
    rows: int = ROWS,
) -> bool:
    """Compare kernels, then train and generate; True if every bit and root is equal.

    What fails is reported, and the rest goes on. Hopper's own route comes last, since a fault of
    its kernels might leave nothing of the device to others.
    """
    tally = Tally()

    def train(profile: str, attention: Attention | None = None) -> None:
        attention = attention or config.model.attention
        if not check_training(rt, arch, with_attention(config, attention), profile, steps):
            raise TrainerError("roots differ")

    def decode(cache: Cache) -> None:
        if not check_generation(rt, arch, config, cache):
            raise TrainerError("roots differ")

    check_products(tally, rt, arch, shapes)
    with tally.guard("leaves"):
        check_leaves(tally, rt, rows)
    check_operators(tally, rt, rows)
    while tally.outputs < least_outputs and not tally.failed:
        rows *= 2
        check_operators(tally, rt, rows)
    for profile in PROFILES:
        with tally.guard(f"training with {profile}"):
            train(profile)
    with tally.guard("training with int16 attention"):
        train(config.numerics.profile, "int16")
    for cache in CACHES:
        with tally.guard(f"generating, {cache} cache"):
            decode(cache)
    if rt.device.capability == WGMMA_CAPABILITY:
        print("by wgmma", flush=True)
        check_products(tally, rt, arch, shapes, "wgmma")
        for profile in profiles_of("wgmma"):
            with tally.guard(f"training with {profile} by wgmma"), taking("wgmma"):
                train(profile)
    print(f"{tally.outputs:,} outputs compared, {tally.different:,} differ, {tally.failed} failed")
    return tally.different == 0 and tally.failed == 0


def read_config(path: Path) -> RunConfig:
    """Read a run's YAML without its `cluster` section; scalars stay the strings that they are.

    Raises:
        ConfigError: the file cannot be read or is no run.

    """
    try:
        text = path.read_text(encoding="utf-8")
        document = yaml.load(text, yaml.BaseLoader)  # noqa: S506  # makes nothing but strings
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not a mapping")
    document.pop("cluster", None)
    return RunConfig.from_document(document, name=str(path))


if __name__ == "__main__":
    sys.exit(main())
