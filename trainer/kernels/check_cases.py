"""What `gpu_check` compares: products, operators and leaves, on the device and on its CPU.

Everything takes a runtime, so that the comparisons themselves run in the tests, on the host shim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

import emulator_ext
import trainer.ops  # noqa: F401  # defines torch.ops.bitwitness
from trainer.kernels.device import Runtime
from trainer.kernels.gemm import gemm
from trainer.kernels.leaves import LeafHasher
from trainer.kernels.operators import IMPLEMENTATIONS
from trainer.kernels.tiles import TILES, Route, taking
from transcript.layout import DTYPES, Layout
from transcript.leaves import arena_root

PROFILES: Final = ("heal", "bf16", "fp32", "exact")

# M, N, K: odd edges, a long K, large tiles with edges, and many outputs.
GEMM_SHAPES: Final = (
    (1, 1, 1), (129, 257, 65), (64, 64, 4096), (1000, 1001, 1003), (5000, 5000, 40),
)  # fmt: skip

Shape = tuple[int, int, int]
Draw = Callable[..., Tensor]  # normal numbers of a shape


@dataclass(slots=True)
class Tally:
    """What has been compared."""

    outputs: int = 0
    different: int = 0
    failed: int = 0

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """Count and print what goes wrong inside, and go on: one run should show everything."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a compiler's, a driver's or a kernel's
            self.failed += 1
            line = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
            print(f"  {name:44} FAILED  {line}", flush=True)

    def compare(self, name: str, ours: Tensor, theirs: Tensor) -> None:
        """Count the outputs whose bits differ, and print a line."""
        found, expected = _words(ours), _words(theirs)
        if found.shape == expected.shape:
            different = int((found != expected).sum())
        else:
            different = max(found.numel(), expected.numel())
        self.outputs += expected.numel()
        self.different += different
        verdict = "equal" if different == 0 else f"{different:,} DIFFER"
        print(f"  {name:44} {expected.numel():>12,} outputs  {verdict}", flush=True)


def check_products(
    tally: Tally, rt: Runtime, arch: str, shapes: Sequence[Shape], route: Route = "mma"
) -> None:
    """Compare every profile, tile and transposition of a route with the emulator."""
    rng = np.random.default_rng(0)
    for profile in profiles_of(route):
        for shape, case in ((s, c) for s in shapes for c in ("NN", "NT", "TN")):
            with tally.guard(f"gemm {profile} {case} {shape}"):
                _check_product(tally, rt, arch, profile, route, shape, case, rng)
        with tally.guard(f"gemm {profile}, heads by strides"), taking(route):
            _check_heads(tally, rt, arch, profile, rng)


def _check_product(
    tally: Tally, rt: Runtime, arch: str, profile: str, route: Route,
    shape: Shape, case: str, rng: np.random.Generator,
) -> None:  # fmt: skip
    m, n, k = shape
    a = _matrix(rng, m, k, transposed=case[0] == "T")
    b = _matrix(rng, k, n, transposed=case[1] == "T")
    expected = emulated(a, b, profile, arch)
    left, right = a.to(rt.torch_device), b.to(rt.torch_device)
    tiles = [tile for tile in TILES.get(profile, ()) if tile.route == route]
    for tile in tiles or (None,):
        name = f"{tile.kernel if tile else 'gemm_fp32'} {case} {m} x {n} x {k}"
        with tally.guard(name):
            tally.compare(name, gemm(rt, left, right, profile, tile=tile), expected)


def profiles_of(route: Route) -> tuple[str, ...]:
    """Return the profiles that take a route; those that have no other count as `mma`."""
    if route == "mma":
        return PROFILES
    return tuple(p for p, tiles in TILES.items() if route in {t.route for t in tiles})


def _check_heads(
    tally: Tally, rt: Runtime, arch: str, profile: str, rng: np.random.Generator
) -> None:
    x = torch.from_numpy(rng.standard_normal((2, 50, 3, 16), np.float32))
    q = x.to(rt.torch_device).permute(0, 2, 1, 3)
    found = gemm(rt, q, q.transpose(-1, -2), profile)
    host = x.permute(0, 2, 1, 3)
    expected = emulated(host, host.transpose(-1, -2), profile, arch)
    tally.compare(f"gemm {profile}, heads by strides", found, expected)


def emulated(a: Tensor, b: Tensor, profile: str, arch: str) -> Tensor:
    """Multiply host tensors by the emulator."""
    return torch.from_numpy(emulator_ext.gemm(a.numpy(), b.numpy(), profile=profile, arch=arch))


def check_operators(tally: Tally, rt: Runtime, rows: int) -> None:
    """Compare every other pinned operator with the CPU's, on random operands of `rows` rows."""
    for name, args in operator_cases(rows):
        with tally.guard(name):
            _check_operator(tally, rt, name, args)


def _check_operator(tally: Tally, rt: Runtime, name: str, args: tuple[Any, ...]) -> None:
    moved = [a.to(rt.torch_device) if isinstance(a, Tensor) else a for a in args]
    found = IMPLEMENTATIONS[name](rt, *moved)
    expected = getattr(torch.ops.bitwitness, name)(*args)
    for i, (ours, theirs) in enumerate(zip(_tuple(found), _tuple(expected), strict=True)):
        tally.compare(f"{name}, result {i}", ours, theirs)


