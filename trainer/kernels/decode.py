"""What decoding needs beside attention's products, by `cuda/decode.cu`.

The position (int32 [1]) stays on the device, where the kernels read it and check its range.
Formulas: docs/formats/operators.md, "Decoding".
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from trainer.kernels.device import Grid, Runtime

LANES: Final = 256  # kLanes of pinned_ops.h: threads of a block


def prefix_softmax(rt: Runtime, scores: Tensor, position: Tensor, scale: float) -> Tensor:
    """Scores [..., T], position [1] -> p [..., T]."""
    scores = scores.contiguous()
    p, width = rt.empty(*scores.shape), scores.shape[-1]
    grid = (scores.shape[:-1].numel(), 1, 1)
    args = (scores, position, np.float32(scale), np.int64(width), p)
    rt.launch("prefix_softmax", grid, LANES, *args, *rt.fault("prefix_softmax"))
    rt.finish()
    return p


def cache_write(rt: Runtime, cache: Tensor, rows: Tensor, position: Tensor) -> Tensor:
    """Cache [..., T, K], rows [..., 1, K] of one dtype, position [1] -> the cache after."""
    after, rows = _copy(rt, cache), rows.contiguous()
    time, width = cache.shape[-2:]
    n = rows.numel() * rows.element_size()
    sizes = (np.int64(time), np.int64(width * rows.element_size()), np.int64(n))
    fault = rt.fault("cache_write")
    rt.launch("cache_write", _over(n), LANES, rows, position, *sizes, after, *fault)
    rt.finish()
    return after


def token_at(rt: Runtime, tokens: Tensor, position: Tensor) -> Tensor:
    """Tokens int32 [B, L], position [1] -> int32 [B]."""
    tokens = tokens.contiguous()
    batch, length = tokens.shape
    token = rt.empty(batch, dtype=torch.int32)
    sizes = (np.int64(length), np.int64(batch))
    fault = rt.fault("token_at")
    rt.launch("token_at", _over(batch), LANES, tokens, position, *sizes, token, *fault)
    rt.finish()
    return token


def greedy(rt: Runtime, logits: Tensor, tokens: Tensor, position: Tensor) -> Tensor:
    """Logits [B, V], tokens int32 [B, L], position [1] -> the tokens after, int32 [B, L]."""
    after, logits = _copy(rt, tokens), logits.contiguous()
    batch, vocab = logits.shape
    sizes = (np.int64(vocab), np.int64(tokens.shape[1]))
    fault = rt.fault("greedy")
    rt.launch("greedy", (batch, 1, 1), LANES, logits, position, *sizes, after, *fault)
    rt.finish()
    return after


def _copy(rt: Runtime, tensor: Tensor) -> Tensor:
    return rt.empty(*tensor.shape, dtype=tensor.dtype).copy_(tensor)


def _over(elements: int) -> Grid:
    """Return the grid of one thread an element."""
    return (-(-elements // LANES), 1, 1)
