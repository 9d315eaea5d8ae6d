"""The training step: a pure function from (state, batch, scalars) to (state', metrics).

This is the one place where training is written down. The trainer runs the graph that is
derived from it, and so does the auditor; neither runs this function on data.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from trainer import ops
from trainer.config import OptimConfig, RunConfig
from trainer.model import Transformer, as_parameters, parameter_specs

Tensors = Mapping[str, Tensor]


def state_shapes(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every state tensor by name, in committed order; all are f32."""
    specs = list(parameter_specs(config.model))
    return {f"{group}/{s.name}": s.shape for group in ("params", "m", "v") for s in specs}


def batch_shapes(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every batch tensor by name, in committed order; all are i32."""
    shape = (config.train.batch, config.model.context)
    return {"tokens": shape, "targets": shape}


def training_step(
    config: RunConfig, state: Tensors, batch: Tensors, constants: Tensors, scalars: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Compute one step of one rank.

    Args:
        config: the run.
        state: parameters and both AdamW moments, f32, shapes of `state_shapes`.
        batch: `tokens` and `targets`, i32, shapes of `batch_shapes`.
        constants: the tables of `trainer.constants.step_constants`, f32.
        scalars: f32 [3], `trainer.constants.step_scalars`.

    Returns:
        The state after, in the order of `state`, and the metrics: f32 [] each.

    """
    parameters = {name: p.requires_grad_() for name, p in as_parameters(state).items()}
    model = Transformer(model=config.model, numerics=config.numerics)
    loss = model.loss(parameters, constants, batch["tokens"], batch["targets"])
    gradients = torch.autograd.grad(loss, list(parameters.values()), constants["loss_scale"])
    with torch.no_grad():
        flat = torch.cat([g.reshape(-1) for g in gradients])
        reduced = ops.all_reduce(flat, config.train.world)
        norm, clip = ops.clip_coefficient(ops.sum_squares(reduced), float(config.optim.clip_norm))
        after = _update(config.optim, state, reduced, clip, scalars)
    return after, {"loss": loss.detach(), "grad_norm": norm}


def _update(
    optim: OptimConfig, state: Tensors, flat: Tensor, clip: Tensor, scalars: Tensor
) -> dict[str, Tensor]:
    parameters = {name: p.detach() for name, p in as_parameters(state).items()}
    ends = list(accumulate(prod(p.shape) for p in parameters.values()))
    after: dict[str, Tensor] = {}
    for (name, p), end in zip(parameters.items(), ends, strict=True):
        gradient = flat[end - prod(p.shape) : end].view(p.shape)
        # Norm weights are scales, not directions: decay would pull them towards zero.
        decay = float(optim.weight_decay) if p.ndim > 1 else 0.0
        after[f"params/{name}"], after[f"m/{name}"], after[f"v/{name}"] = ops.adamw(
            p, gradient, state[f"m/{name}"], state[f"v/{name}"], clip, scalars,
            float(optim.beta1), float(optim.beta2), float(optim.eps), decay,
        )  # fmt: skip
    return {name: after[name] for name in state}
