"""Making small real runs for tests, in one process and without Ray."""

from __future__ import annotations

from pathlib import Path

from trainer.commit import Committer
from trainer.config import RunConfig
from trainer.prepare import prepare_run
from trainer.rank import RankStep, RankTrainer
from transcript.keys import PrivateKey
from transcript.run import RunFolder


def train_run(
    config: RunConfig, root: Path, key: PrivateKey, *, threads: int = 1, trainer: type = RankTrainer
) -> list[RankStep]:
    """Prepare, train and commit a run of one rank below `root`; return what its steps said."""
    folder = RunFolder(root)
    prepare_run(config, folder, key, threads=threads)
    rank = trainer(config, folder, threads=threads)
    committer = Committer(config, folder, key)
    steps = []
    for _ in range(config.train.steps):
        steps.append(rank.run_step())
        committer.append(steps[-1:])
    committer.finish()
    return steps
