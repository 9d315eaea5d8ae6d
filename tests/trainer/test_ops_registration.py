"""How the operators behave as torch operators: fakes, views, dispatch, threads, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from emulator_ext import NonFiniteError, OperandError, UnsupportedError, pinned
from tests.trainer.generate.test_operators import CALLS as DECODING
from trainer import ops
from trainer.ops import collective, threads

GENERATOR = torch.Generator().manual_seed(5)


def normal(*shape):
    return torch.randn(shape, generator=GENERATOR)


def index(size, *shape):
    return torch.randint(0, size, shape, generator=GENERATOR, dtype=torch.int32)


X, W, RSTD, TABLE = normal(300, 130), normal(130), normal(300).abs(), normal(9, 130)
SQUARE, ROTATED = normal(2, 3, 40, 40), normal(2, 3, 40, 10)
COS, SIN = normal(40, 5), normal(40, 5)
TOKENS, TARGETS = index(9, 300), index(130, 300)
SCALARS = torch.tensor([0.01, 2.0, 3.0])

CALLS = {
    "gemm": (normal(2, 7, 33), normal(2, 33, 5), "heal", "hopper"),
    "rmsnorm": (X, W, 1e-5),
    "rmsnorm_backward": (X, X, W, RSTD),
    "rope": (ROTATED, COS, SIN, False),
    "causal_softmax": (SQUARE, 0.3),
    "causal_softmax_backward": (SQUARE, SQUARE, 0.3),
    "swiglu": (X,),
    "swiglu_backward": (X[:, :65], X),
    "embedding": (TOKENS, TABLE),
    "embedding_backward": (TOKENS, X, 9),
    "cross_entropy": (X, TARGETS),
    "cross_entropy_backward": (X[0, 0], X, TARGETS),
    "all_reduce": (W, 1),
    "sum_squares": (X,),
    "clip_coefficient": (RSTD[0], 0.01),
    "adamw": (X, X, X, X.abs(), RSTD[0], SCALARS, 0.9, 0.95, 1e-8, 0.1),
}


def op(name):
    return getattr(torch.ops.bitwitness, name).default


def as_list(result):
    return list(result) if isinstance(result, tuple) else [result]


def same_bits(got, expected):
    for a, b in zip(as_list(got), as_list(expected), strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def strided(tensor):
    """Lay the same values out with no two neighbours adjacent in memory."""
    if tensor.ndim == 0:
        return tensor
    return tensor.repeat_interleave(2, dim=-1)[..., ::2]


def test_the_pinned_set_is_complete():
    """PINNED names exactly the operators that these tests and those of decoding cover."""
    assert frozenset(CALLS) | frozenset(DECODING) == ops.PINNED
    assert not frozenset(CALLS) & frozenset(DECODING)


@pytest.mark.parametrize("name", CALLS)
def test_torch_checks_the_registration(name):
    """Torch's own checker finds schema, fake and autograd registrations consistent."""
    differentiable = name in {
        "gemm", "rmsnorm", "rope", "causal_softmax", "swiglu", "embedding", "cross_entropy"
    }  # fmt: skip
    arguments = [
        a.clone().requires_grad_() if differentiable and _is_float(a) else a for a in CALLS[name]
    ]
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op(name), tuple(arguments), test_utils=utilities)


def _is_float(argument):
    return isinstance(argument, torch.Tensor) and argument.dtype == torch.float32


@pytest.mark.parametrize("name", CALLS)
def test_fake_results_are_like_real_ones(name):
    """Fake results have the real ones' shapes, dtypes and strides; real ones are contiguous."""
    real = as_list(op(name)(*CALLS[name]))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in CALLS[name]]
        fake = as_list(op(name)(*fakes))
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        assert a.is_contiguous()


@pytest.mark.parametrize("name", CALLS)
def test_strides_and_threads_change_no_bit(name):
    """Non-contiguous operands, and 1, 2 or all threads, give the same bits."""
    with threads.use(1):
        expected = op(name)(*CALLS[name])
    spread = [strided(a) if isinstance(a, torch.Tensor) else a for a in CALLS[name]]
    same_bits(op(name)(*spread), expected)
    with threads.use(2):
        same_bits(op(name)(*CALLS[name]), expected)


@pytest.mark.parametrize("name", CALLS)
def test_results_alias_no_operand(name):
    """Every result has storage of its own, and no operand is changed."""
    arguments = CALLS[name]
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    before = [a.clone() for a in tensors]
    results = as_list(op(name)(*arguments))
    addresses = {a.untyped_storage().data_ptr() for a in tensors}
    assert addresses.isdisjoint(r.untyped_storage().data_ptr() for r in results)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_other_dtypes_are_refused(name):
    """Float64 floats and int64 tokens are refused by name, on data and on fakes alike."""
    wide = {torch.float32: torch.float64, torch.int32: torch.int64}
    arguments = [a.to(wide[a.dtype]) if isinstance(a, torch.Tensor) else a for a in CALLS[name]]
    with pytest.raises(OperandError, match=f"bitwitness::{name} takes torch"):
        op(name)(*arguments)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(OperandError, match=name):
        op(name)(*arguments)


