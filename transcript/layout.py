"""Where every value of an arena, a state, a batch or the constants lies, to the byte.

A layout orders named tensors in one byte range without gaps. A tensor lies in *leaf order*: a
leaf is a 64 x 64 tile of its last two dimensions, tiles go row by row, leading dimensions are
outermost in C order, and the elements of a tile are row-major; edge tiles are smaller. A vector's
leaf is 4,096 elements, a scalar is one leaf. Bytes are raw and little-endian. A row panel and a
column panel of a matrix therefore open at the same small number of leaves.

The document form is fixed in docs/formats/leaves.md.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from transcript.errors import ContractError, LimitError, MalformedError, VersionError
from transcript.tiles import leaf_elements, ravel, tile_counts, tile_slices, tile_views, unravel

DOCUMENT_TYPE: Final = "bitwitness/layout/v1"
ALGORITHM: Final = "sha256-rfc9162-tile64-v1"

# bf16 and f16 values are carried as their bits, in u16: no part of the transcript does arithmetic.
DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "f32": np.dtype("<f4"),
    "i32": np.dtype("<i4"),
    "i64": np.dtype("<i8"),
    "u8": np.dtype("u1"),
    "u16": np.dtype("<u2"),
    "u32": np.dtype("<u4"),
}

MAX_ENTRIES: Final = 65_536
MAX_DIMS: Final = 8
MAX_BYTES: Final = 1 << 42  # 4 TiB: beyond any arena, far below overflow
MAX_LEAVES: Final = 1 << 24  # 256 GiB of whole f32 tiles; the bounds take 8 bytes each
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")

Bytes = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor's place: `offset` in bytes, `first_leaf` in leaves, from the range's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    first_leaf: int

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def tiles(self) -> tuple[int, ...]:
        """The number of tiles along each axis: leading dims, tile rows, tile columns."""
        return tile_counts(self.shape)

    @property
    def leaf_count(self) -> int:
        """The number of leaves."""
        return prod(self.tiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """What one leaf holds: elements `array[slices]` of `name`, at bytes [offset, offset + bytes).

    `tile` is the index along each axis of `Entry.tiles`. A leading axis in `slices` is a slice of
    length one, so `array[slices]` keeps its rank.
    """

    name: str
    tile: tuple[int, ...]
    slices: tuple[slice, ...]
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Ordered entries of one byte range; make one with `Layout.build` or `from_document`."""

    entries: tuple[Entry, ...]
    _by_name: dict[str, Entry] = field(init=False, repr=False, compare=False)
    _bounds: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = [leaf_elements(e.shape) * DTYPES[e.dtype].itemsize for e in self.entries]
        bounds = np.zeros(sum(map(len, sizes)) + 1, np.int64)
        if sizes:
            np.cumsum(np.concatenate(sizes), out=bounds[1:])
        bounds.flags.writeable = False
        object.__setattr__(self, "_by_name", {entry.name: entry for entry in self.entries})
        object.__setattr__(self, "_bounds", bounds)

    @classmethod
    def build(cls, tensors: Iterable[tuple[str, str, Sequence[int]]]) -> Layout:
        """Lay out (name, dtype, shape) tensors in the order given.

        Put wide dtypes before narrow ones where alignment matters: there is no padding.

        Raises:
            ContractError: a bad or repeated name, an unknown dtype, a negative dimension.
            LimitError: more than MAX_ENTRIES, MAX_DIMS, MAX_LEAVES or MAX_BYTES.

        """
        entries: list[Entry] = []
        seen: set[str] = set()
        offset = leaf = 0
        for name, dtype, shape in tensors:
            entry = Entry(
                name=name, dtype=dtype, shape=tuple(shape), offset=offset, first_leaf=leaf
            )
            _check_entry(entry, seen)
            entries.append(entry)
            offset, leaf = offset + entry.bytes, leaf + entry.leaf_count
            if len(entries) > MAX_ENTRIES or offset > MAX_BYTES or leaf > MAX_LEAVES:
                raise LimitError(
                    f"layout exceeds its limits at {name}: {leaf} leaves, {offset} bytes"
                )
        return cls(tuple(entries))

    @property
    def bytes(self) -> int:
        """Size of the whole range in bytes."""
        return int(self._bounds[-1])

    @property
    def leaf_count(self) -> int:
        """The number of leaves of the whole range."""
        return len(self._bounds) - 1

    def leaf_sizes(self) -> npt.NDArray[np.int64]:
        """Return the size of each leaf in bytes, int64 [leaf_count]."""
        return np.diff(self._bounds)

    def leaf_bounds(self) -> npt.NDArray[np.int64]:
        """Return each leaf's start and the end of the last: read-only int64 [leaf_count + 1]."""
        return self._bounds

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def entry(self, name: str) -> Entry:
        """Return the entry called `name`; ContractError if there is none."""
        try:
            return self._by_name[name]
        except KeyError:
            raise ContractError(f"no tensor {name!r} in this layout") from None

    def leaf_range(self, name: str) -> range:
        """Return the numbers of the leaves that hold the tensor."""
        entry = self.entry(name)
        return range(entry.first_leaf, entry.first_leaf + entry.leaf_count)

    def pack_into(
        self, buffer: bytearray | memoryview | npt.NDArray[np.uint8], name: str, array: Any
    ) -> None:
        """Write a tensor's elements into its place in leaf order, bit by bit.

        Args:
            buffer: writable, exactly `bytes` long.
            name: the tensor.
            array: numpy array of exactly the entry's dtype and shape, any strides.

        Raises:
            ContractError: wrong dtype, shape, name or buffer size.

        """
        entry = self.entry(name)
        dtype = DTYPES[entry.dtype]
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != entry.shape:
            raise ContractError(
                f"{name} needs {entry.dtype} {list(entry.shape)}, not "
                f"{getattr(array, 'dtype', type(array).__name__)} "
                f"{list(getattr(array, 'shape', ()))}"
            )
        flat = self._flat(buffer, entry)
        for place, elements in tile_views(flat, array, entry.shape):
            place[...] = elements

    def pack(self, arrays: Mapping[str, Any]) -> npt.NDArray[np.uint8]:
        """Pack all tensors into a fresh uint8 [bytes]; `arrays` has exactly the entries' names."""
        if arrays.keys() != self._by_name.keys():
            odd = sorted(arrays.keys() ^ self._by_name.keys())
            raise ContractError(f"pack needs every tensor once; odd ones: {odd[:5]}")
        buffer = np.empty(self.bytes, np.uint8)
        for name, array in arrays.items():
            self.pack_into(buffer, name, array)
        return buffer

    def unpack(self, buffer: Bytes, name: str) -> npt.NDArray[Any]:
        """Read a tensor from its place into a fresh C-contiguous array of its dtype and shape.

        Raises:
            ContractError: unknown name, or the buffer's length is not the range's.

        """
        entry = self.entry(name)
        return unpack_entry(self._flat(buffer, entry), entry)

    def unpack_all(self, buffer: Bytes) -> dict[str, npt.NDArray[Any]]:
        """Read every tensor by name, in order: what `pack` was given; errors as `unpack`."""
        return {entry.name: self.unpack(buffer, entry.name) for entry in self.entries}

    def _flat(self, buffer: Bytes, entry: Entry) -> npt.NDArray[Any]:
        flat = byte_view(buffer)
        if flat.size != self.bytes:
            raise ContractError(f"buffer has {flat.size} bytes, the layout {self.bytes}")
        return flat[entry.offset : entry.offset + entry.bytes].view(DTYPES[entry.dtype])

    def locate(self, leaf: int) -> Leaf:
        """Say what leaf number `leaf` holds; ContractError outside [0, leaf_count)."""
        if not 0 <= leaf < self.leaf_count:
            raise ContractError(f"leaf {leaf} is outside [0, {self.leaf_count})")
        entry = self._entry_of_leaf(leaf)
        tile = unravel(leaf - entry.first_leaf, entry.tiles)
        start, end = int(self._bounds[leaf]), int(self._bounds[leaf + 1])
        return Leaf(
            name=entry.name,
            tile=tile,
            slices=tile_slices(entry.shape, tile),
            offset=start,
            bytes=end - start,
        )

    def _entry_of_leaf(self, leaf: int) -> Entry:
        # from the right: entries without leaves share their successor's first leaf
        return self.entries[bisect_right(self.entries, leaf, key=attrgetter("first_leaf")) - 1]

    def leaf_of(self, name: str, tile: Sequence[int]) -> int:
        """Return the leaf that holds tile index `tile` of `name`; the inverse of `locate`."""
        entry = self.entry(name)
        tiles = entry.tiles
        if len(tile) != len(tiles) or not all(0 <= i < n for i, n in zip(tile, tiles, strict=True)):
            raise ContractError(f"{name} has tiles {list(tiles)}, no {list(tile)}")
        return entry.first_leaf + ravel(tuple(tile), tiles)

    def document(self) -> dict[str, Any]:
        """Return the layout as a JSON object (docs/formats/leaves.md)."""
        return {
            "type": DOCUMENT_TYPE,
            "algorithm": ALGORITHM,
            "entries": [
                {
                    "name": entry.name,
                    "dtype": entry.dtype,
                    "shape": list(entry.shape),
                    "offset": entry.offset,
                    "first_leaf": entry.first_leaf,
                }
                for entry in self.entries
            ],
        }

    @classmethod
    def from_document(cls, document: object, *, file: str = "") -> Layout:
        """Parse a layout document from an untrusted source.

        Raises:
            MalformedError: wrong keys or types, or offsets other than `build` would give.
            VersionError: another type or algorithm.
            LimitError: too many entries, dimensions, leaves or bytes.

        """
        tensors = _parse_document(document, file)
        try:
            layout = cls.build(tensors)
        except ContractError as error:
            raise MalformedError(error.message, file=file) from None
        if layout.document() != document:
            raise MalformedError("layout offsets do not follow from its shapes", file=file)
        return layout


