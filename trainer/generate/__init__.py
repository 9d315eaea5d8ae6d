"""Greedy generation from a committed run, each token a committed step like a training step."""

from trainer.generate.config import GenerationConfig
from trainer.generate.decode import decode
from trainer.generate.run import Generation, generate
from trainer.generate.source import TrainedModel
from trainer.generate.step import constants_of, derive_decode_graph, initial_state

__all__ = [
    "Generation",
    "GenerationConfig",
    "TrainedModel",
    "constants_of",
    "decode",
    "derive_decode_graph",
    "generate",
    "initial_state",
]
