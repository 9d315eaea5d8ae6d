"""The decoding step: a pure function that feeds one token and decides the next.

State: `tokens` int32 [B, context + 1], first the prompt and -1 from there on, and the keys
and values of all tokens fed so far. Batch: the position. Constants: the parameters and the
RoPE tables. There are no scalars and no metrics. Training and decoding share
`trainer.model.Transformer`; only the way of attending differs.

Shape suffixes as in `trainer.model`; here N is B, and T the positions of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainer import ops
from trainer.constants import rope_tables
from trainer.generate.config import GenerationConfig
from trainer.graph import StepGraph
from trainer.model import Transformer, parameter_specs
from trainer.trace import Declared, Tensors, trace_step

UNDECIDED = -1


def state_declared(config: GenerationConfig) -> Declared:
    """Return dtype and shape of every state tensor by name, in committed order."""
    model = config.model
    rows = (config.batch, model.heads, model.context)
    parts = [f"layer{i}.{part}" for i in range(model.layers) for part in ("k", "v")]
    tokens: Declared = {"tokens": ("i32", (config.batch, model.context + 1))}
    if config.cache == "f32":
        return {**tokens, **dict.fromkeys(parts, ("f32", (*rows, model.head_size)))}
    codes: Declared = dict.fromkeys(parts, ("u16", (*rows, model.head_size)))
    scales: Declared = {f"{part}_scale": ("u8", (*rows, 1)) for part in parts}
    return {**tokens, **codes, **scales}


def cache_bytes(config: GenerationConfig) -> int:
    """Return the size of all keys and values, scales included."""
    layout = derive_decode_graph(config).layout("state")
    return layout.bytes - layout.entry("tokens").bytes


def initial_state(
    config: GenerationConfig, prompts: NDArray[np.uint8]
) -> dict[str, NDArray[np.generic]]:
    """Return the state before step 0: prompts u8 [B, prompt], an empty cache."""
    dtypes = {"i32": np.int32, "f32": np.float32, "u16": np.uint16, "u8": np.uint8}
    state: dict[str, NDArray[np.generic]] = {
        name: np.zeros(tuple(shape), dtypes[dtype])
        for name, (dtype, shape) in state_declared(config).items()
    }
    tokens = np.full(state["tokens"].shape, UNDECIDED, np.int32)
    tokens[:, : config.prompt] = prompts
    return {**state, "tokens": tokens}


def batch_of(step: int) -> dict[str, NDArray[np.int32]]:
    """Return the batch of a step: its position."""
    return {"position": np.array([step], np.int32)}


def constants_of(
    config: GenerationConfig, parameters: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return the constants of every step: parameters and RoPE tables, in committed order."""
    cos, sin = rope_tables(config.model)
    held = {spec.name: parameters[spec.name] for spec in parameter_specs(config.model)}
    return {**held, "rope_cos": cos, "rope_sin": sin}


def derive_decode_graph(config: GenerationConfig) -> StepGraph:
    """Return the step graph of a generation; needs no data.

    Raises:
        GraphError: the step uses an operator outside the pinned and the bit-safe set.

    """
    shapes: dict[str, tuple[int, ...]] = {s.name: s.shape for s in parameter_specs(config.model)}
    table = (config.model.context, config.model.head_size // 2)
    shapes |= {"rope_cos": table, "rope_sin": table}
    return trace_step(
        lambda state, batch, fixed, _scalars: (decode_step(config, state, batch, fixed), {}),
        state=state_declared(config),
        batch={"position": ("i32", (1,))},
        constants={name: ("f32", shape) for name, shape in shapes.items()},
        scalars={},
    )


def decode_step(
    config: GenerationConfig, state: Tensors, batch: Tensors, constants: Tensors
) -> dict[str, Tensor]:
    """Feed the token at the batch's position, and return the state after, in state order."""
    position = batch["position"]
    attention = _CachedAttention(config=config, state=state, constants=constants, position=position)
    token_B = ops.token_at(state["tokens"], position)
    logits_BV = attention.model.stack(constants, token_B, attention)
    after = {**attention.after, "tokens": ops.greedy(logits_BV, state["tokens"], position)}
    return {name: after[name] for name in state}


@dataclass(frozen=True, kw_only=True)
class _CachedAttention:
    """Attention of one new token over the cache; `after` collects the cache with it added."""

    config: GenerationConfig
    state: Tensors
    constants: Tensors
    position: Tensor
    after: dict[str, Tensor] = field(default_factory=dict)

    @property
    def model(self) -> Transformer:
        return Transformer(model=self.config.model, numerics=self.config.numerics)

    def __call__(self, h_BD: Tensor, layer: int) -> Tensor:
        """Return what attention adds to the layer's input, f32 [B, D]."""
        heads, size = self.config.model.heads, self.config.model.head_size
        qkv_B3D = self.model.matmul(h_BD, self.constants[f"layer{layer}.qkv"])
        q_BH1K, k_BH1K, v_BH1K = qkv_B3D.view(-1, 3, heads, 1, size).unbind(1)
        q_BH1K, k_BH1K = self._rotated(q_BH1K), self._rotated(k_BH1K)
        scores_BH1T = self._scores(q_BH1K, k_BH1K, f"layer{layer}.k")
        p_BH1T = ops.prefix_softmax(scores_BH1T, self.position, size**-0.5)
        o_BD = self._mixed(p_BH1T, v_BH1K, f"layer{layer}.v").reshape(-1, heads * size)
        return self.model.matmul(o_BD, self.constants[f"layer{layer}.attention_out"])

    def _rotated(self, x_BH1K: Tensor) -> Tensor:
        # A row of a table by its number is what the embedding does.
        cos, sin = (
            ops.embedding(self.position, self.constants[table])
            for table in ("rope_cos", "rope_sin")
        )
        return ops.rope(x_BH1K, cos, sin, inverse=False)

    def _scores(self, q_BH1K: Tensor, k_BH1K: Tensor, name: str) -> Tensor:
        if self.config.cache == "f32":
            return self.model.matmul(q_BH1K, self._write(name, k_BH1K).transpose(-1, -2))
        return ops.int16_scores(q_BH1K, *self._write_int16(name, k_BH1K))

    def _mixed(self, p_BH1T: Tensor, v_BH1K: Tensor, name: str) -> Tensor:
        if self.config.cache == "f32":
            return self.model.matmul(p_BH1T, self._write(name, v_BH1K))
        return ops.int16_mix(p_BH1T, *self._write_int16(name, v_BH1K))

    def _write_int16(self, name: str, x_BH1K: Tensor) -> tuple[Tensor, Tensor]:
        codes, scales = ops.int16_quantise(x_BH1K)
        return self._write(name, codes), self._write(f"{name}_scale", scales)

    def _write(self, name: str, rows: Tensor) -> Tensor:
        self.after[name] = ops.cache_write(self.state[name], rows, self.position)
        return self.after[name]
