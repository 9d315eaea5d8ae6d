"""The Zarr v3 documents of the store, written and checked byte for byte by ourselves.

Every array is uint8 [slots, width]; one shard is one slot, cut into inner chunks of at most 4 MiB,
each with a crc32c. The documents follow from slots and width alone, so a reader needs no trust in
those it finds: it compares them with the ones it expects and hands Zarr only its own. A shard's
size follows as well, because nothing is compressed. docs/formats/store.md is the contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from transcript import canonical
from transcript.errors import MalformedError, MissingError, VersionError
from transcript.slots import Slots

STORE_TYPE: Final = "bitwitness/store/v1"
METADATA_LIMIT: Final = 1 << 20
INNER_CHUNK_BYTES: Final = 4 << 20
LISTED_CODECS: Final = frozenset({"sharding_indexed", "bytes", "crc32c"})
_CRC_BYTES: Final = 4
_INDEX_ENTRY_BYTES: Final = 16
_ABSENT: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """One array, uint8 [slots, width]; both are at least 1."""

    slots: int
    width: int

    @property
    def inner_count(self) -> int:
        """The number of inner chunks in a shard."""
        return -(-self.width // INNER_CHUNK_BYTES)

    @property
    def inner_bytes(self) -> int:
        """The decoded size of an inner chunk; the last one is padded with zeros to it."""
        return -(-self.width // self.inner_count)

    @property
    def index_bytes(self) -> int:
        """The size of a shard's index, which lies at its end."""
        return _INDEX_ENTRY_BYTES * self.inner_count + _CRC_BYTES

    @property
    def shard_bytes(self) -> int:
        """The exact size of a shard."""
        return self.inner_count * (self.inner_bytes + _CRC_BYTES) + self.index_bytes

    def encode_shard(self, data: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
        """Encode one slot, uint8 [width], into `out`, uint8 [shard_bytes].

        The bytes are those that zarr-python writes, which a test asserts; done here because its
        pipeline copies a slot four times into fresh memory, which costs more than hashing it.
        """
        place = 0
        index = np.empty((self.inner_count, 2), "<u8")
        for number in range(self.inner_count):
            chunk = data[number * self.inner_bytes : (number + 1) * self.inner_bytes]
            inner = out[place : place + self.inner_bytes]
            inner[: chunk.size] = chunk
            inner[chunk.size :] = 0
            index[number] = place, self.inner_bytes + _CRC_BYTES
            place += self.inner_bytes + _CRC_BYTES
            out[place - _CRC_BYTES : place] = _crc32c(inner)
        out[place:-_CRC_BYTES] = index.view(np.uint8).ravel()
        out[-_CRC_BYTES:] = _crc32c(out[place:-_CRC_BYTES])

    def document(self) -> dict[str, Any]:
        """Return the array's zarr.json."""
        crc32c = {"name": "crc32c"}
        little_endian = {"name": "bytes", "configuration": {"endian": "little"}}
        sharding = {
            "chunk_shape": [1, self.inner_bytes],
            "codecs": [{"name": "bytes"}, crc32c],
            "index_codecs": [little_endian, crc32c],
            "index_location": "end",
        }
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [self.slots, self.width],
            "data_type": "uint8",
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [1, self.inner_count * self.inner_bytes]},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": {},
            "storage_transformers": [],
        }

    def check_document(self, data: bytes, *, file: str) -> None:
        """Compare an untrusted zarr.json with the expected one.

        Raises:
            VersionError: another Zarr version.
            MalformedError, LimitError: anything that differs, named by its field or codec.

        """
        found = _parse(data, file)
        expected = self.document()
        for codec in _codec_names(found.get("codecs")):
            if codec not in LISTED_CODECS:
                raise MalformedError(f"codec {codec[:60]!r} is not listed", file=file)
        for key in dict.fromkeys([*expected, *found]):
            if found.get(key, ...) != expected.get(key, ...):
                raise MalformedError(
                    f"{key} is {_short(found.get(key))}, the layout needs "
                    f"{_short(expected.get(key))}",
                    file=file,
                )

    def check_index(self, index: bytes, *, file: str) -> None:
        """Check the index of a shard: each inner chunk is there, whole, inside the file.

        Zarr reads an absent inner chunk as fill values; here it is missing evidence.

        Raises:
            MissingError: an inner chunk is marked absent.
            MalformedError: one has another size or lies outside.

        """
        entries = np.frombuffer(index[:-_CRC_BYTES], "<u8").reshape(-1, 2).tolist()
        size = self.inner_bytes + _CRC_BYTES
        last = self.inner_count * size
        for number, (offset, length) in enumerate(entries):
            if (offset, length) == (_ABSENT, _ABSENT):
                raise MissingError(f"inner chunk {number} is missing", file=file)
            if length != size or offset + length > last:
                raise MalformedError(f"inner chunk {number} is misplaced in the index", file=file)


def group_document(recorded: Slots, states: Slots, world: int) -> dict[str, Any]:
    """Return the root group's zarr.json, which says what the slots hold."""
    attributes = {
        "type": STORE_TYPE,
        "world": world,
        "recorded": recorded.document(),
        "states": states.document(),
    }
    return {"zarr_format": 3, "node_type": "group", "attributes": {"bitwitness": attributes}}


def parse_group(data: bytes, *, file: str) -> tuple[Slots, Slots, int]:
    """Parse an untrusted root document into recorded steps, kept states and world size.

    Raises:
        VersionError: another Zarr or store version.
        MalformedError, LimitError: not exactly what `group_document` writes.

    """
    found = _parse(data, file)
    attributes = found.get("attributes")
    ours = attributes.get("bitwitness") if isinstance(attributes, dict) else None
    if not isinstance(ours, dict) or not isinstance(ours.get("type"), str):
        raise MalformedError("not a Bitwitness store", file=file)
    if ours["type"] != STORE_TYPE:
        raise VersionError(f"store is {ours['type'][:100]!r}, not {STORE_TYPE}", file=file)
    recorded = Slots.from_document(ours.get("recorded"), file=file)
    states = Slots.from_document(ours.get("states"), file=file)
    world = ours.get("world")
    if type(world) is not int or world < 1 or found != group_document(recorded, states, world):
        raise MalformedError("fields missing, unknown or out of range", file=file)
    return recorded, states, world


def _crc32c(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.array([google_crc32c.value(data)], "<u4").view(np.uint8)


def _parse(data: bytes, file: str) -> dict[str, Any]:
    found = canonical.loads(data, limit=METADATA_LIMIT, file=file, canonical=False)
    if not isinstance(found, dict):
        raise MalformedError("not a JSON object", file=file)
    if found.get("zarr_format") != 3:
        raise VersionError(f"Zarr format {_short(found.get('zarr_format'))}, not 3", file=file)
    return found


def _codec_names(codecs: object) -> list[str]:
    """Collect the names of all codecs, those nested in a sharding codec too."""
    names: list[str] = []
    for codec in codecs if isinstance(codecs, list) else []:
        if not isinstance(codec, dict) or not isinstance(codec.get("name"), str):
            continue
        names.append(codec["name"])
        inner = codec.get("configuration")
        if isinstance(inner, dict):
            names += _codec_names(inner.get("codecs")) + _codec_names(inner.get("index_codecs"))
    return names


def _short(value: object) -> str:
    return f"{value!r:.160}"
