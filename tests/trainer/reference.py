"""The same model and optimiser in plain float32 torch: textbook formulas, torch's kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trainer.config import RunConfig
from trainer.constants import step_constants, step_scalars
from trainer.data import batch_at
from trainer.state import initial_state


class Reference:
    """Trains in place; `step()` returns the loss before the update."""

    def __init__(self, config: RunConfig, tokens, root: str) -> None:
        self.config, self.tokens, self.root, self.t = config, tokens, root, 0
        named = {n: torch.tensor(a) for n, a in initial_state(config).items()}
        self.p = {n[7:]: t.requires_grad_() for n, t in named.items() if n.startswith("params/")}
        self.m = {n: torch.zeros_like(p) for n, p in self.p.items()}
        self.v = {n: torch.zeros_like(p) for n, p in self.p.items()}
        constants = step_constants(config.model, 1)
        self.cos, self.sin = (torch.tensor(constants[n]) for n in ("rope_cos", "rope_sin"))

    def step(self) -> float:
        """One AdamW step on the run's own batch."""
        batch = batch_at(self.tokens, self.root, self.config, self.t, 0)
        loss = self.loss(*(torch.tensor(batch[n]).long() for n in ("tokens", "targets")))
        gradients = torch.autograd.grad(loss, list(self.p.values()))
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        clip = min(1.0, float(self.config.optim.clip_norm) / float(norm))
        self._update({n: g * clip for n, g in zip(self.p, gradients, strict=True)})
        self.t += 1
        return float(loss.detach())

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy."""
        x = self.p["embedding"][tokens]
        for i in range(self.config.model.layers):
            x = x + self._attention(self._norm(x, f"layer{i}.attention_norm"), i)
            h = self._norm(x, f"layer{i}.mlp_norm") @ self.p[f"layer{i}.gate_up"]
            gate, up = h.chunk(2, dim=-1)
            x = x + (functional.silu(gate) * up) @ self.p[f"layer{i}.down"]
        logits = self._norm(x, "final_norm") @ self.p["head"]
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def _norm(self, x: Tensor, name: str) -> Tensor:
        eps = float(self.config.model.norm_eps)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self.p[name]

    def _attention(self, h: Tensor, layer: int) -> Tensor:
        batch, time, width = h.shape
        shape = (batch, time, 3, self.config.model.heads, self.config.model.head_size)
        q, k, v = (h @ self.p[f"layer{layer}.qkv"]).view(shape).permute(2, 0, 3, 1, 4)
        o = functional.scaled_dot_product_attention(self._rope(q), self._rope(k), v, is_causal=True)
        return o.transpose(1, 2).reshape(batch, time, width) @ self.p[f"layer{layer}.attention_out"]

    def _rope(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], dim=-1)

    @torch.no_grad()
    def _update(self, gradients: dict[str, Tensor]) -> None:
        optim = self.config.optim
        rate, c1, c2 = (float(s) for s in step_scalars(optim, self.config.train.steps, self.t))
        b1, b2, eps = float(optim.beta1), float(optim.beta2), float(optim.eps)
        for name, g in gradients.items():
            p, m, v = self.p[name], self.m[name], self.v[name]
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            if p.ndim > 1:
                p.mul_(1 - rate * float(optim.weight_decay))
            p.sub_(rate * (m * c1) / ((v * c2).sqrt() + eps))
