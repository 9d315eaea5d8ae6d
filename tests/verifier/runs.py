"""Real runs, honest and otherwise, made by the trainer itself in a fraction of a second."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from emulator_ext import pinned
from tests.conftest import tiny_document
from trainer.commit import Committer
from trainer.config import RunConfig
from trainer.ops import collective
from trainer.prepare import prepare_run
from trainer.rank import RankTrainer
from transcript.keys import PrivateKey
from transcript.run import RunFolder
from transcript.statements import Commitment, open_statement

KEY = PrivateKey.generate()
STEPS = 6


def config(**sections: dict[str, Any]) -> RunConfig:
    # the standard library takes longer to search than the whole run takes to train
    data = {"source": str(Path(__file__).parent), "pattern": "*.py", "max_bytes": 20_000}
    defaults = {"train": {"steps": STEPS}, "data": data}
    for section, values in defaults.items():
        sections[section] = {**values, **sections.get(section, {})}
    return RunConfig.from_document(tiny_document(**sections))


def careless(**sections: dict[str, Any]) -> RunConfig:
    """Return the configuration of a run that does not re-check itself, as a liar's would not."""
    return config(**{"recheck": {"products": 0}, **sections})


def train(root: Path, run: RunConfig, before_step: Callable[[int], None] | None = None) -> Path:
    """Train a whole run in this process and commit it; ranks run in threads."""
    folder = RunFolder(root)
    prepare_run(run, folder, KEY, threads=1)
    world = run.train.world
    ranks = [RankTrainer(run, folder, rank=rank, threads=1) for rank in range(world)]
    exchange = Exchange(world)
    committer = Committer(run, folder, KEY)
    with ThreadPoolExecutor(world) as pool:
        for step in range(run.train.steps):
            if before_step is not None:
                before_step(step)
            committer.append(list(pool.map(exchange.run_step, ranks)))
    committer.finish()
    return root


def copy(run: Path, target: Path) -> RunFolder:
    shutil.copytree(run, target)
    return RunFolder(target)


def commitment(folder: RunFolder) -> Commitment:
    """Read what a run committed."""
    data = folder.commitment.read_bytes()
    return open_statement(data, Commitment, [KEY.public]).predicate


def flip(path: Path, offset: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


class Exchange:
    """A communicator between threads: each rank adds its shard, all get the pinned sum."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world)
        self.shards: list[Any] = [None] * world

    def run_step(self, rank: RankTrainer):
        """Run one step of a rank, its seat taken."""
        with collective.use(_Seat(self, rank.rank)):
            return rank.run_step()


class _Seat:
    def __init__(self, exchange: Exchange, rank: int) -> None:
        self.exchange, self.rank = exchange, rank

    def all_reduce(self, flat):
        self.exchange.shards[self.rank] = flat
        self.exchange.barrier.wait()
        total = pinned.tree_sum(np.stack(self.exchange.shards))
        self.exchange.barrier.wait()
        return total
