"""The operators of plain training by the kernels of `cuda/`: docs/formats/operators.md.

`IMPLEMENTATIONS` maps each operator of `trainer.ops`, those of `int16` and `decode` among them,
to a function of a runtime and the operator's own arguments. Results are fresh and contiguous;
operands may have any strides, at the cost of a copy. Shapes and dtypes are as in `trainer.ops`,
whose fake implementations have checked them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from trainer.kernels import decode, int16
from trainer.kernels.device import Grid, Runtime
from trainer.kernels.gemm import gemm as gemm_by_profile
from trainer.ops import collective

LANES: Final = 256  # kLanes of pinned_ops.h: threads of a block
LANE_WARPS: Final = 8
DWEIGHT_COLUMNS: Final = 32  # kColumns of norm.cu


def _over(elements: int) -> Grid:
    """Return the grid of one thread an element."""
    return (-(-elements // LANES), 1, 1)


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in tensors)


def gemm(rt: Runtime, a: Tensor, b: Tensor, profile: str, arch: str) -> Tensor:
    """Multiply by a profile; `arch` is the device's own and was checked when it was chosen."""
    del arch
    return gemm_by_profile(rt, a, b, profile)


def rmsnorm(rt: Runtime, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """X [R, D], weight [D] -> y [R, D], rstd [R]."""
    x, weight = _contiguous(x, weight)
    rows, width = x.shape
    y, rstd = rt.empty(rows, width), rt.empty(rows)
    fault = rt.fault("rmsnorm")
    args = (x, weight, np.float32(eps), np.int64(width), y, rstd)
    rt.launch("rmsnorm", (rows, 1, 1), LANES, *args, *fault)
    rt.finish()
    return y, rstd


def rmsnorm_backward(
    rt: Runtime, dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """dy, x [R, D], weight [D], rstd [R] -> dx [R, D], dweight [D]."""
    dy, x, weight, rstd = _contiguous(dy, x, weight, rstd)
    rows, width = x.shape
    dx, dweight = rt.empty(rows, width), rt.empty(width)
    fault = rt.fault("rmsnorm_backward")
    args = (dy, x, weight, rstd, np.int64(width), dx)
    rt.launch("rmsnorm_backward", (rows, 1, 1), LANES, *args, *fault)
    grid = (-(-width // DWEIGHT_COLUMNS), 1, 1)
    sizes = (np.int64(rows), np.int64(width))
    rt.launch("rmsnorm_dweight", grid, LANES, dy, x, rstd, *sizes, dweight, *fault)
    rt.finish()
    return dx, dweight


def rope(rt: Runtime, x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:  # noqa: FBT001
    """X [..., T, D], cos and sin [T, D/2] -> [..., T, D]."""
    x, cos, sin = _contiguous(x, cos, sin)
    y = rt.empty(*x.shape)
    pairs = x.numel() // 2
    sizes = (np.int64(x.shape[-2]), np.int64(x.shape[-1] // 2), np.int64(pairs))
    direction = np.float32(-1.0 if inverse else 1.0)
    rt.launch("rope", _over(pairs), LANES, x, cos, sin, direction, *sizes, y, *rt.fault("rope"))
    rt.finish()
    return y


def causal_softmax(rt: Runtime, scores: Tensor, scale: float) -> Tensor:
    """Scores [..., T, T] -> p [..., T, T]."""
    (scores,) = _contiguous(scores)
    p, time = rt.empty(*scores.shape), scores.shape[-1]
    args = (scores, np.float32(scale), np.int64(time), p)
    grid = (scores.shape[:-1].numel(), 1, 1)
    rt.launch("causal_softmax", grid, LANES, *args, *rt.fault("causal_softmax"))
    rt.finish()
    return p


def causal_softmax_backward(rt: Runtime, p: Tensor, dp: Tensor, scale: float) -> Tensor:
    """p, dp [..., T, T] -> dscores [..., T, T]."""
    p, dp = _contiguous(p, dp)
    dscores, time = rt.empty(*p.shape), p.shape[-1]
    args = (p, dp, np.float32(scale), np.int64(time), dscores)
    grid = (p.shape[:-1].numel(), 1, 1)
    fault = rt.fault("causal_softmax_backward")
    rt.launch("causal_softmax_backward", grid, LANES, *args, *fault)
    rt.finish()
    return dscores


def swiglu(rt: Runtime, gate_up: Tensor) -> Tensor:
    """gate_up [R, 2F] -> y [R, F]."""
    (gate_up,) = _contiguous(gate_up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = rt.empty(rows, width)
    sizes = (np.int64(width), np.int64(rows * width))
    rt.launch("swiglu", _over(rows * width), LANES, gate_up, *sizes, y, *rt.fault("swiglu"))
    rt.finish()
    return y


def swiglu_backward(rt: Runtime, dy: Tensor, gate_up: Tensor) -> Tensor:
    """Dy [R, F], gate_up [R, 2F] -> dgate_up [R, 2F]."""
    dy, gate_up = _contiguous(dy, gate_up)
    rows, width = dy.shape
    dgate_up = rt.empty(rows, 2 * width)
    args = (dy, gate_up, np.int64(width), np.int64(rows * width), dgate_up)
    fault = rt.fault("swiglu_backward")
    rt.launch("swiglu_backward", _over(rows * width), LANES, *args, *fault)
    rt.finish()
    return dgate_up


def embedding(rt: Runtime, tokens: Tensor, table: Tensor) -> Tensor:
    """Tokens int32 [R], table [V, D] -> [R, D]."""
    tokens, table = _contiguous(tokens, table)
    rows, (vocab, width) = tokens.shape[0], table.shape
    y = rt.empty(rows, width)
    args = (tokens, table, np.int64(vocab), np.int64(width), np.int64(rows * width), y)
    rt.launch("embedding", _over(rows * width), LANES, *args, *rt.fault("embedding"))
    rt.finish()
    return y


def embedding_backward(rt: Runtime, tokens: Tensor, dy: Tensor, vocab: int) -> Tensor:
    """Tokens int32 [R], dy [R, D] -> dtable [vocab, D].

    torch sorts the tokens: integers, stably, so the order of positions is fixed.
    """
    tokens, dy = _contiguous(tokens, dy)
    rows, width = dy.shape
    fault = rt.fault("embedding_backward")
    rt.launch("check_range", _over(rows), LANES, tokens, np.int64(rows), np.int64(vocab), *fault)
    in_order, order = torch.sort(tokens, stable=True)
    bounds = torch.arange(vocab + 1, dtype=torch.int32, device=tokens.device)
    start = torch.searchsorted(in_order, bounds)
    dtable = rt.empty(vocab, width)
    args = (order, start, dy, np.int64(width), dtable)
    rt.launch("embedding_backward", (vocab, -(-width // LANES), 1), LANES, *args, *fault)
    rt.finish()
    return dtable


def cross_entropy(rt: Runtime, logits: Tensor, targets: Tensor) -> Tensor:
    """Logits [R, V], targets int32 [R] -> the mean loss []."""
    logits, targets = _contiguous(logits, targets)
    rows, vocab = logits.shape
    losses, loss = rt.empty(rows), rt.empty()
    fault = rt.fault("cross_entropy")
    args = (logits, targets, np.int64(vocab), losses)
    rt.launch("cross_entropy", (rows, 1, 1), LANES, *args, *fault)
    rt.launch("mean", (1, 1, 1), LANES, losses, np.int64(rows), loss, *fault)
    rt.finish()
    return loss


def cross_entropy_backward(rt: Runtime, dloss: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    """Dloss [], logits [R, V], targets int32 [R] -> dlogits [R, V]."""
    dloss, logits, targets = _contiguous(dloss, logits, targets)
    rows, vocab = logits.shape
    dlogits = rt.empty(rows, vocab)
    args = (dloss, logits, targets, np.int64(vocab), dlogits)
    fault = rt.fault("cross_entropy_backward")
    rt.launch("cross_entropy_backward", (rows, 1, 1), LANES, *args, *fault)
    rt.finish()
    return dlogits


def sum_squares(rt: Runtime, x: Tensor) -> Tensor:
    """Any shape -> []."""
    (x,) = _contiguous(x)
    lanes, total = rt.empty(LANES), rt.empty()
    rt.launch("square_lanes", (LANE_WARPS, 1, 1), 32, x, np.int64(x.numel()), lanes)
    rt.launch("fold_lanes", (1, 1, 1), LANES, lanes, total, *rt.fault("sum_squares"))
    rt.finish()
    return total


def clip_coefficient(rt: Runtime, sum_squares: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
    """[] -> norm [], coefficient []."""
    norm, coefficient = rt.empty(), rt.empty()
    args = (sum_squares, np.float32(max_norm), norm, coefficient)
    rt.launch("clip_coefficient", (1, 1, 1), 1, *args, *rt.fault("clip_coefficient"))
    rt.finish()
    return norm, coefficient


def adamw(
    rt: Runtime,
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    coefficient: Tensor,
    scalars: Tensor,
    *hyper: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """p, g, m, v of one shape, coefficient [], scalars [3] -> p', m', v'.

    `hyper` is beta1, beta2, eps and weight_decay.
    """
    operands = _contiguous(p, g, m, v, coefficient, scalars)
    results = (rt.empty(*p.shape), rt.empty(*p.shape), rt.empty(*p.shape))
    n = p.numel()
    attributes = [np.float32(h) for h in hyper]
    rt.launch(
        "adamw", _over(n), LANES,
        *operands, *attributes, np.int64(n), *results, *rt.fault("adamw"),
    )  # fmt: skip
    rt.finish()
    return results


def all_reduce(rt: Runtime, flat: Tensor, world: int) -> Tensor:
    """Sum [n] over ranks through the installed communicator, which works on the host."""
    if world == 1:
        return flat.contiguous().clone()
    own = flat.contiguous().cpu().numpy()
    total = collective.current(world).all_reduce(own)
    return torch.from_numpy(total.copy()).to(rt.torch_device)


IMPLEMENTATIONS: Final[Mapping[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (
        adamw,
        all_reduce,
        causal_softmax,
        causal_softmax_backward,
        clip_coefficient,
        cross_entropy,
        cross_entropy_backward,
        embedding,
        embedding_backward,
        gemm,
        rmsnorm,
        rmsnorm_backward,
        rope,
        sum_squares,
        swiglu,
        swiglu_backward,
        int16.int16_blend,
        int16.int16_dot,
        int16.int16_hold,
        int16.int16_mix,
        int16.int16_quantise,
        int16.int16_scores,
        decode.cache_write,
        decode.greedy,
        decode.prefix_softmax,
        decode.token_at,
    )
}