def byte_view(buffer: Bytes) -> npt.NDArray[np.uint8]:
    """See a C-contiguous buffer as uint8 [length] without a copy; ContractError otherwise."""
    try:
        return np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError) as error:
        raise ContractError(f"not a contiguous buffer: {error}") from None


def unpack_entry(flat: npt.NDArray[Any], entry: Entry) -> npt.NDArray[Any]:
    """Read a tensor from its own range in leaf order: its raw bytes, or [size] of its dtype."""
    flat = flat.view(DTYPES[entry.dtype])
    array = np.empty(entry.shape, DTYPES[entry.dtype])
    for place, elements in tile_views(flat, array, entry.shape):
        elements[...] = place
    return array


def _check_entry(entry: Entry, seen: set[str]) -> None:
    if not isinstance(entry.name, str) or not _NAME.fullmatch(entry.name) or entry.name in seen:
        raise ContractError(f"bad or repeated tensor name {entry.name!r}")
    seen.add(entry.name)
    if entry.dtype not in DTYPES:
        raise ContractError(f"{entry.name}: dtype {entry.dtype!r} is not one of {sorted(DTYPES)}")
    if len(entry.shape) > MAX_DIMS:
        raise LimitError(f"{entry.name}: more than {MAX_DIMS} dimensions")
    # bool is an int in Python, and an int above MAX_BYTES would only waste time in products
    if any(type(n) is not int or n < 0 for n in entry.shape):
        raise ContractError(f"{entry.name}: a dimension is not a non-negative integer")
    if any(n > MAX_BYTES for n in entry.shape) or entry.bytes > MAX_BYTES:
        raise LimitError(f"{entry.name}: larger than {MAX_BYTES} bytes")


