"""The Zarr v3 store of a run: arenas, states and constants, as few large arrays.

    operands/<rank>   uint8 [recorded steps, arena bytes]
    state             uint8 [kept states, state bytes]
    constants         uint8 [1, constants bytes]

A kept state t is the state before step t; the state after the last step is that before a step which
never runs. Local folders and `s3://` both go through obstore. Roots are over the decoded bytes, so
the store is only where bytes are kept, never what they are. docs/formats/store.md is the contract.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import obstore
import zarr
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store
from obstore.store import ObjectStore as Backend
from zarr.storage import StorePath

from transcript import canonical
from transcript.errors import (
    ContractError,
    MalformedError,
    MissingError,
    StorageError,
    TranscriptError,
    VersionError,
)
from transcript.files import start_writeback, sync_files
from transcript.guard import GuardedStore, read_document
from transcript.layout import Bytes, Layout, byte_view, unpack_entry
from transcript.model import MAX_WORLD
from transcript.slots import Slots
from transcript.zarr_format import METADATA_LIMIT, Geometry, group_document, parse_group

Location = str | Path | Backend
_METADATA: Final = "zarr.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """What the bytes of a store mean: trainer and verifier each derive it from the configuration.

    All ranks share one arena layout.
    """

    arena: Layout
    state: Layout
    constants: Layout


class RunStore:
    """A run's store; make one with `create` (the trainer) or `open` (everybody else)."""

    def __init__(
        self,
        backend: Backend,
        root: Path | None,
        layouts: Layouts,
        index: tuple[Slots, Slots, int],
        *,
        writable: bool,
    ) -> None:
        self.layouts = layouts
        self.recorded, self.states, self.world = index
        self._geometries = _geometries(layouts, *index)
        guarded = GuardedStore(backend, root, self._geometries)
        # Zarr is handed our own documents: it never parses one that it found
        self._arrays = {
            name: zarr.Array.from_dict(StorePath(guarded, name), geometry.document())
            for name, geometry in self._geometries.items()
        }
        self._backend, self._root = backend, root
        self._unsynced: set[str] = set()
        self._writable = writable
        self._scratch: dict[int, npt.NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        location: Location,
        layouts: Layouts,
        *,
        recorded: Sequence[int],
        states: Sequence[int],
        world: int = 1,
    ) -> RunStore:
        """Make a store, or take up one that was made for the same plan, and open it for writing.

        Args:
            location: a local folder, an `s3://bucket/prefix` URL (credentials from the
                environment), or an obstore store.
            layouts: of arena, state and constants.
            recorded: ascending steps whose arenas will be written.
            states: ascending steps t for which the state before t will be written.
            world: the number of ranks.

        Raises:
            ContractError: the store there was made for another plan.
            StorageError: the disk or the object store fails.

        """
        if not 1 <= world <= MAX_WORLD:
            raise ContractError(f"a world has 1 to {MAX_WORLD} ranks, not {world}")
        index = (Slots.of(recorded), Slots.of(states), world)
        with _storage(str(location)):
            backend, root = _backend(location, make=True)
            _put_document(backend, root, "", group_document(*index))
            operands: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}
            _put_document(backend, root, "operands/", operands)
            for name, geometry in _geometries(layouts, *index).items():
                _put_document(backend, root, f"{name}/", geometry.document())
        store = cls(backend, root, layouts, index, writable=True)
        names = ["", "operands/", *(f"{name}/" for name in store._geometries)]
        store._unsynced |= {f"{name}{_METADATA}" for name in names}
        return store

    @classmethod
    def open(cls, location: Location, layouts: Layouts) -> RunStore:
        """Open a store that somebody else made, for reading.

        Every document in it is compared with the one that `layouts` and its index demand before
        Zarr is used at all.

        Raises:
            MissingError: there is no store, or an array is missing.
            MalformedError, VersionError, LimitError: it is another store than the layouts demand.
            StorageError: the disk or the object store fails.

        """
        with _storage(str(location)):
            backend, root = _backend(location, make=False)
            index = parse_group(_root_document(backend, root), file=_METADATA)
            if index[2] > MAX_WORLD:
                raise MalformedError(f"world of {index[2]} ranks", file=_METADATA)
            for name, geometry in _geometries(layouts, *index).items():
                key = f"{name}/{_METADATA}"
                geometry.check_document(read_document(backend, root, key, METADATA_LIMIT), file=key)
        return cls(backend, root, layouts, index, writable=False)

    def write_arena(self, rank: int, step: int, buffer: Bytes) -> None:
        """Write a rank's arena of a recorded step; again after a restart, if need be.

        Raises:
            ContractError: wrong length, rank or step, or the store is open for reading.
            StorageError: the disk or the object store fails.

        """
        self._write(self._operands(rank), _planned(self.recorded, step), buffer)

    def write_state(self, step: int, buffer: Bytes) -> None:
        """Write the state before `step`; errors as `write_arena`."""
        self._write("state", _planned(self.states, step), buffer)

    def write_constants(self, buffer: Bytes) -> None:
        """Write the constants; errors as `write_arena`."""
        self._write("constants", 0, buffer)

    def sync(self) -> None:
        """Make everything written so far survive a power cut; an object store already does.

        Raises:
            StorageError: the file system refuses.

        """
        with self._lock:
            unsynced, self._unsynced = self._unsynced, set()
        if self._root is not None:
            sync_files(self._root, [self._root / key for key in sorted(unsynced)])

    def read_arena(self, rank: int, step: int) -> npt.NDArray[np.uint8]:
        """Read a rank's arena of a recorded step, uint8 [arena bytes].

        Raises:
            MissingError: the step was not recorded, or a chunk is missing.
            MalformedError: a chunk has another size than it must, or its checksum is wrong.
            StorageError: the disk or the object store fails.

        """
        slot = self.recorded.slot(step)
        return self._read(self._operands(rank), slot, 0, self.layouts.arena.bytes)

    def read_state(self, step: int) -> npt.NDArray[np.uint8]:
        """Read the state before `step`, uint8 [state bytes]; errors as `read_arena`."""
        return self._read("state", self.states.slot(step), 0, self.layouts.state.bytes)

    def read_constants(self) -> npt.NDArray[np.uint8]:
        """Read the constants, uint8 [constants bytes]; errors as `read_arena`."""
        return self._read("constants", 0, 0, self.layouts.constants.bytes)

    def tensor(self, rank: int, step: int, name: str) -> npt.NDArray[Any]:
        """Read one tensor of an arena, reading no more chunks than hold it.

        Errors as `read_arena`, and ContractError for an unknown name.
        """
        entry = self.layouts.arena.entry(name)
        slot = self.recorded.slot(step)
        return unpack_entry(
            self._read(self._operands(rank), slot, entry.offset, entry.bytes), entry
        )

    def leaf(self, rank: int, step: int, leaf: int) -> bytes:
        """Read the bytes of one leaf of an arena; errors as `tensor`."""
        place = self.layouts.arena.locate(leaf)
        slot = self.recorded.slot(step)
        return self._read(self._operands(rank), slot, place.offset, place.bytes).tobytes()

    def _operands(self, rank: int) -> str:
        if not 0 <= rank < self.world:
            raise ContractError(f"no rank {rank} in a store of {self.world}")
        return f"operands/{rank}"

    def _write(self, name: str, slot: int, buffer: Bytes) -> None:
        data = byte_view(buffer)
        geometry = self._geometries.get(name)
        width = geometry.width if geometry else 0
        if not self._writable:
            raise ContractError("the store is open for reading")
        if data.size != width:
            raise ContractError(f"{name} takes {width} bytes a slot, not {data.size}")
        if geometry:
            with self._lock, _storage(_key(name, slot)):
                shard = self._shard(geometry.shard_bytes)
                geometry.encode_shard(data, shard)
                obstore.put(self._backend, _key(name, slot), shard)
                self._unsynced.add(_key(name, slot))
            if self._root is not None:
                start_writeback(self._root / _key(name, slot))

    def _shard(self, size: int) -> npt.NDArray[np.uint8]:
        # kept for the next write, because fresh memory of this size costs more than filling it;
        # only with stores that are done with it on return: obstore's memory store keeps it
        if not isinstance(self._backend, LocalStore | S3Store):
            return np.empty(size, np.uint8)
        if size not in self._scratch:
            self._scratch[size] = np.empty(size, np.uint8)
        return self._scratch[size]

    def _read(self, name: str, slot: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
        if not size:
            return np.empty(0, np.uint8)
        with _storage(_key(name, slot)):
            return np.asarray(self._arrays[name][slot, offset : offset + size], np.uint8)


def _planned(slots: Slots, step: int) -> int:
    try:
        return slots.slot(step)
    except MissingError:
        raise ContractError(f"step {step} is not one that this store was made for") from None


def _geometries(
    layouts: Layouts, recorded: Slots, states: Slots, world: int
) -> dict[str, Geometry]:
    """Name every array; one without slots or without bytes does not exist."""
    arrays = {f"operands/{rank}": (len(recorded), layouts.arena.bytes) for rank in range(world)}
    arrays["state"] = (len(states), layouts.state.bytes)
    arrays["constants"] = (1, layouts.constants.bytes)
    return {
        name: Geometry(slots=slots, width=width)
        for name, (slots, width) in arrays.items()
        if slots and width
    }


def _key(name: str, slot: int) -> str:
    return f"{name}/c/{slot}/0"


def _backend(location: Location, *, make: bool) -> tuple[Backend, Path | None]:
    """Return an obstore store, and its folder where it is local."""
    if isinstance(location, str) and location.startswith("s3://"):
        return S3Store.from_url(location), None
    if not isinstance(location, str | Path):
        return location, None
    root = Path(location)
    if root.is_symlink():
        raise MalformedError("a symbolic link", file=str(root))
    if not make and not root.is_dir():
        raise MissingError("there is no store", file=str(root))
    return LocalStore(root, mkdir=make), root


def _root_document(backend: Backend, root: Path | None) -> bytes:
    try:
        return read_document(backend, root, _METADATA, METADATA_LIMIT)
    except MissingError:
        for name in (".zgroup", ".zarray"):
            with contextlib.suppress(MissingError):
                read_document(backend, root, name, METADATA_LIMIT)
                raise VersionError("Zarr format 2, not 3", file=name) from None
        raise


def _put_document(backend: Backend, root: Path | None, prefix: str, document: Any) -> None:
    """Write a zarr.json, or find it there with the same bytes."""
    key, data = prefix + _METADATA, canonical.dumps(document)
    try:
        found = read_document(backend, root, key, METADATA_LIMIT)
    except MissingError:
        obstore.put(backend, key, data)
        return
    if found != data:
        raise ContractError("made for another plan or layout", file=key)


@contextlib.contextmanager
def _storage(file: str) -> Iterator[None]:
    """Turn what Zarr, obstore and the system raise into errors of ours that name the file."""
    try:
        yield
    except TranscriptError:
        raise
    except (OSError, BaseError) as error:
        # obstore appends a dump of its internals; what happened stands in the first line
        fault = (str(error).splitlines() or [type(error).__name__])[0]
        raise StorageError(f"the store failed: {fault}", file=file) from None
    except ValueError as error:
        # all Zarr reads here is a shard of the right size, so its codecs refused the content
        raise MalformedError(f"the chunk cannot be decoded: {error}", file=file) from None
