"""Arena, state and batch roots on the device: `sha256-rfc9162-tile64-v1` by `cuda/leaves.cu`.

The same bytes and roots as `transcript.leaves`, without bringing every tensor to the host: only
the root, or the leaf hashes, come back.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from trainer.kernels.device import Runtime
from trainer.kernels.errors import KernelError
from transcript.layout import DTYPES, Layout
from transcript.merkle import root_of

HASH_WORDS: Final = 8
HASH_THREADS: Final = 32  # kHashThreads of leaves.cu
PACK_THREADS: Final = 256  # kThreads of leaves.cu


class LeafHasher:
    """Packs and hashes one layout's byte range on one device; elements of any width."""

    def __init__(self, rt: Runtime, layout: Layout) -> None:
        self._rt, self._layout = rt, layout
        self._bounds = torch.from_numpy(layout.leaf_bounds().copy()).to(rt.torch_device)

    def new_buffer(self) -> Tensor:
        """Return an uninitialised byte range on the device, uint8 [bytes]."""
        return self._rt.empty(self._layout.bytes, dtype=torch.uint8)

    def pack_into(self, buffer: Tensor, name: str, tensor: Tensor) -> None:
        """Write a tensor into its place in leaf order; any strides, exactly the entry's shape.

        Raises:
            KernelError: another shape or element size than the entry's, or another buffer size.

        """
        entry, width = self._layout.entry(name), tensor.element_size()
        self._require_buffer(buffer)
        if tuple(tensor.shape) != entry.shape or width != DTYPES[entry.dtype].itemsize:
            found = f"{tensor.dtype} {list(tensor.shape)}"
            raise KernelError(f"{name} needs {entry.dtype} {list(entry.shape)}, not {found}")
        place, source = buffer[entry.offset : entry.offset + entry.bytes], tensor.contiguous()
        if tensor.ndim < 2:  # a vector's leaves are consecutive
            place.copy_(_bytes_of(source))
        elif entry.offset % width == 0:
            self._pack_tiles(source, place)
        else:  # after narrower elements, where no kernel may store
            place.copy_(
                _bytes_of(
                    self._pack_tiles(source, self._rt.empty(*source.shape, dtype=source.dtype))
                )
            )

    def _pack_tiles(self, source: Tensor, place: Tensor) -> Tensor:
        rows, columns, n = (np.int64(k) for k in (*source.shape[-2:], source.numel()))
        grid = (-(-source.numel() // PACK_THREADS), 1, 1)
        kernel = f"pack_tiles_{source.element_size()}"
        self._rt.launch(kernel, grid, PACK_THREADS, source, rows, columns, n, place)
        return place

    def leaf_hashes(self, buffer: Tensor) -> Tensor:
        """Hash every leaf: uint8 [leaves, 32] on the device."""
        self._require_buffer(buffer)
        leaves = self._layout.leaf_count
        hashes = self._rt.empty(leaves, HASH_WORDS, dtype=torch.int32)
        args = (buffer, self._bounds, np.int64(leaves), hashes)
        self._rt.launch("leaf_hashes", _over(leaves), HASH_THREADS, *args)
        return hashes.view(torch.uint8)

    def root(self, buffer: Tensor) -> bytes:
        """Return the RFC 9162 root of the byte range, 32 bytes; waits for the device."""
        level = self.leaf_hashes(buffer)
        if level.shape[0] == 0:
            return root_of([])
        while level.shape[0] > 1:
            count = level.shape[0]
            above = self._rt.empty((count + 1) // 2, HASH_WORDS, dtype=torch.int32)
            grid = _over(above.shape[0])
            self._rt.launch("tree_level", grid, HASH_THREADS, level, np.int64(count), above)
            level = above.view(torch.uint8)
        return bytes(level[0].cpu().numpy())

    def _require_buffer(self, buffer: Tensor) -> None:
        if buffer.dtype != torch.uint8 or tuple(buffer.shape) != (self._layout.bytes,):
            found = f"{buffer.dtype} {list(buffer.shape)}"
            raise KernelError(f"the buffer is {found}, the layout uint8 [{self._layout.bytes}]")


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _over(elements: int) -> tuple[int, int, int]:
    return (-(-elements // HASH_THREADS), 1, 1)
