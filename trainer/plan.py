"""What a run keeps, and where: follows from the configuration alone.

Trainer and auditor derive the same plan, so the store's geometry is never a matter of belief.
"""

from __future__ import annotations

from trainer.config import RunConfig
from trainer.graph import StepGraph
from transcript.run import RunFolder
from transcript.store import Layouts, RunStore


def layouts_of(graph: StepGraph) -> Layouts:
    """Return the layouts of a run's store."""
    return Layouts(
        arena=graph.arena, state=graph.layout("state"), constants=graph.layout("constant")
    )


def kept_states(config: RunConfig) -> list[int]:
    """Return the steps t whose state before t is kept, ascending, the end among them."""
    return config.record.kept(config.train.steps)


def open_for_writing(config: RunConfig, folder: RunFolder, layouts: Layouts) -> RunStore:
    """Make the run's store, or take up the one that was made for this very plan."""
    return RunStore.create(
        folder.store,
        layouts,
        recorded=config.record.recorded(config.train.steps),
        states=kept_states(config),
        world=config.train.world,
    )
