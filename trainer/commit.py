"""Join the ranks' digests into step leaves, sign tree heads, and commit the finished run.

A step that was logged before and now comes with other digests is a fork. Nothing is appended
after one, until `declare` has said of the logged step that it is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from trainer.config import RunConfig
from trainer.errors import DivergenceError
from trainer.faults import Redone, declare, declared
from trainer.model import as_parameters
from trainer.plan import layouts_of
from trainer.rank import RankStep
from trainer.trace import derive_graph
from transcript.errors import ForkError
from transcript.files import write_atomic
from transcript.keys import PrivateKey
from transcript.leaves import arena_root
from transcript.log import Log, LogReader, StepLeaf
from transcript.model import utc_now
from transcript.predicates import Commitment, LogHead, WeightFile
from transcript.run import RunFolder
from transcript.statements import read_registration, sign_statement
from transcript.store import RunStore


class Committer:
    """The one writer of a run's log; holds the signing key.

    Appending a step again, after a restart, is harmless if its digests are the same and an
    error otherwise.

    Raises:
        transcript.errors.TranscriptError: the folder is not a prepared run.

    """

    def __init__(self, config: RunConfig, folder: RunFolder, key: PrivateKey) -> None:
        self._config, self._folder, self._key = config, folder, key
        signed = read_registration(folder)
        self._registration, self._digest = signed.predicate, signed.digest
        self._log = Log(folder.log, self._registration.run_id)
        self._last_state = self._logged(len(self._log) - 1).state_after if len(self._log) else ""
        self._fork: tuple[StepLeaf, Sequence[RankStep]] | None = None
        self._probes: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self._log)

    def append(self, ranks: Sequence[RankStep]) -> StepLeaf:
        """Append one step, given what each rank says of it, in rank order.

        Every `checkpoint_every` steps, and after the last, the tree head is signed.

        Raises:
            DivergenceError: the ranks disagree on what they must share, or the step does not
                begin with the state that the one before ended with.
            transcript.errors.ForkError: the step, or one before it, was logged with other digests.

        """
        self._check_agreement(ranks)
        leaf = self._leaf(ranks)
        self._check_history(leaf)
        self._probes = tuple(rank.probe for rank in ranks)
        try:
            self._log.append(leaf)
        except ForkError:
            self._fork = leaf, ranks
            raise
        self._settle(leaf)
        return leaf

    def declare(self) -> tuple[int, StepLeaf]:
        """Declare the logged step faulty at which `append` met a fork; go on after that step.

        Returns:
            How many statements were signed, and the step as it is logged.

        Raises:
            DivergenceError: there was no fork, or the step was not executed from the logged state.
            transcript.errors.StorageError: the disk fails.

        """
        if self._fork is None:
            raise DivergenceError("there is no step to declare faulty")
        again, ranks = self._fork
        logged = self._logged(again.step)
        if (again.state_before, again.batches) != (logged.state_before, logged.batches):
            raise DivergenceError(f"step {again.step} was logged for another state or other data")
        redone = Redone(logged=logged, again=again, found=[rank.differs for rank in ranks])
        digests = declare(redone, self._folder, self._key)
        self._fork = None
        self._settle(logged)
        return len(digests), logged

    def _settle(self, leaf: StepLeaf) -> None:
        """Sign the tree head that ends with this step, if it is due.

        The step may have been logged before: by a run that stopped right after it.
        """
        size = leaf.step + 1
        if size == len(self._log):
            self._last_state = leaf.state_after
            if self._config.record.signs(size, self._config.train.steps):
                self._log.checkpoint(self._key)

    def _leaf(self, ranks: Sequence[RankStep]) -> StepLeaf:
        first = ranks[0]
        return StepLeaf(
            run_id=self._registration.run_id,
            registration=self._digest,
            step=first.step,
            graph_digest=self._registration.graph_digest,
            state_before=first.state_before,
            state_after=first.state_after,
            batches=tuple(r.batch for r in ranks),
            scalars=first.scalars,
            arenas=tuple(r.arena for r in ranks),
            metrics=dict(first.metrics),
        )

    def _check_history(self, leaf: StepLeaf) -> None:
        if self._fork is not None:
            raise ForkError(f"step {self._fork[0].step} was logged with other values before")
        if leaf.step == len(self._log) and self._last_state not in {"", leaf.state_before}:
            raise DivergenceError(
                f"step {leaf.step} begins with state {leaf.state_before[:16]}, the one before "
                f"ended with {self._last_state[:16]}"
            )

    def _logged(self, step: int) -> StepLeaf:
        with LogReader(self._folder.log, self._registration.run_id) as log:
            return log.leaf(step)

    def finish(self) -> Path:
        """Export the weights, sign the commitment and return its path.

        Raises:
            DivergenceError: not all steps were appended, or no rank probed its device after them.
            transcript.errors.TranscriptError: the final state cannot be read or written.

        """
        steps = self._config.train.steps
        if len(self._log) != steps:
            raise DivergenceError(f"the log has {len(self._log)} of {steps} steps")
        if not self._probes or not all(self._probes):
            raise DivergenceError("the devices were not probed after the last step")
        for rank, answer in enumerate(self._probes):
            write_atomic(self._folder.probe("end", rank), answer)
        head = self._log.checkpoint(self._key)
        final = FinalState.read(self._config, self._folder)
        weights = final.weights()
        write_atomic(self._folder.weights, weights)
        path = self._folder.weights.relative_to(self._folder.root).as_posix()
        commitment = Commitment(
            run_id=self._registration.run_id,
            registration=self._digest,
            created=utc_now(),
            steps=steps,
            log=LogHead(root=head.root.hex(), size=head.size),
            final_state_root=final.root,
            weights=(WeightFile(path=path, sha256=hashlib.sha256(weights).hexdigest()),),
            probes=tuple(hashlib.sha256(answer).hexdigest() for answer in self._probes),
            faults=declared(self._folder, self._key.public),
        )
        write_atomic(self._folder.commitment, sign_statement(commitment, self._key)[0])
        self._log.close()
        return self._folder.commitment

    def close(self) -> None:
        """Let go of the log without committing; harmless when repeated."""
        self._log.close()

    def _check_agreement(self, ranks: Sequence[RankStep]) -> None:
        world = self._config.train.world
        if [r.rank for r in ranks] != list(range(world)):
            raise DivergenceError(
                f"steps of ranks {[r.rank for r in ranks]}, expected 0..{world - 1}"
            )
        for name in ("step", "state_before", "state_after", "scalars"):
            values = [getattr(r, name) for r in ranks]
            if len(set(values)) > 1:
                raise DivergenceError(f"step {ranks[0].step}: ranks disagree on {name}: {values}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """The kept state after the last step: its tensors by name, and its root in hex."""

    tensors: Mapping[str, NDArray[np.float32]]
    root: str

    @classmethod
    def read(cls, config: RunConfig, folder: RunFolder) -> FinalState:
        """Read it from the run's store; TranscriptError if it is missing or malformed."""
        layouts = layouts_of(derive_graph(config))
        packed = RunStore.open(folder.store, layouts).read_state(config.train.steps)
        layout = layouts.state
        return cls(
            tensors=layout.unpack_all(packed),
            root=arena_root(packed, layout).hex(),
        )

    def weights(self) -> bytes:
        """Return the safetensors file of the parameters; its bytes depend on nothing else."""
        return safetensors.numpy.save(as_parameters(self.tensors))
