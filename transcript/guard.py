"""A Zarr store that stands between Zarr and files somebody else made.

Zarr reads what is absent as fill values and follows what it is given. This store raises instead:
an absent chunk or inner chunk is missing evidence, a shard of any size but the expected one is not
read, and below a local root nothing but regular files in real folders is opened.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import ObjectStore

from transcript.errors import LimitError, MalformedError, MissingError
from transcript.zarr_format import Geometry

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import ObjectStore as Backend
    from zarr.core.buffer import Buffer, BufferPrototype


class GuardedStore(ObjectStore["Backend"]):
    """Read-only; serves the chunks of the arrays in `geometries` and nothing else.

    Args:
        backend: an obstore store.
        root: its folder, where it is local.
        geometries: array path to what every one of its shards must be.

    """

    def __init__(
        self, backend: Backend, root: Path | None, geometries: Mapping[str, Geometry]
    ) -> None:
        super().__init__(backend, read_only=True)
        self._root = root
        self._geometries = dict(geometries)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read a shard, its index or a part of it, after the checks of the module's docstring."""
        geometry = self._geometry(key)
        check_path(self._root, key)
        result = await self._request(key, _options(geometry, byte_range))
        size = result.meta["size"]
        if size != geometry.shard_bytes:
            raise MalformedError(f"{size} bytes, a shard has {geometry.shard_bytes}", file=key)
        data = (await result.bytes_async()).to_bytes()
        if byte_range is None or isinstance(byte_range, SuffixByteRequest):
            geometry.check_index(data[-geometry.index_bytes :], file=key)
        return prototype.buffer.from_bytes(data)

    async def _request(self, key: str, options: GetOptions) -> GetResult:
        try:
            return await obstore.get_async(self.store, key, options=options)
        except (FileNotFoundError, obstore.exceptions.NotFoundError):
            raise MissingError("the chunk is missing", file=key) from None

    def _geometry(self, key: str) -> Geometry:
        array, _, chunk = key.partition("/c/")
        geometry = self._geometries.get(array)
        if geometry is None or not chunk:
            raise MissingError("not a chunk of this store", file=key)
        return geometry


def _options(geometry: Geometry, byte_range: ByteRequest | None) -> GetOptions:
    """Ask for a range by absolute offsets, which every object store understands."""
    if isinstance(byte_range, SuffixByteRequest):
        return {"range": (geometry.shard_bytes - byte_range.suffix, geometry.shard_bytes)}
    if isinstance(byte_range, RangeByteRequest):
        return {"range": (byte_range.start, byte_range.end)}
    return {}


def read_document(backend: Backend, root: Path | None, key: str, limit: int) -> bytes:
    """Read a small file of the store; MissingError, LimitError or MalformedError otherwise."""
    check_path(root, key)
    try:
        result = obstore.get(backend, key)
        if result.meta["size"] > limit:
            raise LimitError(f"larger than the {limit} bytes allowed", file=key)
        return result.bytes().to_bytes()
    except (FileNotFoundError, obstore.exceptions.NotFoundError):
        raise MissingError("there is no such file", file=key) from None


def check_path(root: Path | None, key: str) -> None:
    """Refuse links and anything but a regular file on the way to a local key."""
    if root is None:
        return
    path = root
    parts = key.split("/")
    for part in parts:
        path /= part
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            raise MissingError("there is no such file", file=key) from None
        except NotADirectoryError:
            raise MalformedError("a file stands where a folder belongs", file=key) from None
        if stat.S_ISLNK(mode):
            raise MalformedError("a symbolic link", file=key)
    if not stat.S_ISREG(mode):
        raise MalformedError("not a regular file", file=key)
