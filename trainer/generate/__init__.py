"""Greedy generation from a committed run, each token a committed step like a training step.

What writes folders is imported when it is first asked for: decoding alone needs no store and no
keys, and the GPU's own check runs where there are none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainer.generate.config import GenerationConfig
from trainer.generate.decode import decode
from trainer.generate.step import constants_of, derive_decode_graph, initial_state

if TYPE_CHECKING:
    from trainer.generate.run import Generation, generate
    from trainer.generate.source import TrainedModel

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

_LATER = {"Generation": "run", "TrainedModel": "source", "generate": "run"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
