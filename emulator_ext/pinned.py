"""The pinned operators of a training step over numpy arrays (NUMERICS section 3).

Formulas, orders of operations and every rounding: docs/formats/operators.md. The arithmetic
is C++ (`_bitwitness_pinned`); this face checks dtypes, makes operands C-contiguous and
allocates results, which never alias operands.

Common to all: floating operands and results are f32; a Python `float` argument is rounded
to f32 once, to nearest even, as it enters the compiled module. `threads` is the most
threads to use, None for all processors of this process; it changes no bit. All raise

* `OperandError` for a wrong shape or dtype, or an index outside its table,
* `NonFiniteError`, naming the operator, the result and its first bad flat index, when a
  result is NaN or infinite.
"""

from __future__ import annotations

from typing import Any

import _bitwitness_pinned as _core
import numpy as np
from numpy.typing import NDArray

from emulator_ext.errors import OperandError
from emulator_ext.paths import thread_count

__all__ = [
    "adamw",
    "argmax",
    "causal_softmax",
    "causal_softmax_backward",
    "check_finite",
    "clip_coefficient",
    "cross_entropy",
    "cross_entropy_backward",
    "embedding",
    "embedding_backward",
    "erf",
    "exp2",
    "int16_dequantise",
    "int16_mix",
    "int16_quantise",
    "int16_scores",
    "log2",
    "philox",
    "prefix_softmax",
    "rmsnorm",
    "rmsnorm_backward",
    "rope",
    "sigmoid",
    "sum_squares",
    "swiglu",
    "swiglu_backward",
    "tanh",
    "tree_sum",
    "unit_interval",
]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
# INT16 vectors: int16 values by their bits, and one power-of-two scale a vector.
U16 = NDArray[np.uint16]
U8 = NDArray[np.uint8]

_FLOAT = np.dtype(np.float32)
_INT = np.dtype(np.int32)
_WORD = np.dtype(np.uint32)
_CODE = np.dtype(np.uint16)
_SCALE = np.dtype(np.uint8)

# A Philox stream's block index has 32 bits, and a block four words.
_MAX_WORDS = 1 << 34


