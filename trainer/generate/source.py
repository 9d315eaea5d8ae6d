"""The trained model that a generation starts from, checked against what its run committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.commit import FinalState
from trainer.config import RunConfig
from trainer.model import as_parameters
from transcript.errors import ProofError
from transcript.run import RunFolder
from transcript.statements import read_commitment, read_registration


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The final parameters of a run.

    Attributes:
        run_id: the training run.
        commitment: digest of its commitment, hex.
        config: its configuration.
        parameters: f32 arrays by their own names.

    """

    run_id: str
    commitment: str
    config: RunConfig
    parameters: Mapping[str, NDArray[np.float32]]

    @classmethod
    def read(cls, folder: RunFolder) -> TrainedModel:
        """Read a finished run's final state and compare it with the committed root.

        Raises:
            ConfigError: its configuration is not one of this version.
            ProofError: the stored final state has another root than was committed.
            transcript.errors.TranscriptError: no commitment, or something missing or malformed.

        """
        registered = read_registration(folder)
        registration, signed = registered.predicate, read_commitment(folder, registered)
        config = RunConfig.from_document(registration.config, name=str(folder.registration))
        final = FinalState.read(config, folder)
        committed = signed.predicate.final_state_root
        if final.root != committed:
            raise ProofError(
                "the stored final state has another root than was committed",
                file=str(folder.store),
                evidence={"committed": committed, "computed": final.root},
            )
        return cls(
            run_id=registration.run_id,
            commitment=signed.digest,
            config=config,
            parameters=as_parameters(final.tensors),
        )
