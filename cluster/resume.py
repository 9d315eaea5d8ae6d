"""Taking up a run where it stopped: after a lost actor, or after the driver itself died.

Every restart goes back to a kept state that is really there and that a signed tree head covers:
what was written after it may be lost, in part and in any order, to a power cut. The steps from it
on are executed again and must reproduce what the log holds of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.config import Job
from cluster.errors import ExistsError
from trainer.config import RunConfig
from trainer.errors import ConfigError
from trainer.logged import logged_leaves
from trainer.plan import kept_states, layouts_of
from trainer.trace import derive_graph
from transcript.errors import MalformedError, MissingError
from transcript.keys import PrivateKey
from transcript.leaves import arena_root
from transcript.log_reader import checkpoint_sizes
from transcript.run import RunFolder
from transcript.statements import read_registration
from transcript.store import RunStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run got: the loss of every logged step, and the step to go back to."""

    losses: tuple[float, ...] = ()
    resume_at: int = 0


def resume_step(
    kept: Sequence[int],
    committed: int,
    readable: Callable[[int], bool] = lambda _: True,
    *,
    durable: int | None = None,
) -> int:
    """Return the step to go back to when the log holds `committed` steps.

    The newest readable kept state before the last logged step: at least one step is then
    executed again and compared, and no state is used that the log does not vouch for. Nor is
    one after step `durable`, up to which everything is known to be on the disk.
    """
    last = committed - 1 if durable is None else min(committed - 1, durable)
    before = (step for step in sorted(kept, reverse=True) if step <= last)
    return next((step for step in before if readable(step)), 0)


def stored_resume_step(config: RunConfig, folder: RunFolder, committed: int) -> int:
    """As `resume_step`, for what the run's store really holds.

    A state is written behind the next step's back, so the newest can be missing after a crash.
    """
    store = RunStore.open(folder.store, layouts_of(derive_graph(config)))

    def readable(step: int) -> bool:
        try:
            store.read_state(step)
        except (MissingError, MalformedError):
            return False
        return True

    durable = max(checkpoint_sizes(folder.log), default=0)
    return resume_step(kept_states(config), committed, readable, durable=durable)


def state_after_fault(config: RunConfig, folder: RunFolder, step: int) -> int:
    """Return the first kept state after a faulty step that is the one the log goes on with.

    Raises:
        MissingError: there is none: what the logged steps began with is lost.

    """
    leaves = logged_leaves(folder)
    layouts = layouts_of(derive_graph(config))
    store = RunStore.open(folder.store, layouts)
    for kept in (kept for kept in kept_states(config) if step < kept <= len(leaves)):
        with suppress(MissingError, MalformedError):
            root = arena_root(store.read_state(kept), layouts.state).hex()
            if root == leaves[kept - 1].state_after:
                return kept
    raise MissingError(
        f"no kept state after step {step} is the one that was logged: the run cannot go on",
        file=str(folder.store),
    )


def interrupted(job: Job, folder: Path, key: PrivateKey, *, scrub: bool = False) -> Progress:
    """Return how far an interrupted run got.

    Args:
        job: the run.
        folder: where it lies.
        key: that signs it.
        scrub: go back to the beginning, to execute every logged step again.

    Raises:
        ExistsError: the run is finished.
        ConfigError: it was registered with another configuration or another key.
        transcript.errors.TranscriptError: its registration, log or store cannot be read.

    """
    run = RunFolder(folder)
    registration = read_registration(run).predicate
    if run.commitment.exists():
        msg = f"{folder}: the run is finished"
        raise ExistsError(msg, next_step="audit it, or choose another --out")
    if registration.config != job.run.document():
        raise ConfigError(f"{folder}: was registered with another configuration")
    if registration.public_key != key.public.pem():
        raise ConfigError(f"{folder}: was registered with another key; give it with --key")
    losses = logged_losses(run)
    resume_at = 0 if scrub else stored_resume_step(job.run, run, len(losses))
    return Progress(losses=losses, resume_at=resume_at)


def logged_losses(run: RunFolder) -> tuple[float, ...]:
    """Return the loss of rank 0 at every logged step; nothing for a run without a log."""
    bits = [int(leaf.metrics["loss"], 16) for leaf in logged_leaves(run)]
    return tuple(np.array(bits, np.uint32).view(np.float32).tolist())
