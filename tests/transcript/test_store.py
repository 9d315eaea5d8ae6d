"""The store: one suite over a local folder, memory and S3; then what only a folder can show."""

import pickle

import numpy as np
import obstore
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore, MemoryStore, S3Store

from tests.transcript.s3_server import s3_server
from tests.transcript.strategies import small_layout
from transcript.errors import (
    ContractError,
    MalformedError,
    MissingError,
    StorageError,
    TranscriptError,
)
from transcript.layout import Layout
from transcript.store import Layouts, RunStore
from transcript.zarr_format import Geometry

LAYOUTS = Layouts(
    arena=small_layout(),
    state=Layout.build([("params/w", "f32", (65, 3)), ("m/w", "f32", (65, 3))]),
    constants=Layout.build([("cos", "f32", (16, 8))]),
)
RECORDED, STATES, WORLD = (0, 2, 4, 5), (0, 2, 4, 5, 6), 2


def content(layout, seed):
    """Draw the bytes of one slot."""
    return np.random.default_rng(seed).integers(0, 256, layout.bytes, np.uint8)


def fill(store):
    """Write every slot."""
    for step in RECORDED:
        for rank in range(WORLD):
            store.write_arena(rank, step, content(LAYOUTS.arena, 10 * step + rank))
    for step in STATES:
        store.write_state(step, content(LAYOUTS.state, 100 + step))
    store.write_constants(content(LAYOUTS.constants, 200))


def create(location):
    """Make the store that all tests use."""
    return RunStore.create(location, LAYOUTS, recorded=RECORDED, states=STATES, world=WORLD)


@pytest.fixture(params=["local", "memory", "s3"])
def location(request, tmp_path, monkeypatch):
    """Give a place of each kind."""
    if request.param == "local":
        yield tmp_path / "store.zarr"
    elif request.param == "memory":
        yield MemoryStore()
    else:
        with s3_server() as server:
            environment = {
                "ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "ALLOW_HTTP": "true",
                "ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "secret", "REGION": "us-east-1",
            }  # fmt: skip
            for name, value in environment.items():
                monkeypatch.setenv(f"AWS_{name}", value)
            yield "s3://bucket/runs/demo-1/store.zarr"


def backend(location):
    """Open the place behind the store's back."""
    if isinstance(location, MemoryStore):
        return location
    return S3Store.from_url(location) if isinstance(location, str) else LocalStore(location)


def test_what_is_written_is_read(location):
    """Arenas, states, constants, single tensors and leaves come back byte for byte."""
    fill(create(location))
    store = RunStore.open(location, LAYOUTS)
    assert (list(store.recorded), list(store.states), store.world) == (
        list(RECORDED), list(STATES), WORLD,
    )  # fmt: skip
    for step in RECORDED:
        for rank in range(WORLD):
            arena = content(LAYOUTS.arena, 10 * step + rank)
            assert store.read_arena(rank, step).tobytes() == arena.tobytes()
            for entry in LAYOUTS.arena.entries:
                expected = LAYOUTS.arena.unpack(arena, entry.name)
                assert store.tensor(rank, step, entry.name).tobytes() == expected.tobytes()
    leaf = LAYOUTS.arena.locate(3)
    assert store.leaf(1, 4, 3) == content(LAYOUTS.arena, 41).tobytes()[leaf.offset :][: leaf.bytes]
    assert store.read_state(6).tobytes() == content(LAYOUTS.state, 106).tobytes()
    assert store.read_constants().tobytes() == content(LAYOUTS.constants, 200).tobytes()


def test_taking_up_a_store_again(location):
    """A restarted trainer takes up its own store, rewrites a slot and loses none."""
    fill(create(location))
    again = create(location)
    again.write_arena(1, 2, content(LAYOUTS.arena, 21))
    assert again.read_arena(1, 2).tobytes() == content(LAYOUTS.arena, 21).tobytes()
    assert again.read_arena(0, 5).tobytes() == content(LAYOUTS.arena, 50).tobytes()
    with pytest.raises(ContractError, match="another plan"):
        RunStore.create(location, LAYOUTS, recorded=(0, 1), states=STATES, world=WORLD)


def test_zeros_are_written(location):
    """A slot of zeros equals the fill value and is stored all the same."""
    create(location).write_state(0, bytes(LAYOUTS.state.bytes))
    store = RunStore.open(location, LAYOUTS)
    assert not store.read_state(0).any()
    with pytest.raises(MissingError):
        store.read_state(2)


