"""What the pinned operators refuse, and how they say it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from emulator_ext import NonFiniteError, OperandError, gemm, matmul, pinned
from emulator_ext.errors import FloatEnvironmentError

ONES = np.ones((4, 6), np.float32)
WEIGHT = np.ones(6, np.float32)
TOKENS = np.zeros(4, np.int32)
SQUARE = np.ones((2, 3, 3), np.float32)
ONE = np.ones((), np.float32)


def test_nonfinite_results_name_operator_result_and_index():
    """The error names the operator, the result and the lowest bad index for any thread count."""
    x = np.ones((3000, 64), np.float32)
    x[2900, 5] = np.nan
    x[1200, 7] = np.inf
    for threads in (1, 2, 3):
        with pytest.raises(NonFiniteError, match=r"^swiglu: y is .* first at flat index 38407$"):
            pinned.swiglu(x, threads=threads)


BAD = np.array([[1, 2, np.nan, 4, 5, 6]] * 4, np.float32)
NAN_CASES = {
    "rmsnorm": lambda: pinned.rmsnorm(BAD, WEIGHT, 1e-5),
    "rmsnorm_backward": lambda: pinned.rmsnorm_backward(BAD, ONES, WEIGHT, ONES[:, 0]),
    "rope": lambda: pinned.rope(BAD, ONES[:, :3], ONES[:, :3], False),
    "causal_softmax": lambda: pinned.causal_softmax(SQUARE * np.nan, 1.0),
    "causal_softmax_backward": lambda: pinned.causal_softmax_backward(SQUARE, SQUARE * np.nan, 1.0),
    "swiglu": lambda: pinned.swiglu(BAD),
    "swiglu_backward": lambda: pinned.swiglu_backward(ONES[:, :3], BAD),
    "embedding": lambda: pinned.embedding(TOKENS, BAD),
    "embedding_backward": lambda: pinned.embedding_backward(TOKENS, BAD, 2),
    "cross_entropy": lambda: pinned.cross_entropy(BAD, TOKENS),
    "cross_entropy_backward": lambda: pinned.cross_entropy_backward(ONE, BAD, TOKENS),
    "sum_squares": lambda: pinned.sum_squares(BAD),
    "clip_coefficient": lambda: pinned.clip_coefficient(np.full((), -1, np.float32), 1.0),
    "adamw": lambda: pinned.adamw(
        ONES, BAD, ONES, ONES, ONE, np.ones(3, np.float32), 0.9, 0.9, 1e-8, 0.0
    ),
    "tree_sum": lambda: pinned.tree_sum(BAD),
    "check": lambda: pinned.check_finite(BAD, "check"),
}


@pytest.mark.parametrize("operator", NAN_CASES)
def test_every_operator_aborts_on_nan(operator):
    """A NaN operand aborts the operator that meets it, which is named."""
    with pytest.raises(NonFiniteError, match=f"^{operator}: .* is NaN or infinite, first at"):
        NAN_CASES[operator]()


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_scores_abort(value):
    """An infinite score aborts the softmax, also where its exponential would be 0."""
    scores = SQUARE.copy()
    scores[1, 2, 1] = value
    with pytest.raises(NonFiniteError, match="causal_softmax"):
        pinned.causal_softmax(scores, 1.0)


SHAPES = {
    "weight": lambda: pinned.rmsnorm(ONES, np.ones(5, np.float32), 1e-5),
    "x": lambda: pinned.rmsnorm(np.ones((0, 6), np.float32), WEIGHT, 1e-5),
    "rstd": lambda: pinned.rmsnorm_backward(ONES, ONES, WEIGHT, WEIGHT),
    "dy": lambda: pinned.rmsnorm_backward(ONES[:3], ONES, WEIGHT, ONES[:, 0]),
    "sin": lambda: pinned.rope(ONES, ONES[:, :3], ONES[:3, :3], False),
    "x has shape": lambda: pinned.rope(ONES, ONES[:, :2], ONES[:, :2], False),
    "scores": lambda: pinned.causal_softmax(ONES, 1.0),
    "dp": lambda: pinned.causal_softmax_backward(SQUARE, SQUARE[:1], 1.0),
    "odd width": lambda: pinned.swiglu(ONES[:, :5]),
    "swiglu_backward: dy": lambda: pinned.swiglu_backward(ONES, ONES),
    "tokens": lambda: pinned.embedding(TOKENS[:, None], ONES),
    "embedding_backward: tokens": lambda: pinned.embedding_backward(TOKENS[:2], ONES, 3),
    "vocab": lambda: pinned.embedding_backward(TOKENS, ONES, 0),
    "targets": lambda: pinned.cross_entropy(ONES, TOKENS[:3]),
    "dloss": lambda: pinned.cross_entropy_backward(WEIGHT, ONES, TOKENS),
    "sum_squares": lambda: pinned.clip_coefficient(WEIGHT, 1.0),
    "scalars": lambda: pinned.adamw(ONES, ONES, ONES, ONES, ONE, WEIGHT, 0.9, 0.9, 1e-8, 0.0),
    "shapes": lambda: pinned.adamw(ONES, WEIGHT, ONES, ONES, ONE, WEIGHT, 0.9, 0.9, 1e-8, 0.0),
    "shards": lambda: pinned.tree_sum(WEIGHT),
}


@pytest.mark.parametrize("name", SHAPES)
def test_wrong_shapes_are_refused_by_name(name):
    """An operand of a wrong shape is an OperandError that names it."""
    with pytest.raises(OperandError, match=name):
        SHAPES[name]()


def test_wrong_dtypes_are_refused():
    """f64 floats, int64 tokens, other byte orders and plain lists are refused, not converted."""
    for bad in (ONES.astype(np.float64), ONES.astype(">f4"), ONES.tolist()):
        with pytest.raises(OperandError, match="swiglu: gate_up must be a numpy array of float32"):
            pinned.swiglu(bad)
    with pytest.raises(OperandError, match="tokens must be a numpy array of int32"):
        pinned.embedding(TOKENS.astype(np.int64), ONES)


@pytest.mark.parametrize("token", [-1, 4])
def test_indices_outside_the_table_are_refused(token):
    """A token or target outside its table is named with its position, never read."""
    tokens = np.array([0, token, 0, 0], np.int32)
    with pytest.raises(OperandError, match=rf"tokens\[1\] = {token} is not in \[0, 4\)"):
        pinned.embedding(tokens, ONES)
    with pytest.raises(OperandError, match=rf"targets\[1\] = {token} is not in \[0, 4\)"):
        pinned.cross_entropy(ONES[:, :4], tokens)


def test_thread_counts_and_streams_out_of_range_are_refused():
    """Threads below 1 and Philox arguments outside their fields are OperandErrors."""
    with pytest.raises(OperandError, match="threads"):
        pinned.exp2(ONES, threads=0)
    for arguments in ((-1, 0, 0, 1), (0, 1 << 32, 0, 1), (0, 0, 1 << 64, 1), (0, 0, 0, -1)):
        with pytest.raises(OperandError, match="philox"):
            pinned.philox(*arguments)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: pinned.swiglu(ONES),
        lambda: gemm(ONES, ONES.T, profile="heal", arch="hopper"),
        lambda: gemm(ONES, ONES.T, profile="exact", arch="hopper"),
        lambda: matmul(ONES.astype(np.float16), ONES.T.astype(np.float16), arch="ampere"),
    ],
)
def test_a_flushing_thread_is_refused(compute):
    """With flush-to-zero set in the calling thread, operators refuse to compute."""
    assert torch.set_flush_denormal(True)
    try:
        with pytest.raises(FloatEnvironmentError, match="flushes subnormals"):
            compute()
    finally:
        torch.set_flush_denormal(False)
    assert pinned.exp2(np.array([-149.0], np.float32))[0] > 0


def test_unaligned_operands():
    """An operand that starts at an odd byte gives the right bits."""
    raw = np.zeros(ONES.nbytes + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(ONES.shape)
    odd[:] = ONES * np.float32(1.5)
    assert np.array_equal(pinned.swiglu(odd), pinned.swiglu(odd.copy()))


def test_errors_cross_process_borders():
    """The errors survive pickling with their message, as Ray sends them."""
    with pytest.raises(NonFiniteError) as raised:
        pinned.swiglu(BAD)
    copy = pickle.loads(pickle.dumps(raised.value))  # noqa: S301
    assert (type(copy), str(copy)) == (NonFiniteError, str(raised.value))
