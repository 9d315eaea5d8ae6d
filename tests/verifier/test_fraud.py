"""A fraud proof convicts by itself, and cannot be made of an honest run or bent afterwards."""

import base64
import hashlib
import json
import subprocess
import sys
import time
import zlib
from dataclasses import replace

import pytest

from tests.verifier import runs
from tests.verifier.test_replay import CHEATED, _cheating_run, _nudge, _once
from trainer.config import NumericsConfig
from trainer.graph_document import MAX_GRAPH_BYTES, parse_graph
from transcript.errors import ProofError, SignatureError, TranscriptError
from transcript.keys import PrivateKey
from verifier.audit import Audit, AuditOptions
from verifier.errors import ProofFileError, VerifierError
from verifier.fraud import check_proof, pack_graph
from verifier.prove import make_proof, provable
from verifier.replay import replay_step
from verifier.tile import MAX_INNER, Tile
from verifier.verify import verify_file


@pytest.fixture(scope="module", params=[3, 6, 30])
def cheat(request, tmp_path_factory):
    """Train a run in which one product is false: one in attention, one over weights, one behind."""
    calls = {"n": 0}

    def change(node, outputs, now):
        if node.op != "bitwitness::gemm" or now.step != CHEATED:
            return outputs
        calls["n"] += 1
        return (_nudge(outputs[0].clone()),) if calls["n"] == request.param else outputs

    with pytest.MonkeyPatch.context() as monkeypatch:
        return _cheating_run(monkeypatch, tmp_path_factory.mktemp("cheat"), change)


@pytest.fixture(scope="module")
def difference(cheat):
    """Find the one difference of the cheat."""
    [found] = replay_step(cheat, CHEATED, 1).differences
    return found


@pytest.fixture(scope="module")
def proof(cheat, difference):
    """Make its proof."""
    return make_proof(cheat, CHEATED, difference)


def test_it_stands_alone(difference, proof, tmp_path):
    """Without the run, the file names step, value, element and both bit patterns, in a second."""
    path = tmp_path / "fraud-proof.json"
    path.write_bytes(proof)
    verify_file(path)
    began = time.process_time()
    verified = verify_file(path, runs.KEY.public)
    assert time.process_time() - began < 1
    assert (verified.kind, verified.trusted) == ("fraud-proof", True)
    found = check_proof(proof)
    assert (found.step, found.rank, found.value) == (CHEATED, 0, difference.value)
    assert found.index == difference.index
    assert (found.committed_bits, found.recomputed_bits) == (
        difference.committed_bits, difference.recomputed_bits,
    )  # fmt: skip
    with pytest.raises(SignatureError):
        verify_file(path, PrivateKey.generate().public)


def test_only_what_is_needed_is_opened(cheat, proof):
    """A proof opens the panels and the tile, not the arena."""
    opened = json.loads(proof)
    size = sum(len(base64.b64decode(o["data"])) for o in opened["arena"] + opened["state"])
    assert size < (cheat / "store.zarr/operands/0/c/0/0").stat().st_size / 5


def test_every_opening_is_bound(proof):
    """Changing, dropping or doubling an opened leaf breaks the proof."""
    document = json.loads(proof)
    places = [(part, i) for part in ("arena", "state") for i in range(len(document[part]))]
    assert len(places) >= 3
    for part, i in places:
        opening = document[part][i]
        data = bytearray(base64.b64decode(opening["data"]))
        data[0] ^= 1
        for changed in (
            {**opening, "data": base64.b64encode(data).decode()},
            {**opening, "path": opening["path"][1:]},
            {**opening, "leaf": opening["leaf"] + 1},
            None,
        ):
            openings = [*document[part]]
            openings[i : i + 1] = [changed] if changed else []
            with pytest.raises((ProofError, ProofFileError)):
                check_proof(json.dumps({**document, part: openings}).encode())
        with pytest.raises(ProofFileError, match="twice"):
            check_proof(json.dumps({**document, part: document[part] + [opening]}).encode())


def test_every_other_field_is_bound(cheat, proof):
    """Another log entry, tree head, path, rank or tile makes it no proof."""
    document = json.loads(proof)
    lines = (cheat / "log" / "leaves.jsonl").read_text().splitlines()
    changes = {
        "leaf": [lines[0], "{}", ""],
        "tree_head": ["", document["tree_head"].replace(f"\n{CHEATED + 1}\n", "\n9\n")],
        "inclusion": [[], document["inclusion"] * 2, ["zz"]],
        "rank": [1, -1],
        "output_leaf": [document["output_leaf"] + 1, 0, 10**9, -1],
        "registration": ["{}"],
        "format": ["bitwitness/fraud-proof/v1", "bitwitness/fraud-proof/v3"],
    }
    for name, values in changes.items():
        for value in values:
            with pytest.raises((TranscriptError, ProofFileError)):
                check_proof(json.dumps({**document, name: value}).encode())


