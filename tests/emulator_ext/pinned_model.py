"""An independent model of docs/formats/operators.md in plain numpy f32 operations.

The scalar functions are the C library's in extended precision, rounded once to f32: the
pinned ones are correctly rounded except within about 1e-9 of a tie, which these tests' data
do not meet.
"""

from __future__ import annotations

import numpy as np

F = np.float32
L = np.longdouble
LOG2E = np.float64(float.fromhex("0x1.71547652b82fep+0"))
LN2 = F(float.fromhex("0x1.62e430p-1"))


def exp2(x):
    return np.exp2(x.astype(L)).astype(F)


def log2(x):
    return np.log2(x.astype(L)).astype(F)


def tanh(x):
    return np.tanh(x.astype(L)).astype(F)


def sigmoid(x):
    return (L(1) / (L(1) + np.exp(-x.astype(L)))).astype(F)


def tree(x):
    """Reduce the last axis over 256 lanes."""
    n = x.shape[-1]
    lanes = np.zeros((*x.shape[:-1], 256), F)
    for start in range(0, n, 256):
        part = x[..., start : start + 256]
        lanes[..., : part.shape[-1]] += part
    width = 128
    while width:
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
        width //= 2
    return lanes[..., 0]


def rmsnorm(x, w, eps):
    rstd = F(1) / np.sqrt(tree(x * x) / F(x.shape[1]) + F(eps))
    return x * rstd[:, None] * w, rstd


def rmsnorm_backward(dy, x, w, rstd):
    xhat = x * rstd[:, None]
    mean = tree((dy * w) * xhat) / F(x.shape[1])
    dx = rstd[:, None] * (dy * w - xhat * mean[:, None])
    return dx, tree((dy * xhat).T.copy())


def rope(x, cos, sin, inverse):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    s = -sin if inverse else sin
    return np.concatenate([a * cos - b * s, b * cos + a * s], axis=-1)


def numerators(t):
    shift = np.ceil(t.max(axis=-1, keepdims=True))
    return np.exp2(t.astype(L) - shift.astype(L)).astype(F), shift[..., 0]


def causal_softmax(scores, scale):
    constant = F(np.float64(F(scale)) * LOG2E)
    p = np.zeros_like(scores)
    for n, i in np.ndindex(*scores.shape[:2]):
        e, _ = numerators(scores[n, i, : i + 1] * constant)
        p[n, i, : i + 1] = e / tree(e)
    return p


def causal_softmax_backward(p, dp, scale):
    ds = np.zeros_like(p)
    for n, i in np.ndindex(*p.shape[:2]):
        live = slice(0, i + 1)
        dot = tree(p[n, i, live] * dp[n, i, live])
        ds[n, i, live] = p[n, i, live] * (dp[n, i, live] - dot) * F(scale)
    return ds


def swiglu(gate_up):
    g, u = np.split(gate_up, 2, axis=1)
    return (g * sigmoid(g)) * u


def swiglu_backward(dy, gate_up):
    g, u = np.split(gate_up, 2, axis=1)
    s = sigmoid(g)
    dg = (dy * u) * (s * (F(1) + g * (F(1) - s)))
    return np.concatenate([dg, dy * (g * s)], axis=1)


def embedding_backward(tokens, dy, vocab):
    table = np.zeros((vocab, dy.shape[1]), F)
    for position, token in enumerate(tokens):
        table[token] = table[token] + dy[position]
    return table


def cross_entropy(logits, targets):
    t = logits * F(LOG2E)
    e, shift = numerators(t)
    at_target = t[np.arange(len(targets)), targets]
    return tree((shift + log2(tree(e)) - at_target) * LN2) / F(len(targets))


def cross_entropy_backward(dloss, logits, targets):
    e, _ = numerators(logits * F(LOG2E))
    hit = np.zeros_like(logits)
    hit[np.arange(len(targets)), targets] = 1
    return (e / tree(e)[:, None] - hit) * (dloss / F(len(targets)))


def adamw(p, g, m, v, coefficient, scalars, beta1, beta2, eps, weight_decay):
    rate, correction1, correction2 = scalars
    h = g * coefficient
    m1 = F(beta1) * m + (F(1) - F(beta1)) * h
    v1 = F(beta2) * v + (F(1) - F(beta2)) * (h * h)
    direction = (m1 * correction1) / (np.sqrt(v1 * correction2) + F(eps))
    return p * (F(1) - rate * F(weight_decay)) - rate * direction, m1, v1


def tree_sum(shards):
    level = list(shards)
    while len(level) > 1:
        pairs = [a + b for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def philox_block(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (high >> 32) ^ c[1] ^ k[0],
            high & 0xFFFFFFFF,
            (low >> 32) ^ c[3] ^ k[1],
            low & 0xFFFFFFFF,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c
