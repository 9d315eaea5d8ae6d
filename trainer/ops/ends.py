"""The two ends of the model: the embedding and the cross entropy.

Formulas: docs/formats/operators.md. Tokens and targets are int32; int64 is refused, so that
no narrowing happens unseen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from emulator_ext import pinned
from trainer.ops import tensors, threads
from trainer.ops.registry import register


def embedding(tokens: Tensor, table: Tensor) -> Tensor:
    """Return the rows of table f32 [V, D] that tokens int32 [R] name: [R, D]."""
    return _embedding(tokens, table)  # type: ignore[no-any-return]


def embedding_backward(tokens: Tensor, dy: Tensor, vocab: int) -> Tensor:
    """Return the gradient of the table, [vocab, D]: rows of dy [R, D] added in position order."""
    return _embedding_backward(tokens, dy, vocab)  # type: ignore[no-any-return]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy in nats, f32 []: logits [R, V], targets int32 [R]."""
    return _cross_entropy(logits, targets)  # type: ignore[no-any-return]


def cross_entropy_backward(dloss: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of logits [R, V] for dloss f32 []."""
    return _cross_entropy_backward(dloss, logits, targets)  # type: ignore[no-any-return]


def _embedding_cpu(tokens: Tensor, table: Tensor) -> Tensor:
    index, (rows,) = tensors.i32("embedding", tokens), tensors.f32("embedding", table)
    return tensors.tensor_of(pinned.embedding(index, rows, threads=threads.current()))


def _embedding_fake(tokens: Tensor, table: Tensor) -> Tensor:
    _require_rows("embedding", table, tokens, rows=None)
    return table.new_empty((tokens.shape[0], table.shape[1]))


def _embedding_backward_cpu(tokens: Tensor, dy: Tensor, vocab: int) -> Tensor:
    op = "embedding_backward"
    index, (rows,) = tensors.i32(op, tokens), tensors.f32(op, dy)
    dtable = pinned.embedding_backward(index, rows, vocab, threads=threads.current())
    return tensors.tensor_of(dtable)


def _embedding_backward_fake(tokens: Tensor, dy: Tensor, vocab: int) -> Tensor:
    _require_rows("embedding_backward", dy, tokens, rows=tokens.shape[0])
    return dy.new_empty((vocab, dy.shape[1]))


class _EmbeddingGradient:
    def save(self, ctx: Any, args: tuple[Any, ...], result: Tensor) -> None:
        del result
        ctx.save_for_backward(args[0])
        ctx.vocab = args[1].shape[0]

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,) = grads
        tokens = ctx.saved_tensors[0]
        return None, None if g is None else _embedding_backward(tokens, g, ctx.vocab)


def _cross_entropy_cpu(logits: Tensor, targets: Tensor) -> Tensor:
    (scores,), index = tensors.f32("cross_entropy", logits), tensors.i32("cross_entropy", targets)
    return tensors.tensor_of(pinned.cross_entropy(scores, index, threads=threads.current()))


def _cross_entropy_fake(logits: Tensor, targets: Tensor) -> Tensor:
    _require_rows("cross_entropy", logits, targets, rows=targets.shape[0])
    return logits.new_empty(())


def _cross_entropy_backward_cpu(dloss: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    op = "cross_entropy_backward"
    (seed, scores), index = tensors.f32(op, dloss, logits), tensors.i32(op, targets)
    dlogits = pinned.cross_entropy_backward(seed, scores, index, threads=threads.current())
    return tensors.tensor_of(dlogits)


def _cross_entropy_backward_fake(dloss: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    tensors.require("cross_entropy_backward", torch.float32, dloss)
    _require_rows("cross_entropy_backward", logits, targets, rows=targets.shape[0])
    return logits.new_empty(logits.shape)


class _CrossEntropyGradient:
    def save(self, ctx: Any, args: tuple[Any, ...], result: Tensor) -> None:
        del result
        ctx.save_for_backward(*args)

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,) = grads
        return None if g is None else _cross_entropy_backward(g, *ctx.saved_tensors), None


def _require_rows(op: str, matrix: Tensor, index: Tensor, rows: int | None) -> None:
    """Check a matrix against an index vector, for fake tensors."""
    tensors.require(op, torch.float32, matrix)
    tensors.require(op, torch.int32, index)
    fits = matrix.ndim == 2 and index.ndim == 1 and rows in {None, matrix.shape[0]}
    tensors.require_shape(op, holds=fits, found=f"{tuple(matrix.shape)} {tuple(index.shape)}")


_embedding_backward = register(
    "embedding_backward(Tensor tokens, Tensor dy, int vocab) -> Tensor",
    _embedding_backward_cpu,
    _embedding_backward_fake,
)
_embedding = register(
    "embedding(Tensor tokens, Tensor table) -> Tensor",
    _embedding_cpu,
    _embedding_fake,
    _EmbeddingGradient(),
)
_cross_entropy_backward = register(
    "cross_entropy_backward(Tensor dloss, Tensor logits, Tensor targets) -> Tensor",
    _cross_entropy_backward_cpu,
    _cross_entropy_backward_fake,
)
_cross_entropy = register(
    "cross_entropy(Tensor logits, Tensor targets) -> Tensor",
    _cross_entropy_cpu,
    _cross_entropy_fake,
    _CrossEntropyGradient(),
)
