"""What decoding one token at a time needs beside the operators of training.

The position is data (int32 [1]), so that one step graph serves every token. Formulas:
docs/formats/operators.md. None has a derivative.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emulator_ext import pinned
from emulator_ext.errors import OperandError
from trainer.ops import tensors, threads
from trainer.ops.registry import register


def prefix_softmax(scores: Tensor, position: Tensor, scale: float) -> Tensor:
    """Return softmax(scores * scale) over entries 0 ... position of each row, f32 [..., T].

    Later entries are 0 and never read. `scale` is rounded to f32.
    """
    return _softmax(scores, position, scale)  # type: ignore[no-any-return]


def cache_write(cache: Tensor, rows: Tensor, position: Tensor) -> Tensor:
    """Return a copy of cache [..., T, K] whose row `position` is rows [..., 1, K]; any dtype."""
    return _write(cache, rows, position)  # type: ignore[no-any-return]


def token_at(tokens: Tensor, position: Tensor) -> Tensor:
    """Return column `position` of tokens int32 [B, L]: int32 [B]."""
    return _token_at(tokens, position)  # type: ignore[no-any-return]


def greedy(logits: Tensor, tokens: Tensor, position: Tensor) -> Tensor:
    """Return a copy of tokens int32 [B, L] whose column `position` + 1 is decided.

    Where it is not below 0 it stands (the prompt); elsewhere it becomes the lowest index of
    the largest of logits f32 [B, V].
    """
    return _greedy(logits, tokens, position)  # type: ignore[no-any-return]


def _softmax_cpu(scores: Tensor, position: Tensor, scale: float) -> Tensor:
    (rows,) = tensors.f32("prefix_softmax", scores)
    live = _position("prefix_softmax", position, rows.shape[-1]) + 1
    p = pinned.prefix_softmax(rows, live, scale, threads=threads.current())
    return tensors.tensor_of(p)


def _softmax_fake(scores: Tensor, position: Tensor, scale: float) -> Tensor:
    del scale
    tensors.require("prefix_softmax", torch.float32, scores)
    _require_position("prefix_softmax", position)
    return scores.new_empty(scores.shape)


def _write_cpu(cache: Tensor, rows: Tensor, position: Tensor) -> Tensor:
    _require_rows(cache, rows)
    # numpy copies and assigns any of the dtypes; torch lacks some of this for uint16.
    result = cache.numpy().copy(order="C")
    where = _position("cache_write", position, result.shape[-2])
    result[..., where : where + 1, :] = rows.numpy()
    return tensors.tensor_of(result)


def _write_fake(cache: Tensor, rows: Tensor, position: Tensor) -> Tensor:
    _require_rows(cache, rows)
    _require_position("cache_write", position)
    return cache.new_empty(cache.shape)


def _token_at_cpu(tokens: Tensor, position: Tensor) -> Tensor:
    held = tensors.i32("token_at", tokens)
    where = _position("token_at", position, held.shape[1])
    return tensors.tensor_of(held[:, where].copy())


def _token_at_fake(tokens: Tensor, position: Tensor) -> Tensor:
    tensors.require("token_at", torch.int32, tokens)
    tensors.require_shape("token_at", holds=tokens.ndim == 2, found=f"{tuple(tokens.shape)}")
    _require_position("token_at", position)
    return tokens.new_empty(tokens.shape[:1])


def _greedy_cpu(logits: Tensor, tokens: Tensor, position: Tensor) -> Tensor:
    (scores,), held = tensors.f32("greedy", logits), tensors.i32("greedy", tokens)
    after = _position("greedy", position, held.shape[1] - 1) + 1
    best = pinned.argmax(scores, threads=threads.current())
    result: NDArray[np.int32] = held.copy()
    result[:, after] = np.where(held[:, after] < 0, best, held[:, after])
    return tensors.tensor_of(result)


def _greedy_fake(logits: Tensor, tokens: Tensor, position: Tensor) -> Tensor:
    tensors.require("greedy", torch.float32, logits)
    tensors.require("greedy", torch.int32, tokens)
    fits = logits.ndim == tokens.ndim == 2 and logits.shape[0] == tokens.shape[0]
    found = f"{tuple(logits.shape)} {tuple(tokens.shape)}"
    tensors.require_shape("greedy", holds=fits, found=found)
    _require_position("greedy", position)
    return tokens.new_empty(tokens.shape)


def _position(op: str, position: Tensor, size: int) -> int:
    (where,) = tensors.i32(op, position)
    if not 0 <= where < size:
        msg = f"bitwitness::{op}: position {where} is not in [0, {size})"
        raise OperandError(msg)
    return int(where)


def _require_position(op: str, position: Tensor) -> None:
    tensors.require(op, torch.int32, position)
    tensors.require_shape(op, holds=position.shape == (1,), found=f"{tuple(position.shape)}")


def _require_rows(cache: Tensor, rows: Tensor) -> None:
    tensors.require("cache_write", cache.dtype, rows)
    fits = cache.ndim >= 2 and rows.shape == (*cache.shape[:-2], 1, cache.shape[-1])
    found = f"{tuple(cache.shape)} {tuple(rows.shape)}"
    tensors.require_shape("cache_write", holds=fits, found=found)


_softmax = register(
    "prefix_softmax(Tensor scores, Tensor position, float scale) -> Tensor",
    _softmax_cpu,
    _softmax_fake,
)
_write = register(
    "cache_write(Tensor cache, Tensor rows, Tensor position) -> Tensor",
    _write_cpu,
    _write_fake,
)
_token_at = register(
    "token_at(Tensor tokens, Tensor position) -> Tensor",
    _token_at_cpu,
    _token_at_fake,
)
_greedy = register(
    "greedy(Tensor logits, Tensor tokens, Tensor position) -> Tensor",
    _greedy_cpu,
    _greedy_fake,
)
