"""The exported weights against the final state, without trusting the file's own account.

A safetensors file is 8 bytes of header length, little-endian, a JSON header and raw tensors. Ours
holds exactly the parameters, so its size and every header field follow from the configuration;
the header is compared with what it must be, and only then are any bytes compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import ModelConfig
from trainer.model import parameter_specs
from transcript import canonical
from transcript.errors import MalformedError

Tensors = Mapping[str, NDArray[np.float32]]
_LENGTH_BYTES = 8
# Name, dtype, shape and offsets of one tensor in JSON.
_HEADER_BYTES_PER_TENSOR = 1024
_DTYPE = "F32"


def parameter_count(model: ModelConfig) -> int:
    """Return the number of parameters of a model."""
    return sum(prod(spec.shape) for spec in parameter_specs(model))


def size_limit(model: ModelConfig) -> int:
    """Return the size in bytes that a file of weights cannot pass."""
    tensors = sum(1 for _ in parameter_specs(model))
    return _LENGTH_BYTES + _header_limit(tensors) + 4 * parameter_count(model)


def first_wrong_tensor(data: bytes, expected: Tensors, *, file: str) -> str | None:
    """Return the first tensor whose bits are not the expected ones; None if all are right.

    Args:
        data: the whole file.
        expected: f32 tensors by name.
        file: its name, for messages.

    Raises:
        MalformedError: not a safetensors file of exactly these names, dtypes and shapes.
        LimitError: its header is larger than these tensors need.

    """
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    body = data[_LENGTH_BYTES + length :]
    header = canonical.loads(
        data[_LENGTH_BYTES : _LENGTH_BYTES + length].rstrip(b" "),
        limit=_header_limit(len(expected)),
        file=file,
        canonical=False,
    )
    if not isinstance(header, dict) or header.keys() - {"__metadata__"} != expected.keys():
        raise MalformedError("does not hold exactly the model's parameters", file=file)
    end = 0
    for name in sorted(expected, key=lambda name: _start(header[name])):
        end = _check_place(header[name], name, expected[name], end, file)
    if end != len(body):
        raise MalformedError(f"has {len(body)} bytes of tensors, not {end}", file=file)
    for name, array in expected.items():
        start = _start(header[name])
        if body[start : start + array.nbytes] != array.astype("<f4").tobytes():
            return name
    return None


def _header_limit(tensors: int) -> int:
    return _HEADER_BYTES_PER_TENSOR * (tensors + 1)


def _start(entry: Any) -> int:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    start = offsets[0] if isinstance(offsets, list) and offsets else None
    return start if isinstance(start, int) else -1


def _check_place(entry: Any, name: str, array: NDArray[np.float32], start: int, file: str) -> int:
    """Check that a header entry is the expected one, right after its predecessor's end."""
    end = start + array.nbytes
    wanted = {"dtype": _DTYPE, "shape": list(array.shape), "data_offsets": [start, end]}
    if entry != wanted:
        raise MalformedError(f"tensor {name} is not laid out as {wanted}", file=file)
    return end
