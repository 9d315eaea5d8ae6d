"""Hostile Zarr documents: every deviation is refused before Zarr sees the store."""

import copy
import json

import pytest

from tests.transcript.test_store import LAYOUTS, RECORDED, STATES, create
from transcript.errors import LimitError, MalformedError, MissingError, VersionError
from transcript.layout import Layout
from transcript.store import Layouts, RunStore


def crc():
    return {"name": "crc32c"}


def array_changes():
    """Yield a name, a change of an array's document, and the error."""

    def sharding(document):
        return document["codecs"][0]["configuration"]

    yield "shape", lambda d: d.update(shape=[2**40, 2**40]), MalformedError
    yield "shape bool", lambda d: d.update(shape=[True]), MalformedError
    yield "dtype", lambda d: d.update(data_type="float64"), MalformedError
    yield "object dtype", lambda d: d.update(data_type="object"), MalformedError
    yield "struct dtype", lambda d: d.update(data_type={"name": "struct"}), MalformedError
    yield "fill value", lambda d: d.update(fill_value=1), MalformedError
    yield "no codecs", lambda d: d.update(codecs=[]), MalformedError
    yield "codecs no list", lambda d: d.update(codecs="bytes"), MalformedError
    yield "group", lambda d: d.update(node_type="group"), MalformedError
    yield "format 2", lambda d: d.update(zarr_format=2), VersionError
    yield "no format", lambda d: d.pop("zarr_format"), VersionError
    yield "extra field", lambda d: d.update(must_understand=False), MalformedError
    yield "attributes", lambda d: d.update(attributes={"a": 1}), MalformedError
    yield (
        "grid",
        lambda d: d["chunk_grid"]["configuration"].update(chunk_shape=[1, 1]),
        (MalformedError),
    )
    yield "keys", lambda d: d["chunk_key_encoding"].update(name="v2"), MalformedError
    yield "transformers", lambda d: d.update(storage_transformers=[{"name": "x"}]), MalformedError
    yield "index at start", lambda d: sharding(d).update(index_location="start"), MalformedError
    yield "index codecs", lambda d: sharding(d).update(index_codecs=[crc()]), MalformedError
    yield "inner chunks", lambda d: sharding(d).update(chunk_shape=[1, 1]), MalformedError


UNLISTED = ["zstd", "gzip", "blosc", "numcodecs.pickle", "numcodecs.json2", "vlen-utf8", "cast"]


@pytest.fixture
def store(tmp_path):
    """Make an empty store, and give its folder."""
    create(tmp_path)
    return tmp_path


def rewrite(path, change):
    """Apply a change to a JSON file."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "error"), [c[1:] for c in array_changes()], ids=[c[0] for c in array_changes()]
)
def test_changed_array_documents_are_refused(store, change, error):
    """An array's document is the one that the layout demands, or the store is refused."""
    rewrite(store / "operands/1/zarr.json", change)
    with pytest.raises(error, match=r"^operands/1/zarr\.json: "):
        RunStore.open(store, LAYOUTS)


@pytest.mark.parametrize("codec", UNLISTED)
@pytest.mark.parametrize("place", ["outer", "inner", "index"])
def test_unlisted_codecs_are_refused_by_name(store, codec, place):
    """A codec outside the list is refused wherever it stands in the chain."""

    def change(document):
        sharding = document["codecs"][0]["configuration"]
        chain = {
            "outer": document["codecs"],
            "inner": sharding["codecs"],
            "index": sharding["index_codecs"],
        }[place]
        chain.append({"name": codec, "configuration": {}})

    rewrite(store / "state/zarr.json", change)
    with pytest.raises(MalformedError, match=f"codec '{codec}' is not listed"):
        RunStore.open(store, LAYOUTS)


