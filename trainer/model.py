"""A decoder-only transformer over bytes, written over the pinned operators.

Parameters are a flat mapping of names to tensors; the model is a function of them. Weights
are stored [in, out], so a projection is `x @ W` with no transpose.

Shape suffixes: B batch, T time, D model width, H heads, K head size, F feed-forward hidden
width, V vocabulary; N is B*T, and a trailing 2 or 3 is a stack of that many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from trainer import ops
from trainer.config import ModelConfig, NumericsConfig

Parameters = Mapping[str, Tensor]
# From normalised activations f32 [N, D] and a layer's number to what attention adds, [N, D].
Attention = Callable[[Tensor, int], Tensor]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """Name, shape and initialisation of one parameter tensor."""

    name: str
    shape: tuple[int, ...]
    # Standard deviation of the uniform initial values; 0 means all ones (norm weights).
    fan_in: int


def parameter_specs(model: ModelConfig) -> Iterator[ParameterSpec]:
    """Yield every parameter in committed order."""
    d, f, v = model.width, model.hidden, model.vocab

    def norm(name: str) -> ParameterSpec:
        return ParameterSpec(name=name, shape=(d,), fan_in=0)

    def matrix(name: str, rows: int, columns: int) -> ParameterSpec:
        return ParameterSpec(name=name, shape=(rows, columns), fan_in=rows)

    yield ParameterSpec(name="embedding", shape=(v, d), fan_in=d)
    for i in range(model.layers):
        yield norm(f"layer{i}.attention_norm")
        yield matrix(f"layer{i}.qkv", d, 3 * d)
        yield matrix(f"layer{i}.attention_out", d, d)
        yield norm(f"layer{i}.mlp_norm")
        yield matrix(f"layer{i}.gate_up", d, 2 * f)
        yield matrix(f"layer{i}.down", f, d)
    yield norm("final_norm")
    yield matrix("head", d, v)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The forward pass; holds no tensors of its own.

    Attributes:
        model: the sizes.
        numerics: profile and architecture that every GEMM runs with.

    """

    model: ModelConfig
    numerics: NumericsConfig

    def loss(
        self, parameters: Parameters, constants: Parameters, tokens_BT: Tensor, targets_BT: Tensor
    ) -> Tensor:
        """Return the mean next-byte cross entropy in nats, f32 []."""
        logits_NV = self.logits(parameters, constants, tokens_BT)
        return ops.cross_entropy(logits_NV, targets_BT.reshape(-1))

    def logits(self, parameters: Parameters, constants: Parameters, tokens_BT: Tensor) -> Tensor:
        """Return the unnormalised next-byte scores, f32 [B*T, V]."""
        shape = (tokens_BT.shape[0], tokens_BT.shape[1])

        def attend(h_ND: Tensor, layer: int) -> Tensor:
            return self._attention(h_ND, parameters, constants, layer, shape)

        return self.stack(parameters, tokens_BT.reshape(-1), attend)

    def stack(self, parameters: Parameters, tokens_N: Tensor, attend: Attention) -> Tensor:
        """Return the logits, f32 [N, V], with some way of attending inside each layer."""
        x_ND = ops.embedding(tokens_N, parameters["embedding"])
        for i in range(self.model.layers):
            x_ND = x_ND + attend(self._norm(x_ND, parameters[f"layer{i}.attention_norm"]), i)
            h_ND = self._norm(x_ND, parameters[f"layer{i}.mlp_norm"])
            x_ND = x_ND + self._mlp(h_ND, parameters, i)
        h_ND = self._norm(x_ND, parameters["final_norm"])
        return self.matmul(h_ND, parameters["head"])

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiply by the run's profile on its architecture."""
        return ops.gemm(a, b, self.numerics.profile, self.numerics.arch)

    def _norm(self, x_ND: Tensor, weight_D: Tensor) -> Tensor:
        return ops.rmsnorm(x_ND, weight_D, float(self.model.norm_eps))[0]

    def _mlp(self, h_ND: Tensor, parameters: Parameters, layer: int) -> Tensor:
        gate_up_N2F = self.matmul(h_ND, parameters[f"layer{layer}.gate_up"])
        return self.matmul(ops.swiglu(gate_up_N2F), parameters[f"layer{layer}.down"])

    def _attention(
        self,
        h_ND: Tensor,
        parameters: Parameters,
        constants: Parameters,
        layer: int,
        batch_time: tuple[int, int],
    ) -> Tensor:
        batch, time = batch_time
        heads, size = self.model.heads, self.model.head_size
        cos, sin = constants["rope_cos"], constants["rope_sin"]
        qkv_N3D = self.matmul(h_ND, parameters[f"layer{layer}.qkv"])
        qkv_BHTK = [
            part.permute(0, 2, 1, 3) for part in qkv_N3D.view(batch, time, 3, heads, size).unbind(2)
        ]
        q_BHTK = ops.rope(qkv_BHTK[0], cos, sin, inverse=False)
        k_BHTK = ops.rope(qkv_BHTK[1], cos, sin, inverse=False)
        p_BHTT = ops.causal_softmax(self._scores(q_BHTK, k_BHTK), size**-0.5)
        o_BHTK = self._mixture(p_BHTT, qkv_BHTK[2])
        o_ND = o_BHTK.permute(0, 2, 1, 3).reshape(batch * time, heads * size)
        return self.matmul(o_ND, parameters[f"layer{layer}.attention_out"])

    def _scores(self, q_BHTK: Tensor, k_BHTK: Tensor) -> Tensor:
        if self.model.attention == "f32":
            return self.matmul(q_BHTK, k_BHTK.transpose(-1, -2))
        q, k = ops.int16_hold(q_BHTK), ops.int16_hold(k_BHTK)
        return ops.int16_dot(q, k, self.numerics.profile, self.numerics.arch)

    def _mixture(self, p_BHTT: Tensor, v_BHTK: Tensor) -> Tensor:
        if self.model.attention == "f32":
            return self.matmul(p_BHTT, v_BHTK)
        v = ops.int16_hold(v_BHTK)
        return ops.int16_blend(p_BHTT, v, self.numerics.profile, self.numerics.arch)


def as_parameters(state: Mapping[str, T]) -> dict[str, T]:
    """Return the parameters of a state mapping, by their own names."""
    prefix = "params/"
    return {name[len(prefix) :]: t for name, t in state.items() if name.startswith(prefix)}