def check_leaves(tally: Tally, rt: Runtime, rows: int) -> None:
    """Compare packing and the root of a layout with whole and edge tiles of any dtype."""
    layout = Layout.build(
        [
            ("a", "f32", (3, rows, 1003)), ("b", "i32", (50 * rows + 1,)), ("c", "f32", ()),
            ("d", "u16", (3, rows, 131)), ("e", "u8", (3, rows, 1)), ("f", "u8", (77,)),
            ("g", "u16", (2, 65, 67)), ("h", "f32", (66, 3)),  # at whatever byte they begin
        ]
    )  # fmt: skip
    rng = np.random.default_rng(3)
    arrays = {
        e.name: rng.integers(0, 256, e.bytes, np.uint8).view(DTYPES[e.dtype]).reshape(e.shape)
        for e in layout.entries
    }
    hasher = LeafHasher(rt, layout)
    buffer = hasher.new_buffer()
    for name, array in arrays.items():
        hasher.pack_into(buffer, name, torch.from_numpy(array).to(rt.torch_device))
    packed = layout.pack(arrays)
    tally.compare("leaf order", buffer, torch.from_numpy(packed))
    roots = (hasher.root(buffer), arena_root(packed, layout))
    ours, theirs = (torch.from_numpy(np.frombuffer(root, np.uint8).copy()) for root in roots)
    tally.compare("root, in bytes", ours, theirs)


def operator_cases(rows: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield each operator but the product with operands on the host; widths are odd."""
    rng = np.random.default_rng(rows)

    def normal(*shape: int, spread: float = 1.0) -> Tensor:
        drawn = rng.standard_normal(shape, np.float32) * np.float32(spread)
        return torch.from_numpy(np.asarray(drawn))

    def index(size: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, size, rows, np.int32))

    width, vocab = 777, 257
    length, heads = min(32 + rows, 300), 1 + rows // 250
    x, dy, weight = normal(rows, width), normal(rows, width), normal(width)
    yield "rmsnorm", (x, weight, 1e-5)
    rstd = torch.ops.bitwitness.rmsnorm(x, weight, 1e-5)[1]
    yield "rmsnorm_backward", (dy, x, weight, rstd)
    cos, sin = normal(length, 32), normal(length, 32)
    for inverse in (False, True):
        yield "rope", (normal(heads, length, 64), cos, sin, inverse)
    scores = normal(heads, length, length, spread=6)
    yield "causal_softmax", (scores, 0.125)
    p = torch.ops.bitwitness.causal_softmax(scores, 0.125)
    yield "causal_softmax_backward", (p, normal(*scores.shape), 0.125)
    gate_up = normal(rows, 2 * width, spread=3)
    yield "swiglu", (gate_up,)
    yield "swiglu_backward", (dy, gate_up)
    tokens = index(vocab)
    yield "embedding", (tokens, normal(vocab, width))
    yield "embedding_backward", (tokens, dy, vocab)
    logits, targets = normal(rows, vocab, spread=5), index(vocab)
    yield "cross_entropy", (logits, targets)
    yield "cross_entropy_backward", (torch.tensor(0.37), logits, targets)
    yield "sum_squares", (x.reshape(-1)[1:],)
    yield "clip_coefficient", (torch.tensor(7.25), 1.0)
    moments = (normal(rows, width), normal(rows, width).abs())
    scalars = torch.tensor([1e-3, 1.5, 3.25])
    yield "adamw", (x, dy, *moments, torch.tensor(0.5), scalars, 0.9, 0.95, 1e-8, 0.1)
    yield "all_reduce", (weight, 1)
    yield from _int16_cases(normal, heads, length)
    yield from _decoding_cases(normal, rows, heads, length)


def _int16_cases(normal: Draw, heads: int, length: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the operators over INT16 vectors; 600 keys need their sums emptied once."""
    numerics, keys, size = ("fp32", "hopper"), length + 600, 96
    q, k = normal(heads, length, size), normal(heads, keys, size, spread=30)
    p = normal(heads, length, keys).abs() / keys
    yield "int16_quantise", (k,)
    codes, scales = torch.ops.bitwitness.int16_quantise(k)
    yield "int16_hold", (k,)
    yield "int16_scores", (q, codes, scales)
    yield "int16_mix", (p, codes, scales)
    yield "int16_dot", (q, k, *numerics)
    yield "int16_blend", (p, k, *numerics)
    wide = normal(heads, 3, 1024)
    yield "int16_dot", (wide, wide, *numerics)


def _decoding_cases(
    normal: Draw, rows: int, heads: int, length: int
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the operators of decoding at one position, caches of every width among them."""
    position = torch.tensor([length // 2], dtype=torch.int32)
    yield "prefix_softmax", (normal(rows, 1, length, spread=6), position, 0.125)
    cache = normal(heads, length, 96)
    codes, scales = torch.ops.bitwitness.int16_quantise(cache)
    for whole in (cache, codes, scales):
        yield "cache_write", (whole, whole[:, :1].contiguous(), position)
    tokens = torch.full((rows, length + 1), -1, dtype=torch.int32)
    tokens[::2] = 7
    yield "token_at", (tokens, position)
    logits = (normal(rows, 257) * 4).round()  # with ties
    yield "greedy", (logits, tokens, position)


def _words(tensor: Tensor) -> Tensor:
    """See a tensor's elements on the host as integers of their width, [n]."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.cpu().contiguous().view(-1).view(integers[tensor.element_size()])


def _matrix(rng: np.random.Generator, rows: int, columns: int, *, transposed: bool) -> Tensor:
    """Return normal numbers over many binades, laid out row by row or column by column."""
    shape = (columns, rows) if transposed else (rows, columns)
    scale = np.exp2(rng.integers(-12, 12, (shape[0], 1))).astype(np.float32)
    x = torch.from_numpy(rng.standard_normal(shape, np.float32) * scale)
    return x.T if transposed else x


def _tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
