"""The golden files: the bytes of every format, and that they are still read."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from tests.transcript.make_golden import GOLDEN, KEY, LAYOUTS, STEPS, build, content
from tests.transcript.strategies import leaf_blocks, reference_root
from transcript.dsse import Envelope
from transcript.errors import VersionError
from transcript.layout import Layout
from transcript.leaves import arena_root
from transcript.log import LogReader
from transcript.merkle import leaf_hash
from transcript.run import RunFolder
from transcript.statements import (
    AuditResult,
    Commitment,
    DeclaredFault,
    Registration,
    open_registration,
    open_statement,
)
from transcript.store import RunStore

RUN = RunFolder(GOLDEN / "run")


def tree(folder: Path) -> dict[str, bytes]:
    """Read all files below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_every_format_still_writes_the_same_bytes(tmp_path):
    """What the committed script writes today is what was written when the version was set."""
    build(tmp_path)
    assert tree(tmp_path) == tree(GOLDEN)


def test_golden_leaves_are_the_formats_words():
    """The golden leaf hashes and root are those of the obvious cut of the documented content."""
    document = json.loads((GOLDEN / "leaves.json").read_text())
    layout = Layout.from_document(document["layout"])
    buffer = content(layout, 1)
    arrays = [layout.unpack(buffer, entry.name) for entry in layout.entries]
    blocks = [leaf for array in arrays for leaf in leaf_blocks(array)]
    assert document["leaf_hashes"] == [leaf_hash(leaf).hex() for leaf in blocks]
    assert document["root"] == reference_root(blocks).hex()


def test_the_golden_run_hangs_together():
    """Registration, log, store, commitment and result of the golden run name one another."""
    signed = open_registration(RUN.read(RUN.registration), [KEY.public])
    with LogReader(RUN.log, signed.predicate.run_id) as log:
        (head,) = log.verify_checkpoints(KEY.public)
        leaves = list(log.leaves())
    store = RunStore.open(RUN.store, LAYOUTS)
    assert {leaf.registration for leaf in leaves} == {signed.digest}
    for step in store.recorded:
        assert leaves[step].arenas[0] == arena_root(store.read_arena(0, step), LAYOUTS.arena).hex()
    roots = [arena_root(store.read_state(step), LAYOUTS.state).hex() for step in store.states]
    assert [leaf.state_before for leaf in leaves] == roots[:-1]
    assert [leaf.state_after for leaf in leaves] == roots[1:]
    commitment = open_statement(RUN.read(RUN.commitment), Commitment, [KEY.public])
    assert commitment.predicate.registration == signed.digest
    assert (commitment.predicate.log.root, head.size) == (head.root.hex(), STEPS)
    assert commitment.predicate.final_state_root == roots[-1]
    (digest,) = commitment.predicate.faults
    fault = open_statement(RUN.read(RUN.fault(digest)), DeclaredFault, [KEY.public])
    assert (fault.digest, fault.predicate.registration) == (digest, signed.digest)
    assert bytes.fromhex(fault.predicate.leaf) == leaf_hash(leaves[fault.predicate.step].encode())
    for moment, said in (("start", signed.predicate), ("end", commitment.predicate)):
        assert said.probes == (sha256(RUN.read(RUN.probe(moment, 0))).hexdigest(),)
    result = open_statement(
        (GOLDEN / "audit-result.dsse.json").read_bytes(), AuditResult, [KEY.public]
    )
    assert result.predicate.commitment == commitment.digest


@pytest.mark.parametrize(
    ("name", "kind"), [("registration", Registration), ("commitment", Commitment)]
)
def test_statements_of_version_1_are_refused_by_name(name, kind):
    """The former version's golden files are told from garbage, and not read as the present one."""
    data = (GOLDEN.with_name("golden_v1") / f"{name}.dsse.json").read_bytes()
    with pytest.raises(VersionError, match=f"{name}/v1', not .*{name}/v2"):
        open_statement(data, kind, [KEY.public])


def test_a_statements_digest_is_its_payloads():
    """The digest by which leaves name the registration is `sha256sum` of the payload."""
    data = RUN.registration.read_bytes()
    payload = Envelope.parse(data).payload
    assert open_registration(data).digest == sha256(payload).hexdigest()


@pytest.mark.parametrize("step", [0, STEPS])
def test_any_flipped_byte_of_a_stored_state_shows(tmp_path, step):
    """Every byte of a stored slot is covered by a checksum, the shard's index included."""
    shutil.copytree(RUN.store, tmp_path / "store")
    path = tmp_path / "store" / "state" / "c" / str(step) / "0"
    good = path.read_bytes()
    store = RunStore.open(tmp_path / "store", LAYOUTS)
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x10]) + good[position + 1 :])
        with pytest.raises(ValueError, match=f"state/c/{step}/0"):
            store.read_state(step)
