"""A step graph's document is read back exactly, and nothing else is read as a graph."""

import copy
import hashlib
import json

import pytest

from tests.conftest import tiny_document
from trainer.config import RunConfig
from trainer.errors import GraphError
from trainer.graph_document import MAX_GRAPH_BYTES, parse_graph
from trainer.trace import derive_graph
from transcript import canonical


@pytest.fixture(scope="module", params=["f32", "int16"])
def graph(request):
    """Derive a step graph."""
    return derive_graph(RunConfig.from_document(tiny_document(model={"attention": request.param})))


def read(document):
    data = document if isinstance(document, bytes) else canonical.dumps(document)
    return parse_graph(data, hashlib.sha256(data).hexdigest(), file="graph.json")


def test_round_trip(graph):
    """What `document` writes is read as the same graph, with the same digest and arena."""
    found = read(graph.document())
    assert found == graph
    assert (found.digest, found.arena) == (graph.digest, graph.arena)


def test_another_digest(graph):
    """A document that is not the one that was signed is refused, however good it is."""
    data = canonical.dumps(graph.document())
    with pytest.raises(GraphError, match="its digest is not 0000"):
        parse_graph(data, "0" * 64)


def changed(document, path, value):
    document = copy.deepcopy(document)
    place = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return document


def first_reading_node(document):
    nodes = enumerate(document["nodes"])
    return next(i for i, node in nodes if node["op"] == "bitwitness::gemm")


def test_views_beyond_their_value(graph):
    """A view that ends behind its value is refused: nobody reads memory through it."""
    document = graph.document()
    place = ("nodes", first_reading_node(document), "arguments", 0)
    ref = graph.document()["nodes"][place[1]]["arguments"][0]
    size = 1
    for n in document["values"][ref["value"]]["shape"]:
        size *= n
    for key, value, words in (
        ("offset", 1, "beyond its end"),
        ("offset", size, "beyond its end"),
        ("offset", -1, "greater than or equal to 0"),
        ("stride", [n + 1 for n in ref["stride"]], "beyond its end"),
        ("stride", [-n for n in ref["stride"]], "greater than or equal to 0"),
        ("stride", ref["stride"][1:], "a stride too many or too few"),
        ("shape", [n + 1 for n in ref["shape"]], "beyond its end"),
        ("shape", [1 << 50] * 2, "less than or equal"),
        ("shape", [1] * 9, "at most 8 items"),
        ("value", len(document["values"]), "not made yet"),
        ("value", document["nodes"][-1]["outputs"][0], "not made yet"),
        ("value", True, "valid integer"),
    ):
        with pytest.raises(GraphError, match=words) as caught:
            read(changed(document, (*place, key), value))
        assert str(caught.value).startswith("graph.json: step graph: ")
        assert "\n" not in str(caught.value)


def test_documents_that_are_no_graph(graph):
    """Unknown formats, keys, kinds and types, values made twice and never are refused."""
    document = graph.document()
    last = len(document["nodes"]) - 1
    made = document["nodes"][last]["outputs"]
    for path, value, words in (
        (("format",), "bitwitness/step-graph/v2", "format"),
        (("more",), 1, "more"),
        (("values", 0, "kind"), "random", "kind"),
        (("values", 0, "dtype"), "f64", "dtype"),
        (("values", 0, "more"), 0, "more"),
        (("values", 0, "name"), document["values"][1]["name"], "one name"),
        (("nodes", last, "outputs"), document["nodes"][0]["outputs"], "cannot"),
        (("nodes", last, "outputs"), [*made, len(document["values"])], "cannot"),
        (("nodes", last, "outputs"), [], "never made"),
        (("nodes", last, "arguments", 0), {"f32": "0"}, "nodes"),
        (("committed", 0), len(document["values"]), "never made"),
        (("committed", 0), document["committed"][1], "repeated tensor name"),
        (("arena", "entries", 0, "offset"), 1, "does not follow"),
        (("arena",), {}, "does not follow"),
    ):
        with pytest.raises(GraphError, match=words):
            read(changed(document, path, value))


def test_other_encodings(graph):
    """Only the canonical encoding counts: no blanks, repeated keys, floats or bombs."""
    data = canonical.dumps(graph.document())
    for text in (
        b"",
        b"[]",
        data + b" ",
        json.dumps(graph.document()).encode(),
        data.replace(b'"metrics":', b'"metrics":{},"metrics":'),
        data.replace(b'"kind":"state"', b'"kind":"state","kind":"state"', 1),
        data.replace(b'"offset":0', b'"offset":0.0', 1),
        b"[" * 100_000,
        bytes(MAX_GRAPH_BYTES + 1),
    ):
        with pytest.raises(GraphError, match=r"graph\.json: step graph: "):
            read(text)
