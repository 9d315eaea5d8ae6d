"""How well the arithmetic behind one element is known (NUMERICS 1.4).

"exact": fixed by IEEE 754 and, in the profile of that name, by integer sums that every engine
holds. "recorded": a tensor-core step whose table row agrees with outputs recorded from hardware.
"modelled": known from a published model only; a difference there is inconclusive. "unknown":
there is no such instruction. "implausible": modelled, but no hardware could be as far from the
model (`verifier.plausible`). `heal` keeps all its operands in the recorded region; `bf16` can
leave it where every product of a step is as small as e_zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from emulator_ext import Numerics, UnsupportedError, numerics
from trainer.config import NumericsConfig
from trainer.graph import GEMM, Node, Ref, StepGraph
from verifier.plausible import allowance, plausible

_OPERAND = {"heal": "f16", "bf16": "bf16"}
# A bf16 subnormal keeps the exponent of the least normal number.
_BF16_EMIN = -126


def table_row(config: NumericsConfig) -> Numerics | None:
    """Return the tensor-core row that a run's GEMMs use; None if they use none.

    Raises:
        UnsupportedError: the architecture has no such instruction.

    """
    dtype = _OPERAND.get(config.profile)
    return numerics(config.arch, dtype) if dtype else None


def level(config: NumericsConfig) -> str:
    """Return the evidence level of a run's GEMMs."""
    try:
        row = table_row(config)
    except UnsupportedError:
        return "unknown"
    return row.evidence if row else "exact"


class ElementEvidence:
    """Evidence level by operator and element of its output.

    Args:
        graph: the step graph.
        numerics: of the run.
        arena: the committed bytes of the rank, in the graph's arena layout.
        state: the state before, by name.

    """

    def __init__(
        self,
        graph: StepGraph,
        numerics: NumericsConfig,
        arena: NDArray[np.uint8],
        state: Mapping[str, NDArray[np.float32]],
    ) -> None:
        self._graph, self._numerics = graph, numerics
        self._arena, self._state = arena, state
        self._unpacked: dict[str, NDArray[np.float32]] = {}

    def __call__(self, node: Node, index: tuple[int, ...]) -> str:
        """Return the level for one element of the node's output."""
        if node.op != GEMM:
            return "exact"
        found = level(self._numerics)
        if found != "recorded" or self._numerics.profile != "bf16":
            return found
        row = table_row(self._numerics)
        if row is not None and reaches_e_zero(*self._vectors(node, index), row):
            return "modelled"
        return found

    def plausible(
        self, node: Node, index: tuple[int, ...], committed: float, recomputed: float
    ) -> bool:
        """Whether hardware that differs from the model could have given a modelled element."""
        row = table_row(self._numerics)
        if row is None:
            return False
        a_K, b_K = self._vectors(node, index)
        allowed = allowance(a_K, b_K, self._numerics.profile, row)
        return plausible(committed, recomputed, allowed)

    def _vectors(
        self, node: Node, index: tuple[int, ...]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the row and the column, f32 [K], that one element of a product is made of."""
        left, right, *_ = node.refs()
        a_MK, b_KN = self._matrix(left, index[:-2]), self._matrix(right, index[:-2])
        return a_MK[index[-2]], b_KN[:, index[-1]]

    def _matrix(self, ref: Ref, batch: tuple[int, ...]) -> NDArray[np.float32]:
        """Return one matrix of a GEMM operand, f32 [rows, columns]."""
        matrix = self._view(ref)
        for i in batch:
            matrix = matrix[i]
        return matrix

    def _view(self, ref: Ref) -> NDArray[np.float32]:
        base = self._base(self._graph.values[ref.value].name)
        flat = base.reshape(-1)[ref.offset :]
        strides = tuple(step * flat.itemsize for step in ref.stride)
        return np.lib.stride_tricks.as_strided(flat, ref.shape, strides, writeable=False)

    def _base(self, name: str) -> NDArray[np.float32]:
        if name not in self._graph.arena:
            return self._state[name]
        if name not in self._unpacked:
            if len(self._unpacked) > 1:  # one product's operands: its elements are asked in turn
                self._unpacked.clear()
            self._unpacked[name] = self._graph.arena.unpack(self._arena, name)
        return self._unpacked[name]


def reaches_e_zero(a_K: NDArray[np.float32], b_K: NDArray[np.float32], row: Numerics) -> bool:
    """Whether some step of L products has none above the floor e_zero, but one that is not 0.

    The accumulator may still lie above the floor, so this errs towards "modelled".
    """
    if row.L is None or row.e_zero is None:
        return False
    exponents = _bf16_exponents(a_K) + _bf16_exponents(b_K)
    nonzero = (a_K != 0) & (b_K != 0)
    pad = -len(exponents) % row.L
    blocks = np.pad(np.where(nonzero, exponents, -(1 << 20)), (0, pad), constant_values=-(1 << 20))
    greatest = blocks.reshape(-1, row.L).max(axis=1)
    return bool(np.any((greatest > -(1 << 19)) & (greatest <= row.e_zero)))


def _bf16_exponents(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each exponent after rounding to nearest bf16, from the bits."""
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.int64)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    exponents: NDArray[np.int64] = np.maximum((rounded >> 23 & 0xFF) - 127, _BF16_EMIN)
    return exponents
