"""How a tensor is cut into leaves, by its shape alone.

A leaf is a 64 x 64 tile of the last two dimensions, 4,096 elements of a vector, or a scalar.
Tiles go row by row, leading dimensions are outermost in C order, and the elements of a tile are
row-major; edge tiles are smaller. Everything here is a function of a shape; docs/formats/leaves.md
is the contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

TILE: Final = 64
VECTOR_LEAF: Final = TILE * TILE


def tile_counts(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of tiles along each axis: leading dims, tile rows, tile columns."""
    if len(shape) < 2:
        return tuple(-(-n // VECTOR_LEAF) for n in shape)
    *leading, rows, columns = shape
    return (*leading, -(-rows // TILE), -(-columns // TILE))


def ravel(tile: tuple[int, ...], counts: tuple[int, ...]) -> int:
    """Return the position in C order of index `tile` among `counts`."""
    position = 0
    for index, count in zip(tile, counts, strict=True):
        position = position * count + index
    return position


def unravel(position: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index at `position` in C order among `counts`; the inverse of `ravel`."""
    tile = []
    for count in reversed(counts):
        position, index = divmod(position, count)
        tile.append(index)
    return tuple(reversed(tile))


def tile_slices(shape: tuple[int, ...], tile: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the elements of one tile as slices; a leading axis gives a slice of length one."""
    edges: tuple[int, ...] = (VECTOR_LEAF,) * len(shape)
    if len(shape) >= 2:
        edges = (1,) * (len(shape) - 2) + (TILE, TILE)
    return tuple(
        slice(i * edge, min((i + 1) * edge, length))
        for i, edge, length in zip(tile, edges, shape, strict=True)
    )


def leaf_order(shape: tuple[int, ...], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where elements lie in leaf order, given their C-order positions; int64 [any shape]."""
    if len(shape) < 2:
        return positions
    *_, rows, columns = shape
    matrix, inside = np.divmod(positions, rows * columns)
    row, column = np.divmod(inside, columns)
    band, left = row - row % TILE, column - column % TILE
    height, width = np.minimum(rows - band, TILE), np.minimum(columns - left, TILE)
    tile = band * columns + left * height
    order: npt.NDArray[np.int64] = (
        matrix * (rows * columns) + tile + (row - band) * width + (column - left)
    )
    return order


def leaf_elements(shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return the number of elements of each leaf, int64 [leaves]."""
    if 0 in shape:
        return np.zeros(0, np.int64)  # before another dimension, however large, allocates
    if len(shape) < 2:
        return _tile_lengths(prod(shape), VECTOR_LEAF)
    *leading, rows, columns = shape
    heights, widths = _tile_lengths(rows, TILE), _tile_lengths(columns, TILE)
    return np.tile(np.outer(heights, widths).ravel(), prod(leading))


def tile_views(
    flat: npt.NDArray[Any], array: npt.NDArray[Any], shape: tuple[int, ...]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield equal-shaped views, of leaf order and of the array, that together cover both.

    A band of tiles holds the same elements in both orders, so each band is one contiguous stretch,
    inside of which the whole tiles come before the edge tile: at most four pairs.
    """
    if flat.size == 0:
        return
    if len(shape) < 2:
        yield flat.reshape(shape), array
        return
    *leading, rows, columns = shape
    n = prod(leading)
    flat_nx = flat.reshape(n, rows * columns)
    array_nrc = array.reshape(n, rows, columns)
    for row, bands, height in _cuts(rows, TILE):
        stop = row + bands * height
        band = flat_nx[:, row * columns : stop * columns].reshape(n, bands, height * columns)
        source = array_nrc[:, row:stop].reshape(n, bands, height, columns)
        for column, tiles, width in _cuts(columns, TILE):
            end = column + tiles * width
            yield (
                band[:, :, column * height : end * height].reshape(n, bands, tiles, height, width),
                source[..., column:end]
                .reshape(n, bands, height, tiles, width)
                .transpose(0, 1, 3, 2, 4),
            )


def _cuts(length: int, tile: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, count, size) of the whole tiles and of the edge tile, where there are any."""
    whole = length // tile
    if whole:
        yield 0, whole, tile
    if length % tile:
        yield whole * tile, 1, length % tile


def _tile_lengths(length: int, tile: int) -> npt.NDArray[np.int64]:
    lengths = np.full(-(-length // tile), tile, np.int64)
    if length % tile:
        lengths[-1] = length % tile
    return lengths