def _checked(op: str, name: str, x: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return x, or a C-contiguous aligned copy of it."""
    if not isinstance(x, np.ndarray) or x.dtype != dtype:
        found = f"ndarray of {x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__
        msg = f"{op}: {name} must be a numpy array of {dtype}, got {found}"
        raise OperandError(msg)
    flags = x.flags
    return x if flags.c_contiguous and flags.aligned else x.copy()


def _f32(op: str, **operands: Any) -> list[F32]:
    return [_checked(op, name, x, _FLOAT) for name, x in operands.items()]


def _scalar(shape: tuple[int, ...] = ()) -> F32:
    return np.empty(shape, _FLOAT)


def _rows(op: str, x: NDArray[Any]) -> NDArray[Any]:
    """View [..., K] as [N, K]."""
    if x.ndim < 1 or x.size == 0:
        msg = f"{op}: an operand has shape {x.shape}, expected [..., K] with no extent 0"
        raise OperandError(msg)
    return x.reshape(-1, x.shape[-1])


def _int16(op: str, codes: Any, scales: Any) -> tuple[U16, U8]:
    """Check INT16 vectors: one scale a vector."""
    codes, scales = _checked(op, "codes", codes, _CODE), _checked(op, "scales", scales, _SCALE)
    if codes.ndim < 1 or scales.shape != codes.shape[:-1]:
        msg = f"{op}: codes {codes.shape} and scales {scales.shape} do not fit"
        raise OperandError(msg)
    return codes, scales


def _stack(op: str, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """View [..., A, B] as [N, A, B]."""
    if x.ndim < 2 or x.size == 0:
        msg = f"{op}: {name} has shape {x.shape}, expected [..., A, B] with no extent 0"
        raise OperandError(msg)
    return x.reshape(-1, *x.shape[-2:])


def rmsnorm(x: F32, weight: F32, eps: float, *, threads: int | None = None) -> tuple[F32, F32]:
    """Return x / rms(x) * weight and 1 / rms(x): x [R, D], weight [D] -> [R, D], [R]."""
    x, weight = _f32("rmsnorm", x=x, weight=weight)
    y, rstd = np.empty_like(x), _scalar(x.shape[:1])
    _core.rmsnorm(x, weight, eps, y, rstd, thread_count(threads))
    return y, rstd


def rmsnorm_backward(
    dy: F32, x: F32, weight: F32, rstd: F32, *, threads: int | None = None
) -> tuple[F32, F32]:
    """Return dx [R, D] and dweight [D]; `rstd` [R] is what `rmsnorm` returned."""
    dy, x, weight, rstd = _f32("rmsnorm_backward", dy=dy, x=x, weight=weight, rstd=rstd)
    dx, dweight = np.empty_like(x), np.empty_like(weight)
    _core.rmsnorm_backward(dy, x, weight, rstd, dx, dweight, thread_count(threads))
    return dx, dweight


def rope(x: F32, cos: F32, sin: F32, inverse: bool, *, threads: int | None = None) -> F32:  # noqa: FBT001
    """Rotate the pairs (i, i + D/2) of x [..., T, D]; cos and sin are [T, D/2].

    `inverse` rotates back, by (cos, -sin).
    """
    x, cos, sin = _f32("rope", x=x, cos=cos, sin=sin)
    y = np.empty_like(x)
    _core.rope(_stack("rope", "x", x), cos, sin, inverse, y, thread_count(threads))
    return y


def causal_softmax(scores: F32, scale: float, *, threads: int | None = None) -> F32:
    """Return row-wise softmax(scores * scale) of [..., T, T] up to and with the diagonal.

    Entries above the diagonal are 0 in the result and are never read.
    """
    (scores,) = _f32("causal_softmax", scores=scores)
    p = np.empty_like(scores)
    _core.causal_softmax(
        _stack("causal_softmax", "scores", scores), scale, p, thread_count(threads)
    )
    return p


def causal_softmax_backward(p: F32, dp: F32, scale: float, *, threads: int | None = None) -> F32:
    """Return the gradient of the scores, [..., T, T]; nothing above the diagonal is read."""
    op = "causal_softmax_backward"
    p, dp = _f32(op, p=p, dp=dp)
    dscores = np.empty_like(p)
    _core.causal_softmax_backward(
        _stack(op, "p", p), _stack(op, "dp", dp), scale, dscores, thread_count(threads)
    )
    return dscores


def prefix_softmax(scores: F32, live: int, scale: float, *, threads: int | None = None) -> F32:
    """Return softmax(scores * scale) over the first `live` entries of each row of [..., T].

    The other entries are 0 in the result and are never read.
    """
    (scores,) = _f32("prefix_softmax", scores=scores)
    p = np.empty_like(scores)
    _core.prefix_softmax(_rows("prefix_softmax", scores), live, scale, p, thread_count(threads))
    return p


def int16_quantise(x: F32, *, threads: int | None = None) -> tuple[U16, U8]:
    """Return x [..., K] as INT16 vectors: codes uint16 [..., K] and scales uint8 [...].

    A code is an int16 q by its bits, |q| <= 32767, and stands for q * 2^(scale - 127).
    """
    (x,) = _f32("int16_quantise", x=x)
    rows = _rows("int16_quantise", x)
    codes, scales = np.empty(rows.shape, _CODE), np.empty(len(rows), _SCALE)
    _core.int16_quantise(rows, codes, scales, thread_count(threads))
    return codes.reshape(x.shape), scales.reshape(x.shape[:-1])


def int16_dequantise(codes: U16, scales: U8, *, threads: int | None = None) -> F32:
    """Return the f32 values [..., K] that codes [..., K] and scales [...] stand for, exactly."""
    codes, scales = _int16("int16_dequantise", codes, scales)
    rows = _rows("int16_dequantise", codes)
    x = _scalar(rows.shape)
    _core.int16_dequantise(rows, scales.reshape(-1), x, thread_count(threads))
    check_finite(x, "int16_dequantise", threads=threads)
    return x.reshape(codes.shape)


def int16_scores(q: F32, k: U16, k_scale: U8, *, threads: int | None = None) -> F32:
    """Return the dot products of rows: q [..., M, K], k [..., N, K] -> [..., M, N].

    q is f32 and quantised first; k and k_scale [..., N] are what `int16_quantise` returns.
    The integer sums are exact, and each score is rounded once. K is at most 1024.
    """
    (q,) = _f32("int16_scores", q=q)
    k, k_scale = _int16("int16_scores", k, k_scale)
    left, right = _stack("int16_scores", "q", q), _stack("int16_scores", "k", k)
    scores = _scalar((*q.shape[:-1], k.shape[-2]))
    scales = k_scale.reshape(right.shape[:2])
    out = scores.reshape(*left.shape[:2], -1)
    _core.int16_scores(left, right, scales, out, thread_count(threads))
    return scores


def int16_mix(p: F32, v: U16, v_scale: U8, *, threads: int | None = None) -> F32:
    """Return p v: p f32 [..., M, N], v [..., N, K] with v_scale [..., N] -> [..., M, K].

    The scales of v are folded into p, whose rows are then held in 24 bits; the integer sums
    are exact, and each result is rounded once. N is at most 32768.
    """
    (p,) = _f32("int16_mix", p=p)
    v, v_scale = _int16("int16_mix", v, v_scale)
    left, right = _stack("int16_mix", "p", p), _stack("int16_mix", "v", v)
    mixed = _scalar((*p.shape[:-1], v.shape[-1]))
    scales = v_scale.reshape(right.shape[:2])
    out = mixed.reshape(*left.shape[:2], -1)
    _core.int16_mix(left, right, scales, out, thread_count(threads))
    return mixed


def argmax(x: F32, *, threads: int | None = None) -> I32:
    """Return the lowest index of the largest entry of each row of x [R, V]: int32 [R].

    Entries compare as integer keys, so -0 lies below +0.
    """
    (x,) = _f32("argmax", x=x)
    index = np.empty(x.shape[:1], _INT)
    _core.argmax(x, index, thread_count(threads))
    return index


def swiglu(gate_up: F32, *, threads: int | None = None) -> F32:
    """Return silu(gate) * up: gate_up [R, 2F], the gate first -> [R, F]."""
    (gate_up,) = _f32("swiglu", gate_up=gate_up)
    y = _scalar((*gate_up.shape[:-1], gate_up.shape[-1] // 2)) if gate_up.ndim else _scalar()
    _core.swiglu(gate_up, y, thread_count(threads))
    return y


def swiglu_backward(dy: F32, gate_up: F32, *, threads: int | None = None) -> F32:
    """Return the gradient of gate_up [R, 2F] for dy [R, F]."""
    dy, gate_up = _f32("swiglu_backward", dy=dy, gate_up=gate_up)
    dgate_up = np.empty_like(gate_up)
    _core.swiglu_backward(dy, gate_up, dgate_up, thread_count(threads))
    return dgate_up


def embedding(tokens: I32, table: F32, *, threads: int | None = None) -> F32:
    """Return the rows of table [V, D] that tokens int32 [R] name: [R, D]."""
    tokens = _checked("embedding", "tokens", tokens, _INT)
    (table,) = _f32("embedding", table=table)
    y = _scalar((*tokens.shape, *table.shape[1:]))
    _core.embedding(tokens, table, y, thread_count(threads))
    return y


def embedding_backward(tokens: I32, dy: F32, vocab: int, *, threads: int | None = None) -> F32:
    """Return dtable [vocab, D]: the rows of dy [R, D] added by token, ascending position."""
    tokens = _checked("embedding_backward", "tokens", tokens, _INT)
    (dy,) = _f32("embedding_backward", dy=dy)
    if vocab < 1:
        msg = f"embedding_backward: vocab must be at least 1, got {vocab}"
        raise OperandError(msg)
    dtable = _scalar((vocab, *dy.shape[1:]))
    _core.embedding_backward(tokens, dy, dtable, thread_count(threads))
    return dtable


def cross_entropy(logits: F32, targets: I32, *, threads: int | None = None) -> F32:
    """Return the mean cross entropy in nats, f32 []: logits [R, V], targets int32 [R]."""
    (logits,) = _f32("cross_entropy", logits=logits)
    targets = _checked("cross_entropy", "targets", targets, _INT)
    loss = _scalar()
    _core.cross_entropy(logits, targets, loss, thread_count(threads))
    return loss


def cross_entropy_backward(
    dloss: F32, logits: F32, targets: I32, *, threads: int | None = None
) -> F32:
    """Return the gradient of logits [R, V] for dloss []."""
    dloss, logits = _f32("cross_entropy_backward", dloss=dloss, logits=logits)
    targets = _checked("cross_entropy_backward", "targets", targets, _INT)
    dlogits = np.empty_like(logits)
    _core.cross_entropy_backward(dloss, logits, targets, dlogits, thread_count(threads))
    return dlogits


def sum_squares(x: F32, *, threads: int | None = None) -> F32:
    """Return the sum of squares of all elements of x, f32 []."""
    (x,) = _f32("sum_squares", x=x)
    total = _scalar()
    _core.sum_squares(x, total, thread_count(threads))
    return total


def clip_coefficient(sum_squares: F32, max_norm: float) -> tuple[F32, F32]:
    """Return norm = sqrt(sum_squares) and min(1, max_norm / norm), f32 [] each."""
    (sum_squares,) = _f32("clip_coefficient", sum_squares=sum_squares)
    norm, coefficient = _scalar(), _scalar()
    _core.clip_coefficient(sum_squares, max_norm, norm, coefficient)
    return norm, coefficient


def adamw(
    p: F32,
    g: F32,
    m: F32,
    v: F32,
    coefficient: F32,
    scalars: F32,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    *,
    threads: int | None = None,
) -> tuple[F32, F32, F32]:
    """Return parameter and moments after one AdamW step; p, g, m, v have one shape.

    `coefficient` f32 [] scales the gradient; `scalars` f32 [3] are the learning rate,
    1/(1-beta1^t) and 1/(1-beta2^t).
    """
    p, g, m, v, coefficient, scalars = _f32(
        "adamw", p=p, g=g, m=m, v=v, coefficient=coefficient, scalars=scalars
    )
    if not p.shape == g.shape == m.shape == v.shape:
        msg = f"adamw: shapes of p, g, m, v differ: {p.shape} {g.shape} {m.shape} {v.shape}"
        raise OperandError(msg)
    after = np.empty_like(p), np.empty_like(p), np.empty_like(p)
    hyper = (beta1, beta2, eps, weight_decay)
    _core.adamw(p, g, m, v, coefficient, scalars, *hyper, *after, thread_count(threads))
    return after


def tree_sum(shards: F32, *, threads: int | None = None) -> F32:
    """Return the sum of shards [W, n] over ranks: [n], neighbours first, level by level."""
    (shards,) = _f32("tree_sum", shards=shards)
    total = _scalar(shards.shape[1:])
    _core.tree_sum(shards, total, thread_count(threads))
    return total


# In the order of the C++ enumeration Scalar.
_SCALARS = ("exp2", "log2", "tanh", "erf", "sigmoid")


def _elementwise(op: str, x: F32, threads: int | None) -> F32:
    (x,) = _f32(op, x=x)
    y = np.empty_like(x)
    _core.scalar(_SCALARS.index(op), x, y, thread_count(threads))
    return y


def exp2(x: F32, *, threads: int | None = None) -> F32:
    """Return 2^x, element by element, any shape."""
    return _elementwise("exp2", x, threads)


def log2(x: F32, *, threads: int | None = None) -> F32:
    """Return the base-2 logarithm, element by element, any shape."""
    return _elementwise("log2", x, threads)


def tanh(x: F32, *, threads: int | None = None) -> F32:
    """Return the hyperbolic tangent, element by element, any shape."""
    return _elementwise("tanh", x, threads)


def erf(x: F32, *, threads: int | None = None) -> F32:
    """Return the error function, element by element, any shape."""
    return _elementwise("erf", x, threads)


def sigmoid(x: F32, *, threads: int | None = None) -> F32:
    """Return 1 / (1 + e^-x), element by element, any shape."""
    return _elementwise("sigmoid", x, threads)


def philox(
    seed: int, stream: int, step: int, count: int, *, threads: int | None = None
) -> NDArray[np.uint32]:
    """Return the first `count` words of the Philox4x32-10 stream (seed, stream, step).

    `seed` and `step` are below 2^64, `stream` below 2^32, `count` at most 2^34.
    """
    bounds = {"seed": (seed, 64), "stream": (stream, 32), "step": (step, 64)}
    for name, (value, bits) in bounds.items():
        if not 0 <= value < 1 << bits:
            msg = f"philox: {name} must be in [0, 2^{bits}), got {value}"
            raise OperandError(msg)
    if not 0 <= count <= _MAX_WORDS:
        msg = f"philox: count must be in [0, 2^34], got {count}"
        raise OperandError(msg)
    words = np.empty(count, _WORD)
    _core.philox(seed, stream, step, words, thread_count(threads))
    return words


def unit_interval(words: NDArray[np.uint32]) -> F32:
    """Return each word's high 24 bits times 2^-24, exact and in [0, 1), any shape."""
    words = _checked("unit_interval", "words", words, _WORD)
    y = _scalar(words.shape)
    _core.unit_interval(words, y)
    return y


def check_finite(x: F32, operator: str, *, threads: int | None = None) -> None:
    """Raise `NonFiniteError` naming `operator` and the first bad flat index, if there is one."""
    (x,) = _f32(operator, x=x)
    _core.check_finite(operator, "x", x, thread_count(threads))
