"""What committing costs beside training, and what an audit costs beside it.

One demo step at a time, alternating in one run: executed only, and executed with packing,
hashing and writing; then replayed from the store, as an auditor does, with as many threads.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from numpy.typing import NDArray

from cluster.config import load_job
from trainer.commit import Committer
from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.data import batch_at
from trainer.dataset import read_dataset
from trainer.executor import execute
from trainer.prepare import prepare_run
from trainer.rank import RankTrainer
from trainer.state import initial_state
from transcript.keys import PrivateKey
from transcript.run import RunFolder
from transcript.statements import read_registration
from verifier.replay import replay_step

_STEPS = 16


def main() -> None:
    """Print the share of a step spent on the transcript, and replay beside training."""
    job = load_job(Path("configs/demo.yaml")).run
    train = job.train.model_copy(update={"steps": _STEPS})
    optim = job.optim.model_copy(update={"warmup_steps": 0})
    config = job.model_copy(update={"train": train, "optim": optim})
    with tempfile.TemporaryDirectory() as root:
        _measure(config, RunFolder(Path(root) / "run"))


def _measure(config: RunConfig, folder: RunFolder) -> None:
    key = PrivateKey.generate()
    prepare_run(config, folder, key)
    rank, committer = RankTrainer(config, folder), Committer(config, folder, key)
    plain = _Plain(config, folder, rank)
    bare, recorded = [], []
    for _ in range(_STEPS):
        bare.append(_seconds(plain))
        recorded.append(_seconds(lambda: committer.append([rank.run_step()])))
    committer.finish()
    replayed = [_seconds(lambda t=t: replay_step(folder.root, t)) for t in range(1, _STEPS, 3)]
    step, full, audit = median(bare), median(recorded), median(replayed)
    arena = rank.graph.arena.bytes / 1e6
    print(f"step of the demo ({config.numerics.profile}, {arena:.1f} MB of arena)")
    print(f"  executed only                  {1e3 * step:8.1f} ms")
    print(
        f"  packed, hashed, written, logged {1e3 * full:7.1f} ms   {100 * (full / step - 1):+.0f} %"
    )
    print(f"  replayed and compared          {1e3 * audit:8.1f} ms   {audit / full:.2f} x training")


class _Plain:
    """The same trajectory as the rank's, executed and nothing else."""

    def __init__(self, config: RunConfig, folder: RunFolder, rank: RankTrainer) -> None:
        tokens = read_registration(folder).predicate.dataset.tokens
        self._config, self._graph = config, rank.graph
        self._dataset = read_dataset(folder, tokens, 1)
        self._constants = _tensors(step_constants(config.model, 1))
        self._state = _tensors(initial_state(config))
        self._step = 0

    def __call__(self) -> None:
        """Execute the next step."""
        config, step = self._config, self._step
        batch = batch_at(self._dataset.tokens, self._dataset.root, config, step, 0)
        scalars = step_scalars(config.optim, config.train.steps, step)
        self._state = execute(
            self._graph,
            state=self._state,
            batch=_tensors(batch),
            constants=self._constants,
            scalars=torch.from_numpy(scalars),
            sink=lambda _, tensor: tensor,
        ).state
        self._step += 1


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