def test_a_missing_chunk_is_missing(location):
    """A chunk that was never written, or was removed, is never read as fill values."""
    create(location).write_arena(0, 0, content(LAYOUTS.arena, 0))
    store = RunStore.open(location, LAYOUTS)
    for read in (
        lambda: store.read_arena(1, 0), lambda: store.tensor(0, 2, "x"),
        lambda: store.leaf(0, 5, 0), lambda: store.read_state(0), store.read_constants,
    ):  # fmt: skip
        with pytest.raises(MissingError, match=r"(operands/\d|state|constants)/c/\d/0"):
            read()


def test_a_flipped_byte_is_noticed(location):
    """One changed byte of a chunk fails its checksum, which names the chunk."""
    fill(create(location))
    key = "operands/1/c/2/0"
    place = backend(location)
    data = bytearray(obstore.get(place, key).bytes().to_bytes())
    data[1000] ^= 1
    obstore.put(place, key, bytes(data))
    store = RunStore.open(location, LAYOUTS)
    for read in (lambda: store.read_arena(1, 4), lambda: store.tensor(1, 4, "x")):
        with pytest.raises(MalformedError, match=key):
            read()
    assert store.read_arena(0, 4).tobytes() == content(LAYOUTS.arena, 40).tobytes()


@pytest.mark.parametrize("change", [b"", b"x", b"x" * 100_000], ids=["cut", "grown", "huge"])
def test_a_shard_of_another_size_is_not_read(location, change):
    """A shard is exactly as large as its layout says, or it is refused before decoding."""
    fill(create(location))
    place = backend(location)
    data = obstore.get(place, "state/c/0/0").bytes().to_bytes()
    obstore.put(place, "state/c/0/0", data + change if change else data[:-1])
    with pytest.raises(MalformedError, match=r"state/c/0/0: .* a shard has"):
        RunStore.open(location, LAYOUTS).read_state(0)


def test_misuse(location):
    """Wrong lengths, ranks and steps, and writing to a store opened for reading, are refused."""
    store = create(location)
    arena = content(LAYOUTS.arena, 0)
    for write in (
        lambda: store.write_arena(0, 0, arena[:-1]), lambda: store.write_arena(2, 0, arena),
        lambda: store.write_arena(-1, 0, arena), lambda: store.write_arena(0, 1, arena),
        lambda: store.write_state(1, bytes(LAYOUTS.state.bytes)),
        lambda: RunStore.open(location, LAYOUTS).write_arena(0, 0, arena),
        lambda: RunStore.create(location, LAYOUTS, recorded=[0], states=[0], world=0),
    ):  # fmt: skip
        with pytest.raises(ContractError):
            write()
    with pytest.raises(MissingError, match="step 1 was not recorded"):
        store.read_arena(0, 1)


def test_no_store(location, tmp_path):
    """A place without a store is missing one."""
    with pytest.raises(MissingError):
        RunStore.open(tmp_path / "none" if not isinstance(location, str) else location, LAYOUTS)