def test_the_graph_is_the_one_that_the_trainer_signed(proof):
    """A proof with another graph, however good for the proof, is refused by the signed digest."""
    document = json.loads(proof)
    text = zlib.decompress(base64.b64decode(document["graph"]))
    forged = text.replace(b'"bitwitness::rope"', b'"bitwitness::ripe"')
    assert forged != text
    for graph, words in (
        (pack_graph(forged), "its digest is not"),
        (pack_graph(text + b" "), "its digest is not"),
        (pack_graph(b"0" * (MAX_GRAPH_BYTES + 1)), f"larger than {MAX_GRAPH_BYTES} bytes"),
        (document["graph"][:40], "its digest is not"),
        (base64.b64encode(text).decode(), "not zlib in base64"),
        ("?", "not zlib in base64"),
    ):
        with pytest.raises(ProofFileError, match=words):
            check_proof(json.dumps({**document, "graph": graph}).encode())


def test_the_former_version_is_refused_by_name(proof):
    """A file of version 1, which had no graph, is told apart from garbage."""
    with pytest.raises(ProofFileError, match="version 1, which lacks the step graph"):
        check_proof(proof.replace(b"fraud-proof/v2", b"fraud-proof/v1"))


def test_it_is_checked_without_torch(proof, tmp_path):
    """Whoever checks a proof waits for no torch, no Ray and no store: it takes under a second."""
    path = tmp_path / "fraud-proof.json"
    path.write_bytes(proof)
    code = (
        "import sys; from cluster import cli\n"
        f"assert cli.run(['verify', {str(path)!r}]) == 0\n"
        "print({'torch', 'ray', 'zarr', 'py_ecc'} & {*sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "set()"


def test_a_graph_of_another_arithmetic(proof):
    """A product whose node names another profile or architecture than is registered is refused."""
    document = json.loads(proof)
    text = zlib.decompress(base64.b64decode(document["graph"]))
    graph = parse_graph(text, hashlib.sha256(text).hexdigest())
    tile = Tile.of_leaf(graph, document["output_leaf"])
    for numerics in ({"profile": "bf16"}, {"arch": "ampere"}):
        with pytest.raises(ProofFileError, match="not in the registered arithmetic"):
            tile.judge(NumericsConfig(**numerics), {"arena": {}, "state": {}})


def test_operands_that_do_not_fit(proof):
    """Operands of other shapes than the output's, or beyond any proof's size, are refused."""
    document = json.loads(proof)
    text = zlib.decompress(base64.b64decode(document["graph"]))
    graph = parse_graph(text, hashlib.sha256(text).hexdigest())
    tile = Tile.of_leaf(graph, document["output_leaf"])
    left, right, *rest = tile.node.arguments
    longer = {"shape": (*left.shape[:-1], MAX_INNER + 1), "stride": (0,) * len(left.shape)}
    wide = replace(left, **longer)
    tall = replace(right, shape=(*right.shape[:-2], MAX_INNER + 1, right.shape[-1]))
    for arguments in (
        (replace(left, shape=(*left.shape[:-2], left.shape[-2] + 1, left.shape[-1])), right, *rest),
        (left, replace(right, shape=right.shape[1:], stride=right.stride[1:]), *rest),
        (wide, tall, *rest),
        (left, *rest),
        (),
    ):
        with pytest.raises(ProofFileError, match="do not fit its output"):
            replace(tile, node=replace(tile.node, arguments=arguments)).leaves()


def test_an_honest_product_proves_nothing(honest, difference):
    """The same tile of an honest run cannot be made into a proof."""
    with pytest.raises(ProofFileError, match="committed bits: nothing is proved"):
        make_proof(honest, 1, difference)


def test_modelled_arithmetic_proves_nothing(monkeypatch, tmp_path):
    """Where the arithmetic is only modelled, a difference is no proof, whoever claims it."""
    run = _cheating_run(
        monkeypatch,
        tmp_path,
        _once("bitwitness::gemm", _nudge),
        numerics={"arch": "turing"},
    )
    [found] = replay_step(run, CHEATED, 1).differences
    assert not provable(found)
    with pytest.raises(ProofFileError, match="no fraud proof"):
        make_proof(run, CHEATED, found)
    with pytest.raises(ProofFileError, match="from a model only"):
        make_proof(run, CHEATED, replace(found, evidence="recorded"))


def test_an_audit_writes_it(cheat, tmp_path):
    """A failed audit leaves the proof beside its result, and the page says how to check it."""
    with Audit.open(cheat, AuditOptions(steps=10, threads=1)) as audit:
        audit.conclude(audit.run(), tmp_path, runs.KEY)
    assert verify_file(tmp_path / "fraud-proof.json").kind == "fraud-proof"
    assert "bitwitness verify fraud-proof.json" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "text", [b"", b"{}", b'{"format":"bitwitness/fraud-proof/v2"}', b"[" * 100_000]
)
def test_garbage(text):
    """Bytes that are no proof are one error."""
    with pytest.raises(VerifierError) as caught:
        check_proof(text, file="x.json")
    assert str(caught.value).startswith("x.json: not a fraud proof")
    assert "\n" not in str(caught.value)
