"""The folder of a run: which file lies where (docs/formats/run-folder.md).

`RunFolder` is pure functions of a path; nothing is created or opened by asking. `read` opens what
a prover handed over: regular files below the folder, no symbolic links, bounded sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transcript.files import read_bounded

__all__ = ["GRAPH_LIMIT", "STATEMENT_LIMIT", "TEXT", "RunFolder", "read_bounded"]

STATEMENT_LIMIT: Final = 1 << 20
GRAPH_LIMIT: Final = 64 << 20
TEXT: Final = "text/output.bin"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one run below `root`."""

    root: Path

    @property
    def registration(self) -> Path:
        """The signed registration, written before step 0."""
        return self.root / "registration.dsse.json"

    @property
    def commitment(self) -> Path:
        """The signed commitment, written at the end."""
        return self.root / "commitment.dsse.json"

    @property
    def attempts(self) -> Path:
        """The registrations that this one's key signed here before, one envelope a line."""
        return self.root / "attempts.jsonl"

    @property
    def faults(self) -> Path:
        """The folder of declared faults."""
        return self.root / "faults"

    def fault(self, digest: str) -> Path:
        """Return where the declared fault of that digest lies."""
        return self.faults / f"{digest}.dsse.json"

    def probe(self, moment: str, rank: int) -> Path:
        """Return where a device's answers lie; `moment` is "start" or "end"."""
        return self.root / "probes" / f"{moment}-{rank}.bin"

    @property
    def graph(self) -> Path:
        """The step graph's canonical document."""
        return self.root / "graph.json"

    @property
    def log(self) -> Path:
        """The log's folder: leaves.jsonl and checkpoints/."""
        return self.root / "log"

    @property
    def leaves(self) -> Path:
        """One canonical step leaf a line."""
        return self.log / "leaves.jsonl"

    def checkpoint(self, size: int) -> Path:
        """Return where the signed tree head over `size` leaves lies."""
        return self.log / "checkpoints" / str(size)

    @property
    def store(self) -> Path:
        """The Zarr store of arenas, states and constants."""
        return self.root / "store.zarr"

    @property
    def dataset(self) -> Path:
        """The token store."""
        return self.root / "dataset.zarr"

    @property
    def weights(self) -> Path:
        """The exported weights."""
        return self.root / "weights" / "model.safetensors"

    @property
    def text(self) -> Path:
        """The exported text of a generation."""
        return self.root / TEXT

    def read(self, path: Path, limit: int = STATEMENT_LIMIT) -> bytes:
        """Read one of this run's files; see `read_bounded` for the errors."""
        return read_bounded(path, limit, root=self.root)
