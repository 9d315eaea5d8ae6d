"""The pinned operators as torch operators: `torch.ops.bitwitness.*`, and functions over them.

Everything that training and decoding a decoder-only transformer compute beyond copies and
additions. Each has a CPU implementation with the bits of NUMERICS.md (`emulator_ext`), a fake one,
and autograd whose backward calls other operators of the namespace. Operands are f32, except
int32 tokens, targets and positions, and the codes (uint16) and scales (uint8) of INT16 vectors;
non-contiguous operands give the bits of contiguous ones; results are fresh and contiguous. A
Python `float` attribute is rounded to f32 once, as it enters `emulator_ext.pinned`'s compiled
module (and by the same rule when the tracer writes it down).

All raise `emulator_ext.errors.OperandError` for a dtype or shape they cannot take and
`NonFiniteError`, naming the operator, for a NaN or Inf.
"""

from trainer.ops import collective, threads
from trainer.ops.attention import causal_softmax, causal_softmax_backward, rope
from trainer.ops.decode import cache_write, greedy, prefix_softmax, token_at
from trainer.ops.ends import (
    cross_entropy,
    cross_entropy_backward,
    embedding,
    embedding_backward,
)
from trainer.ops.int16 import (
    int16_blend,
    int16_dot,
    int16_hold,
    int16_mix,
    int16_quantise,
    int16_scores,
)
from trainer.ops.matmul import gemm
from trainer.ops.registry import registered
from trainer.ops.rows import rmsnorm, rmsnorm_backward, swiglu, swiglu_backward
from trainer.ops.update import adamw, all_reduce, clip_coefficient, sum_squares

# The names of the pinned set, without the namespace. Each has CUDA kernels (trainer.kernels).
PINNED = registered()

__all__ = [
    "PINNED",
    "adamw",
    "all_reduce",
    "cache_write",
    "causal_softmax",
    "causal_softmax_backward",
    "clip_coefficient",
    "collective",
    "cross_entropy",
    "cross_entropy_backward",
    "embedding",
    "embedding_backward",
    "gemm",
    "greedy",
    "int16_blend",
    "int16_dot",
    "int16_hold",
    "int16_mix",
    "int16_quantise",
    "int16_scores",
    "prefix_softmax",
    "rmsnorm",
    "rmsnorm_backward",
    "rope",
    "sum_squares",
    "swiglu",
    "swiglu_backward",
    "threads",
    "token_at",
]
