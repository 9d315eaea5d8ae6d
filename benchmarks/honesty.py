"""What the trainer's own honesty costs: the re-check, forcing to the disk, and the device probe.

Steps of the demo through one rank, as `make bench` runs them; the waits for the disk are those of a
rank before each signed tree head.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from cluster.config import load_job
from trainer.config import RecheckConfig, RunConfig
from trainer.device_probe import answers, emulated
from trainer.prepare import prepare_run
from trainer.rank import RankTrainer
from trainer.recorder import Recorder
from transcript.keys import PrivateKey
from transcript.run import RunFolder

_STEPS = 32
_PRODUCTS = (0, 2, 4, 8)


class _Waiting(Recorder):
    """A recorder that notes how long each flush took."""

    waits: list[float] = []  # noqa: RUF012  # of the whole process

    def flush(self) -> None:
        """Flush, and note the time."""
        started = time.perf_counter()
        super().flush()
        self.waits.append(time.perf_counter() - started)


def main() -> None:
    """Print the share of a step that each takes."""
    job = load_job(Path("configs/demo.yaml")).run
    train = job.train.model_copy(update={"steps": _STEPS})
    config = job.model_copy(update={"train": train})
    print("honesty of the trainer, steps of the demo")
    for products in _PRODUCTS:
        recheck = RecheckConfig(products=products)
        _measure(config.model_copy(update={"recheck": recheck}), products)
    waits = ", ".join(f"{1e3 * wait:.0f}" for wait in _Waiting.waits)
    print(f"  waits for the disk before tree heads, ms: {waits}")
    started = time.perf_counter()
    answers(config.numerics, emulated("hopper", 1), run_id="x", moment="start", root="00" * 32)
    print(f"  device probe                   {1e3 * (time.perf_counter() - started):8.1f} ms")


def _measure(config: RunConfig, products: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder(Path(root) / "run")
        prepare_run(config, folder, PrivateKey.generate())
        rank = RankTrainer(config, folder)
        rank._recorder.__class__ = _Waiting  # a stopwatch around what it does
        steps = [rank.run_step() for _ in range(_STEPS)]
    checked = sum(step.recheck_seconds for step in steps)
    others = sum(step.compute_seconds + step.record_seconds for step in steps)
    middle = 1e3 * median(step.recheck_seconds for step in steps)
    share = 100 * checked / others
    print(f"  re-check of {products} products        {middle:8.1f} ms   {share:.1f} %")


if __name__ == "__main__":
    main()