class Seen(TorchDispatchMode):
    """Collects the names of dispatched operators."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Note the operator and run it."""
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def composition(tokens, targets, table, w, gate_up, head):
    x = ops.embedding(tokens, table)
    h, _ = ops.rmsnorm(x, w, 1e-5)
    h = ops.swiglu(ops.gemm(h, gate_up, "heal", "hopper"))
    scores = ops.gemm(h, h.transpose(0, 1), "heal", "hopper")
    mixed = ops.gemm(ops.causal_softmax(scores, 0.2), h, "heal", "hopper")
    turned = ops.rope(mixed.view(40, 10), COS, SIN, inverse=False)
    return ops.cross_entropy(ops.gemm(turned, head, "heal", "hopper"), targets)


def test_a_composition_stays_inside_the_namespace():
    """Forward and backward dispatch pinned operators, views and additions, and nothing else."""
    leaves = [normal(9, 130), normal(130), normal(130, 20) * 0.1, normal(10, 12)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    one = torch.ones(())
    tokens, targets = index(9, 40), index(12, 40)
    with Seen() as seen:
        loss = composition(tokens, targets, *leaves)
        torch.autograd.grad(loss, leaves, one)
    others = {n for n in seen.names if not n.startswith("bitwitness::")}
    # `add` sums the gradients of a value that is read twice.
    assert others <= {"aten::transpose", "aten::view", "aten::detach", "aten::add"}
    assert "bitwitness::embedding_backward" in seen.names


def test_only_wanted_gradients_are_computed():
    """A product with one differentiable operand runs one product in its backward pass."""
    a, b = normal(3, 4).requires_grad_(), normal(4, 5)
    with Seen() as seen:
        torch.autograd.grad(ops.gemm(a, b, "fp32", "hopper"), a, normal(3, 5))
    assert seen.names.count("bitwitness::gemm") == 2


@pytest.mark.parametrize("name", ["rmsnorm", "rope", "causal_softmax", "swiglu", "cross_entropy"])
def test_nan_aborts_naming_the_operator(name):
    """A NaN operand raises NonFiniteError through torch's dispatcher, with and without grad."""
    bad = CALLS[name][0].clone()
    bad.view(-1)[0] = torch.nan
    for operand in (bad, bad.clone().requires_grad_()):
        with pytest.raises(NonFiniteError, match=f"^{name}: "):
            op(name)(operand, *CALLS[name][1:])


def test_nan_in_a_gradient_aborts():
    """A NaN gradient raises out of the backward pass, naming the backward operator."""
    x = normal(4, 6).requires_grad_()
    with pytest.raises(NonFiniteError, match=r"^swiglu_backward: "):
        torch.autograd.grad(ops.swiglu(x), x, torch.full((4, 3), torch.nan))


@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (5, 6)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (3, 4, 5)), ((4,), (4, 5))]
)
def test_products_of_other_shapes_are_refused(a, b):
    """Shapes that do not fit, broadcasting included, are refused on data and on fakes."""
    with pytest.raises(OperandError):
        ops.gemm(torch.ones(a), torch.ones(b), "heal", "hopper")
    with FakeTensorMode(), pytest.raises(OperandError, match="gemm cannot take shapes"):
        ops.gemm(torch.ones(a), torch.ones(b), "heal", "hopper")


class Ranks:
    """A communicator that stands for this rank and two others of fixed vectors."""

    def all_reduce(self, flat):
        """Return the pinned sum in rank order."""
        return pinned.tree_sum(np.stack([flat, 2 * flat, 3 * flat]))


def test_all_reduce_goes_through_the_installed_communicator():
    """Several ranks are summed by the context's communicator, and without one it is an error."""
    flat = normal(9)
    with collective.use(Ranks()):
        assert torch.equal(ops.all_reduce(flat, 3), (flat + 2 * flat) + 3 * flat)
        same_bits(ops.all_reduce(flat, 1), flat)
    with pytest.raises(UnsupportedError, match="all_reduce over 3 ranks needs a communicator"):
        ops.all_reduce(flat, 3)


class Echo:
    """A communicator that returns what it was given, or a part of it."""

    def __init__(self, stop):
        self._stop = stop

    def all_reduce(self, flat):
        """Return a view of the operand."""
        return flat[: self._stop]


def test_all_reduce_distrusts_the_communicator():
    """A result that aliases the operand is copied; one of another shape is refused."""
    flat = normal(9)
    with collective.use(Echo(None)):
        assert ops.all_reduce(flat, 2).data_ptr() != flat.data_ptr()
    with collective.use(Echo(4)), pytest.raises(OperandError, match="all_reduce"):
        ops.all_reduce(flat, 2)


def test_thread_setting_is_scoped():
    """The thread setting ends with its block, nests, and refuses counts below 1."""
    assert threads.current() is None
    with threads.use(2):
        with threads.use(None):
            assert threads.current() is None
        assert threads.current() == 2
    with pytest.raises(OperandError), threads.use(0):
        pass
    assert threads.current() is None
    assert threads.resolve(3) == 3
    assert threads.resolve(None) >= 1


def test_float_attributes_are_rounded_once_to_f32():
    """An f64 attribute and its f32 rounding give the same bits."""
    for name in ("rmsnorm", "causal_softmax", "adamw"):
        rounded = [float(np.float32(a)) if isinstance(a, float) else a for a in CALLS[name]]
        pairs = zip(rounded, CALLS[name], strict=True)
        assert all(a != b for a, b in pairs if isinstance(a, float))
        same_bits(op(name)(*rounded), op(name)(*CALLS[name]))
