"""What a run's log holds so far, for its own trainer: also while it is being written."""

from __future__ import annotations

from transcript.log import StepLeaf
from transcript.run import RunFolder


def logged_leaves(folder: RunFolder) -> list[StepLeaf]:
    """Return the leaves that were written whole; a last line that is not is none.

    Raises:
        MalformedError: a line is no step leaf.

    """
    if not folder.leaves.exists():
        return []
    lines = folder.leaves.read_bytes().split(b"\n")[:-1]
    file = str(folder.leaves)
    return [
        StepLeaf.parse(line, step=step, file=f"{file}:{step + 1}")
        for step, line in enumerate(lines)
    ]