def _parse_document(document: object, file: str) -> list[tuple[str, str, list[int]]]:
    if not isinstance(document, dict) or document.keys() != {"type", "algorithm", "entries"}:
        raise MalformedError("a layout has exactly type, algorithm and entries", file=file)
    if document["type"] != DOCUMENT_TYPE or document["algorithm"] != ALGORITHM:
        raise VersionError(
            f"layout is {document['type']!r} with {document['algorithm']!r}, "
            f"not {DOCUMENT_TYPE} with {ALGORITHM}",
            file=file,
        )
    entries = document["entries"]
    if not isinstance(entries, list):
        raise MalformedError("layout entries are not a list", file=file)
    if len(entries) > MAX_ENTRIES:
        raise LimitError(f"layout has more than {MAX_ENTRIES} entries", file=file)
    return [_parse_entry(entry, file) for entry in entries]


def _parse_entry(entry: object, file: str) -> tuple[str, str, list[int]]:
    keys = {"name", "dtype", "shape", "offset", "first_leaf"}
    if not isinstance(entry, dict) or entry.keys() != keys:
        raise MalformedError(f"a layout entry has exactly {sorted(keys)}", file=file)
    if not isinstance(entry["name"], str) or not isinstance(entry["dtype"], str):
        raise MalformedError("a layout entry's name or dtype is not a string", file=file)
    # type(), because true and 1 compare equal and only one of them is a number
    if not isinstance(entry["shape"], list) or not (
        type(entry["offset"]) is type(entry["first_leaf"]) is int
    ):
        raise MalformedError("a layout entry's shape or offset has a wrong type", file=file)
    return entry["name"], entry["dtype"], entry["shape"]
