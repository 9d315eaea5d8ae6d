"""The same model, loss and optimiser in plain torch: the peer of the pinned step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from trainer.config import RunConfig


class PlainStep:
    """Trains in place with torch's own kernels, in `dtype` for products and activations.

    Parameters and moments stay f32; with bf16, autocast chooses the narrow operators.
    """

    def __init__(
        self,
        config: RunConfig,
        state: Mapping[str, Tensor],
        constants: Mapping[str, Tensor],
        dtype: torch.dtype,
    ) -> None:
        self._model, self._dtype = config.model, dtype
        self._cos, self._sin = constants["rope_cos"], constants["rope_sin"]
        prefix = "params/"
        self._p = {
            name[len(prefix) :]: tensor.clone().requires_grad_()
            for name, tensor in state.items()
            if name.startswith(prefix)
        }
        optim = config.optim
        self._optimizer = torch.optim.AdamW(
            self._p.values(),
            lr=float(optim.learning_rate),
            betas=(float(optim.beta1), float(optim.beta2)),
            eps=float(optim.eps),
            weight_decay=float(optim.weight_decay),
            fused=True,
        )
        self._clip = float(optim.clip_norm)

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Take one step on int64 [B, T]; return the loss before it."""
        narrow = self._dtype != torch.float32
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=narrow):
            loss = self._loss(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._p.values(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def _loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self._p["embedding"][tokens]
        for i in range(self._model.layers):
            x = x + self._attention(self._norm(x, f"layer{i}.attention_norm"), i)
            h = self._norm(x, f"layer{i}.mlp_norm") @ self._p[f"layer{i}.gate_up"]
            gate, up = h.chunk(2, dim=-1)
            x = x + (functional.silu(gate) * up) @ self._p[f"layer{i}.down"]
        logits = self._norm(x, "final_norm") @ self._p["head"]
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self._p[name]
        return functional.rms_norm(x, weight.shape, weight, float(self._model.norm_eps))

    def _attention(self, h: Tensor, layer: int) -> Tensor:
        batch, time, width = h.shape
        shape = (batch, time, 3, self._model.heads, self._model.head_size)
        q, k, v = (h @ self._p[f"layer{layer}.qkv"]).view(shape).permute(2, 0, 3, 1, 4)
        q, k = self._rope(q).to(v.dtype), self._rope(k).to(v.dtype)
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = o.transpose(1, 2).reshape(batch, time, width)
        return mixed @ self._p[f"layer{layer}.attention_out"]

    def _rope(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * self._cos - b * self._sin, a * self._sin + b * self._cos], dim=-1)
