"""The pinned operators against the independent model, bit for bit, and their invariances."""

from __future__ import annotations

import _bitwitness_pinned as core
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emulator_ext import pinned
from tests.emulator_ext import pinned_model as model


def same_bits(got, expected):
    """Compare results, or tuples of results, as bit patterns."""
    got = got if isinstance(got, tuple) else (got,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        bits = [np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint32) for x in (a, b)]
        assert np.shape(a) == np.shape(b)
        assert np.array_equal(*bits)


class Operands:
    """Random operands of some sizes, at some scale."""

    def __init__(self, seed, rows, width, scale=1.0):
        self._random = np.random.default_rng(seed)
        self.rows, self.width, self.scale = rows, width, scale

    def floats(self, *shape):
        """Draw normal f32 values."""
        return (self._random.standard_normal(shape) * self.scale).astype(np.float32)

    def index(self, size):
        """Draw one index below size a row."""
        return self._random.integers(0, size, self.rows).astype(np.int32)


def rmsnorm(o):
    return [o.floats(o.rows, o.width), o.floats(o.width), 1e-5]


def rmsnorm_backward(o):
    x, w = o.floats(o.rows, o.width), o.floats(o.width)
    rstd = model.rmsnorm(x, w, 1e-5)[1]
    return [o.floats(o.rows, o.width), x, w, rstd]


def rope(o):
    table = o.rows, o.width
    return [o.floats(2, 3, o.rows, 2 * o.width), o.floats(*table), o.floats(*table), True]


def causal_softmax(o):
    return [o.floats(2, o.rows, o.rows), 0.177]


def causal_softmax_backward(o):
    p = model.causal_softmax(o.floats(2, o.rows, o.rows), 0.177)
    return [p, o.floats(2, o.rows, o.rows), 0.177]


def swiglu(o):
    return [o.floats(o.rows, 2 * o.width)]


def swiglu_backward(o):
    return [o.floats(o.rows, o.width), o.floats(o.rows, 2 * o.width)]


def embedding_backward(o):
    return [o.index(17), o.floats(o.rows, o.width), 17]


def cross_entropy(o):
    return [o.floats(o.rows, o.width), o.index(o.width)]


def cross_entropy_backward(o):
    return [np.full((), 0.7, np.float32), o.floats(o.rows, o.width), o.index(o.width)]


def adamw(o):
    p, g, m = (o.floats(o.rows, o.width) for _ in range(3))
    scalars = np.array([0.01, 3.7, 11.2], np.float32)
    hyper = (0.9, 0.95, 1e-8, 0.1)
    return [p, g, m, m * m, np.full((), 0.3, np.float32), scalars, *hyper]


def tree_sum(o):
    return [o.floats(o.rows, o.width)]


OPERATORS = [
    rmsnorm, rmsnorm_backward, rope, causal_softmax, causal_softmax_backward, swiglu,
    swiglu_backward, embedding_backward, cross_entropy, cross_entropy_backward, adamw, tree_sum,
]  # fmt: skip


@pytest.mark.parametrize("operands", OPERATORS, ids=lambda f: f.__name__)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    width=st.integers(1, 600),
    scale=st.sampled_from([1.0, 2.0**-40, 30.0]),
)
def test_bits_follow_the_document(operands, seed, rows, width, scale):
    """Every operator gives the bits of the formulas in docs/formats/operators.md."""
    arguments = operands(Operands(seed, rows, width, scale))
    name = operands.__name__
    expected = getattr(model, name)(*arguments)
    same_bits(getattr(pinned, name)(*arguments), expected)


@pytest.mark.parametrize("operands", OPERATORS, ids=lambda f: f.__name__)
def test_threads_paths_and_strides_change_no_bit(operands):
    """Results have the same bits for 1, 2 and 3 threads, each code path, and strided operands."""
    arguments = operands(Operands(3, 300, 301))
    run = getattr(pinned, operands.__name__)
    expected = run(*arguments, threads=1)
    spread = [np.repeat(a, 2, axis=-1)[..., ::2] if np.ndim(a) else a for a in arguments]
    same_bits(run(*spread, threads=1), expected)
    try:
        for path in core.paths():
            core.select_path(path)
            for threads in (1, 2, 3):
                same_bits(run(*arguments, threads=threads), expected)
    finally:
        core.select_path(core.paths()[-1])


def test_softmax_never_reads_above_the_diagonal():
    """NaN above the diagonal changes nothing, and the results there are +0."""
    o = Operands(5, 20, 1)
    scores, dp = o.floats(2, 20, 20), o.floats(2, 20, 20)
    above = np.triu(np.ones((20, 20), bool), 1)
    poisoned, poisoned_dp = scores.copy(), dp.copy()
    poisoned[:, above] = poisoned_dp[:, above] = np.nan
    p = pinned.causal_softmax(poisoned, 0.5)
    same_bits(p, pinned.causal_softmax(scores, 0.5))
    assert not p[:, above].view(np.uint32).any()
    same_bits(
        pinned.causal_softmax_backward(p, poisoned_dp, 0.5),
        pinned.causal_softmax_backward(p, dp, 0.5),
    )


@settings(max_examples=50, deadline=None)
@given(row=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=16), by=st.integers(-90, 90))
def test_softmax_of_shifted_exponents(row, by):
    """Adding an integer to all exponents changes no bit: the shift is an exact power of two."""
    scale = float.fromhex("0x1.62e430p-1")
    assert np.float32(np.float64(scale) * model.LOG2E) == 1  # so that exponents are the scores
    t = np.array(row, np.float32)
    moved = t + np.float32(by)
    exact = moved.astype(np.float64) == t.astype(np.float64) + by
    size = np.count_nonzero(exact)
    assume(size)
    scores, shifted = np.zeros((2, 1, size, size), np.float32)
    scores[0, -1], shifted[0, -1] = t[exact], moved[exact]
    expected = pinned.causal_softmax(scores, scale)[0, -1]
    same_bits(pinned.causal_softmax(shifted, scale)[0, -1], expected)


def test_softmax_of_huge_scores():
    """Scores whose ulp exceeds 1 still give a distribution: equal maxima share, others get 0."""
    scores = np.zeros((1, 3, 3), np.float32)
    scores[0, 2] = [2.0**100, -(2.0**100), 2.0**100]
    assert pinned.causal_softmax(scores, 1.0)[0, 2].tolist() == [0.5, 0, 0.5]


@pytest.mark.parametrize(
    ("norm", "expected"), [(0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (4.0, 0.25), (3.0, None)]
)
def test_clip_coefficient(norm, expected):
    """The coefficient is 1 up to the limit and limit / norm above it, also for norm 0."""
    square = np.float32(norm) * np.float32(norm)
    got_norm, coefficient = pinned.clip_coefficient(np.array(square, np.float32), 1.0)
    assert got_norm == np.float32(norm)
    assert coefficient == (np.float32(1) / np.float32(norm) if expected is None else expected)


def test_embedding_copies_rows():
    """The embedding's rows are the table's, bit for bit, -0 and subnormals included."""
    table = np.array([[-0.0, 1e-45], [3, 4]], np.float32)
    tokens = np.array([1, 0, 0], np.int32)
    same_bits(pinned.embedding(tokens, table), table[tokens])


def test_rope_inverse_is_the_transpose():
    """The inverse rotation has the bits of the rotation by the negated sines."""
    x, cos, sin, _ = rope(Operands(2, 7, 6))
    same_bits(pinned.rope(x, cos, sin, True), pinned.rope(x, cos, -sin, False))
