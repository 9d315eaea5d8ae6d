"""Where tensors lie in leaf order."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transcript.strategies import leaf_blocks, random_array, shapes, small_layout, tensors
from transcript.errors import ContractError, LimitError, MalformedError, VersionError
from transcript.layout import DTYPES, Layout
from transcript.tiles import leaf_order

laws = settings(deadline=None, max_examples=60)


@laws
@given(tensors, st.integers(0, 9))
def test_packing_is_the_obvious_cut(items, seed):
    """Packed bytes are the leaves cut one by one, and unpacking gives back every bit."""
    layout = Layout.build(items)
    arrays = {name: random_array(dtype, shape, seed) for name, dtype, shape in items}
    buffer = layout.pack(arrays)
    assert buffer.tobytes() == b"".join(b"".join(leaf_blocks(a)) for a in arrays.values())
    for name, array in arrays.items():
        assert layout.unpack(buffer, name).tobytes() == array.tobytes()
        assert layout.unpack(buffer, name).shape == array.shape
    whole = layout.unpack_all(buffer)
    assert list(whole) == list(arrays)
    assert all(whole[name].tobytes() == array.tobytes() for name, array in arrays.items())


@laws
@given(shapes)
def test_leaf_order_is_where_packing_puts_each_element(shape):
    """The element at C position p of a tensor lies at `leaf_order(p)` of its packed bytes."""
    elements = np.arange(np.prod(shape, dtype=int), dtype=np.int64)
    packed = Layout.build([("x", "i64", shape)]).pack({"x": elements.reshape(shape)}).view("<i8")
    assert (packed[leaf_order(shape, elements)] == elements).all()


@laws
@given(tensors)
def test_leaves_cover_the_range(items):
    """Leaf sizes add up, are those of the obvious cut, and agree with each entry's range."""
    layout = Layout.build(items)
    blocks = [leaf_blocks(random_array(dtype, shape)) for _, dtype, shape in items]
    assert layout.leaf_sizes().tolist() == [len(leaf) for tensor in blocks for leaf in tensor]
    assert layout.bytes == layout.leaf_sizes().sum()
    for (name, _, _), tensor in zip(items, blocks, strict=True):
        assert len(layout.leaf_range(name)) == len(tensor)


@laws
@given(tensors)
def test_locating_a_leaf(items):
    """`locate` names exactly the elements whose bytes lie in the leaf; `leaf_of` inverts it."""
    layout = Layout.build(items)
    arrays = {name: random_array(dtype, shape) for name, dtype, shape in items}
    buffer = layout.pack(arrays).tobytes()
    for number in range(layout.leaf_count):
        leaf = layout.locate(number)
        elements = arrays[leaf.name][leaf.slices]
        assert elements.tobytes() == buffer[leaf.offset : leaf.offset + leaf.bytes]
        assert layout.leaf_of(leaf.name, leaf.tile) == number


@laws
@given(shapes, st.integers(0, 9))
def test_strides_do_not_matter(shape, seed):
    """A transposed or sliced view packs to the same bytes as its contiguous copy."""
    layout = Layout.build([("a", "f32", shape)])
    array = random_array("f32", shape, seed)
    wide = np.repeat(array.T.copy(), 2, axis=-1)[..., ::2] if array.ndim else array
    assert layout.pack({"a": wide.T}).tobytes() == layout.pack({"a": array}).tobytes()


@laws
@given(tensors)
def test_document_round_trip(items):
    """A layout's document and its pickle give back an equal layout."""
    layout = Layout.build(items)
    assert Layout.from_document(layout.document()) == layout
    again = pickle.loads(pickle.dumps(layout))  # noqa: S301 - made here
    assert again == layout
    assert again.leaf_sizes().tolist() == layout.leaf_sizes().tolist()