def test_empty_layouts_take_no_room(tmp_path):
    """An empty layout has no array; writing and reading its no bytes works."""
    empty = Layout.build([("a", "f32", (0, 5))])
    layouts = Layouts(arena=LAYOUTS.arena, state=LAYOUTS.state, constants=empty)
    store = RunStore.create(tmp_path / "s", layouts, recorded=[], states=[0])
    store.write_constants(b"")
    assert RunStore.open(tmp_path / "s", layouts).read_constants().size == 0
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == ["operands", "state", "zarr.json"]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 9))
def test_shards_are_what_zarr_writes(width, inner, seed):
    """Our encoding of a shard is byte for byte zarr-python's, for any width and inner chunk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transcript.zarr_format.INNER_CHUNK_BYTES", inner)
        geometry = Geometry(slots=1, width=width)
        data = np.random.default_rng(seed).integers(0, 256, width, np.uint8)
        shard = np.empty(geometry.shard_bytes, np.uint8)
        geometry.encode_shard(data, shard)
        memory = zarr.storage.MemoryStore()
        array = zarr.create_array(
            memory, shape=(1, width), dtype="uint8", fill_value=0,
            chunks=(1, geometry.inner_bytes),
            shards=(1, geometry.inner_bytes * geometry.inner_count),
            filters=[], compressors=[zarr.codecs.Crc32cCodec()],
            config={"write_empty_chunks": True},
        )  # fmt: skip
        array[0:1] = data[None]
        written = zarr.core.sync.sync(
            memory.get("c/0/0", zarr.core.buffer.default_buffer_prototype())
        )
        assert written.to_bytes() == shard.tobytes()
        assert array.metadata.to_dict().keys() <= geometry.document().keys() | {"dimension_names"}


def test_plain_zarr_reads_the_store(tmp_path):
    """Anybody can open the store with zarr-python alone."""
    fill(create(tmp_path))
    group = zarr.open_group(tmp_path, mode="r")
    assert sorted(group) == ["constants", "operands", "state"]
    assert group["operands/1"].shape == (4, LAYOUTS.arena.bytes)
    assert group["operands/1"][3].tobytes() == content(LAYOUTS.arena, 51).tobytes()
    assert group.attrs["bitwitness"]["recorded"] == [[0, 3, 2], [5, 1, 1]]


def test_a_tensor_reads_only_its_own_chunks(tmp_path, monkeypatch):
    """Opening one tensor touches the inner chunks that hold it and no others."""
    monkeypatch.setattr("transcript.zarr_format.INNER_CHUNK_BYTES", 4096)
    fill(create(tmp_path))
    path = tmp_path / "operands/0/c/0/0"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    store = RunStore.open(tmp_path, LAYOUTS)
    store.tensor(0, 0, "mask")
    with pytest.raises(MalformedError):
        store.tensor(0, 0, "x")


def test_an_absent_inner_chunk_is_missing(tmp_path, monkeypatch):
    """A shard index that marks an inner chunk absent, with a good checksum, is missing evidence."""
    monkeypatch.setattr("transcript.zarr_format.INNER_CHUNK_BYTES", 4096)
    fill(create(tmp_path))
    path = tmp_path / "operands/0/c/0/0"
    store = RunStore.open(tmp_path, LAYOUTS)
    good = path.read_bytes()
    size = store._geometries["operands/0"].index_bytes
    for entry, error in [
        ((2**64 - 1, 2**64 - 1), MissingError),
        ((0, 2**64 - 1), MalformedError),
        ((2**64 - 1, 4100), MalformedError),
        ((len(good), 4100), MalformedError),
        ((0, 5), MalformedError),
    ]:
        index = np.frombuffer(good[-size:-4], "<u8").copy()
        index[2:4] = entry
        raw = index.tobytes()
        crc = int(zarr.codecs.crc32c_.google_crc32c.value(raw)).to_bytes(4, "little")
        path.write_bytes(good[:-size] + raw + crc)
        for read in (lambda: store.read_arena(0, 0), lambda: store.tensor(0, 0, "x")):
            with pytest.raises(error, match="operands/0/c/0/0: inner chunk 1"):
                read()


@pytest.mark.parametrize("where", ["operands", "operands/0", "operands/0/c", "operands/0/c/0/0"])
def test_links_below_the_store_are_refused(tmp_path, where):
    """A symbolic link anywhere below the store is not followed."""
    fill(create(tmp_path / "store"))
    store = RunStore.open(tmp_path / "store", LAYOUTS)
    path = tmp_path / "store" / where
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(MalformedError, match="symbolic link"):
        store.read_arena(0, 0)


def test_a_linked_store_is_refused(tmp_path):
    """The store itself lies in the run's folder and is no link out of it."""
    fill(create(tmp_path / "store"))
    (tmp_path / "link").symlink_to(tmp_path / "store")
    with pytest.raises(MalformedError, match="symbolic link"):
        RunStore.open(tmp_path / "link", LAYOUTS)


def test_a_folder_in_place_of_a_chunk(tmp_path):
    """A folder where a chunk belongs is refused, not read as missing."""
    fill(create(tmp_path))
    (tmp_path / "state/c/0/0").unlink()
    (tmp_path / "state/c/0/0").mkdir()
    with pytest.raises(MalformedError, match="regular"):
        RunStore.open(tmp_path, LAYOUTS).read_state(0)


def test_a_failing_disk_is_not_the_inputs_fault(tmp_path, monkeypatch):
    """When the disk fails under a write, the error says storage and names the chunk."""
    store = create(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(obstore, "put", full)
    with pytest.raises(StorageError, match=r"state/c/0/0: .*No space left") as caught:
        store.write_state(0, content(LAYOUTS.state, 0))
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), TranscriptError)  # noqa: S301