@pytest.mark.parametrize("levels", [2, 10, 400])
def test_nested_sharding_is_refused(store, levels):
    """Sharding inside sharding, to any depth, is refused."""
    opening = '{"name": "sharding_indexed", "configuration": {"codecs": ['
    nested = opening * levels + '{"name": "bytes"}' + "]}}" * levels
    path = store / "state/zarr.json"
    rewrite(path, lambda d: d.update(codecs=["HERE"]))
    path.write_text(path.read_text().replace('"HERE"', nested))
    with pytest.raises((MalformedError, LimitError)):
        RunStore.open(store, LAYOUTS)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", MalformedError),
        (b"{", MalformedError),
        (b"[]", MalformedError),
        (b"null", MalformedError),
        (b'{"zarr_format":3,"zarr_format":3}', MalformedError),
        (b'{"zarr_format":3.0}', MalformedError),
        (b" " * (2 << 20), LimitError),
    ],
)
@pytest.mark.parametrize("key", ["zarr.json", "constants/zarr.json"])
def test_broken_documents_are_refused(store, key, data, error):
    """Cut, duplicated, floating-point or oversized JSON is refused with the file named."""
    (store / key).write_bytes(data)
    with pytest.raises(error, match=rf"^{key}: "):
        RunStore.open(store, LAYOUTS)


def group_changes():
    """Yield a name, a change of the root document, and the error."""

    def ours(document):
        return document["attributes"]["bitwitness"]

    yield "other version", lambda d: ours(d).update(type="bitwitness/store/v2"), VersionError
    yield "no type", lambda d: ours(d).pop("type"), MalformedError
    yield "not ours", lambda d: d.update(attributes={}), MalformedError
    yield "attributes list", lambda d: d.update(attributes=[]), MalformedError
    yield "world 0", lambda d: ours(d).update(world=0), MalformedError
    yield "world true", lambda d: ours(d).update(world=True), MalformedError
    yield "world huge", lambda d: ours(d).update(world=2**40), MalformedError
    yield "extra", lambda d: ours(d).update(extra=1), MalformedError
    yield "consolidated", lambda d: d.update(consolidated_metadata={}), MalformedError
    yield "endless", lambda d: ours(d).update(recorded=[[0, 2**50, 1]]), MalformedError
    yield "array", lambda d: d.update(node_type="array"), MalformedError


@pytest.mark.parametrize(
    ("change", "error"), [c[1:] for c in group_changes()], ids=[c[0] for c in group_changes()]
)
def test_changed_root_documents_are_refused(store, change, error):
    """The root document says what the slots hold, exactly so, or the store is refused."""
    rewrite(store / "zarr.json", change)
    with pytest.raises(error, match=r"^zarr\.json: "):
        RunStore.open(store, LAYOUTS)


def test_millions_of_arrays_cost_nothing(store):
    """A huge world is refused for its first missing array, before the others are looked for."""
    rewrite(store / "zarr.json", lambda d: d["attributes"]["bitwitness"].update(world=65_536))
    with pytest.raises(MissingError, match=r"operands/2/zarr\.json"):
        RunStore.open(store, LAYOUTS)


def test_another_layout_is_refused(store):
    """A store for another model is refused although it is well formed."""
    other = Layouts(
        arena=Layout.build([("x", "f32", (3, 3))]), state=LAYOUTS.state, constants=LAYOUTS.constants
    )
    with pytest.raises(MalformedError, match="shape is"):
        RunStore.open(store, other)


def test_an_unpruned_index_that_overlaps_is_refused(store):
    """Fewer slots than the arrays have, or more, contradict the arrays' shapes."""
    index = copy.deepcopy(list(RECORDED))
    assert len(index) != len(STATES)
    rewrite(
        store / "zarr.json",
        lambda d: d["attributes"]["bitwitness"].update(recorded=[[0, 3, 2]]),
    )
    with pytest.raises(MalformedError, match="shape is"):
        RunStore.open(store, LAYOUTS)


def test_zarr_version_2_is_refused(tmp_path):
    """A store with version 2 documents only is not read."""
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    with pytest.raises(VersionError, match="Zarr format 2"):
        RunStore.open(tmp_path, LAYOUTS)