def test_negative_zero_and_nan_payloads_survive():
    """Packing copies bits: -0, quiet and signalling NaN payloads and subnormals come back."""
    bits = np.array([0x80000000, 0x7FC00001, 0x7F800001, 0xFFFFFFFF, 1], np.uint32)
    layout = Layout.build([("a", "f32", (5,))])
    back = layout.unpack(layout.pack({"a": bits.view(np.float32)}), "a")
    assert back.view(np.uint32).tolist() == bits.tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((70, 130), np.float64),
        np.zeros((130, 70), np.float32),
        np.zeros((70, 130), ">f4"),
        np.zeros((70, 130), np.uint32),
        [[0.0] * 130] * 70,
    ],
    ids=["dtype", "shape", "byte order", "same width", "list"],
)
def test_wrong_arrays_are_refused(array):
    """Nothing is cast, transposed or byte-swapped on the way in."""
    layout = small_layout()
    with pytest.raises(ContractError, match=r"x needs f32 \[70, 130\]"):
        layout.pack_into(bytearray(layout.bytes), "x", array)


def test_wrong_buffers_are_refused():
    """A buffer of another length, or one that is not contiguous, is refused."""
    layout = small_layout()
    array = np.zeros((70, 130), np.float32)
    for buffer in (bytearray(layout.bytes - 1), bytearray(layout.bytes + 1)):
        with pytest.raises(ContractError, match="bytes"):
            layout.pack_into(buffer, "x", array)
    with pytest.raises(ContractError, match="contiguous"):
        layout.unpack(np.zeros(2 * layout.bytes, np.uint8)[::2], "x")
    with pytest.raises(ContractError, match="no tensor"):
        layout.unpack(bytes(layout.bytes), "y")


@pytest.mark.parametrize(
    ("item", "error"),
    [
        (("", "f32", (1,)), ContractError),
        (("../up", "f32", (1,)), ContractError),
        (("a\n", "f32", (1,)), ContractError),
        (("a", "f64", (1,)), ContractError),
        (("a", "object", (1,)), ContractError),
        (("a", "f32", (-1,)), ContractError),
        (("a", "f32", (True,)), ContractError),
        (("a", "f32", (1.0,)), ContractError),
        (("a", "f32", (1,) * 9), LimitError),
        (("a", "f32", (2**62,)), LimitError),
        (("a", "f32", (2**40, 2**40)), LimitError),
        (("a", "u8", (2**25, 1, 1)), LimitError),
    ],
)
def test_bad_tensors_are_refused_before_anything_is_allocated(item, error):
    """Odd names, dtypes and dimensions are refused by the rule they break."""
    with pytest.raises(error):
        Layout.build([item])


def test_a_huge_empty_tensor_is_free():
    """A zero among huge dimensions makes no leaf and allocates nothing."""
    layout = Layout.build([("a", "f32", (0, 2**40, 2**40)), ("b", "f32", ())])
    assert (layout.bytes, layout.leaf_count) == (4, 1)
    assert layout.locate(0).name == "b"


def test_repeated_names_are_refused():
    """Two tensors of one name would make `unpack` ambiguous."""
    with pytest.raises(ContractError, match="repeated"):
        Layout.build([("a", "f32", (1,)), ("a", "f32", (2,))])


def mutations():
    """Yield a name and a broken layout document."""
    good = small_layout().document
    for key in ("type", "algorithm"):
        yield key, {**good(), key: "bitwitness/layout/v9"}, VersionError
    yield "extra key", {**good(), "note": 1}, MalformedError
    yield "no entries", {**good(), "entries": {}}, MalformedError
    yield "too many", {**good(), "entries": [0] * 70_000}, LimitError
    yield "not an object", [], MalformedError
    for key, value in [
        ("offset", 4), ("offset", False), ("first_leaf", 1), ("shape", [70, 131]),
        ("shape", "70"), ("shape", [-1]), ("dtype", "f64"), ("dtype", 4), ("name", None),
        ("name", "heads"),
    ]:  # fmt: skip
        document = good()
        document["entries"][0][key] = value
        yield f"{key}={value}", document, MalformedError


@pytest.mark.parametrize(
    ("document", "error"), [m[1:] for m in mutations()], ids=[m[0] for m in mutations()]
)
def test_broken_documents_are_refused(document, error):
    """Every deviation of a layout document is refused, with the file named."""
    with pytest.raises(error, match=r"^graph\.json: "):
        Layout.from_document(document, file="graph.json")


def test_every_dtype_is_little_endian():
    """The logical dtypes are fixed in width and byte order, whatever the machine."""
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == {
        "f32": 4, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4,
    }  # fmt: skip
    assert all(dtype.str[0] in "<|" for dtype in DTYPES.values())
