"""A whole audit: what it signs, what it writes, and what others can check of it."""

import base64
import hashlib
import json
import subprocess
from dataclasses import replace
from decimal import Decimal

import pytest

from tests.verifier import runs, test_drand
from transcript.dsse import Envelope, pae
from transcript.errors import MalformedError, SignatureError, VersionError
from transcript.keys import PrivateKey, PublicKey
from verifier.audit import Audit, AuditOptions
from verifier.beacon import NO_BEACON, Beacon, beacon_from_hex
from verifier.errors import OptionError, ResultError, UntrustedError
from verifier.report import write_report
from verifier.report_data import from_json
from verifier.verdict import Overall, Verdict
from verifier.verify import verify_file

V = Verdict
VERIFIER = PrivateKey.generate()
NONCE = bytes(range(32))


def audit(run, out, **options):
    with Audit.open(
        run, AuditOptions(**{"threads": 1, "nonce": NONCE, "steps": 4, **options})
    ) as a:
        a.conclude(a.run(), out, VERIFIER)
    return from_json((out / "report.json").read_bytes())


def result_of(out):
    envelope = json.loads((out / "audit-result.dsse.json").read_text())
    return json.loads(base64.b64decode(envelope["payload"]))["predicate"]


@pytest.fixture(scope="module")
def audited(honest, tmp_path_factory):
    """Audit the honest run once."""
    out = tmp_path_factory.mktemp("audit")
    audit(honest, out, trusted=(runs.KEY.public,))
    return out


@pytest.fixture
def moved(audited, tmp_path):
    """Make a copy of the audit's folder."""
    return runs.copy(audited, tmp_path / "audit").root


def test_honest_run_passes(audited):
    """An honest run passes, with numbers: k of N, a bound, coverage and what is not shown."""
    result = result_of(audited)
    assert result["verdict"] == "PASS"
    assert (result["sampled"], result["total"]) == (4, runs.STEPS)
    assert (result["f_max"], result["delta"]) == ("0.900000", "0.01")
    assert int(result["coverage"]["macs"]) * runs.STEPS == int(result["coverage"]["macs_total"]) * 4
    assert any("no other training ran elsewhere" in text for text in result["not_checked"])
    assert any("no public beacon" in text for text in result["not_checked"])
    page = (audited / "report.html").read_text()
    assert "Verified" in page
    assert len(page) < 100_000


def test_report_says_what_the_data_says(audited):
    """The page names both keys, the run, the seed and the command that repeats the audit."""
    page = (audited / "report.html").read_text()
    data = from_json((audited / "report.json").read_bytes())
    assert data.overall is Overall.PASS
    for words in (
        runs.KEY.public.key_id[:16], VERIFIER.public.key_id[:16], data.run.run_id, data.draw.seed,
        f"--nonce {NONCE.hex()}", "recorded on real hardware",
    ):  # fmt: skip
        assert words in page
    assert len(data.losses) == runs.STEPS
    assert "not known beforehand" not in page


def test_result_names_what_it_is_about(honest, audited):
    """The result binds commitment, weights, seed, nonce, report and the roots it came to."""
    result = result_of(audited)
    assert result["nonce"] == NONCE.hex()
    assert result["verifier_key"] == VERIFIER.public.key_id
    report = (audited / "report.json").read_bytes()
    assert result["report"] == hashlib.sha256(report).hexdigest()
    weights = (honest / "weights" / "model.safetensors").read_bytes()
    assert result["weights"][0]["sha256"] == hashlib.sha256(weights).hexdigest()
    lines = (honest / "log" / "leaves.jsonl").read_text().splitlines()
    for step in result["steps"]:
        leaf = json.loads(lines[step["step"]])
        assert step["roots"]["state_after"] == leaf["state_after"]
        assert step["roots"]["arenas/0"] == leaf["arenas"][0]


def test_anyone_can_redo_it(honest, audited, tmp_path):
    """The same nonce gives the same seed, steps, checks and verdict."""
    audit(honest, tmp_path, trusted=(runs.KEY.public,))
    first, second = result_of(audited), result_of(tmp_path)
    for same in ("seed", "steps", "structure", "verdict", "f_max", "coverage"):
        assert first[same] == second[same]


def test_the_nonce_decides_the_draw(honest):
    """Another verifier with another nonce is challenged with other steps, sooner or later."""
    draws = set()
    for i in range(20):
        options = AuditOptions(steps=3, nonce=i.to_bytes(8, "big"))
        with Audit.open(honest, options) as audit_:
            draws.add(tuple(audit_.samples()))
    assert len(draws) == runs.STEPS - 2


def test_openssl_and_jq_alone_can_check_it(audited, tmp_path):
    """The signature verifies with openssl over the DSSE encoding, with the key beside it."""
    envelope = Envelope.parse((audited / "audit-result.dsse.json").read_bytes())
    (tmp_path / "message").write_bytes(pae(envelope.payload_type, envelope.payload))
    (tmp_path / "signature").write_bytes(envelope.signatures[0].signature)
    done = subprocess.run(
        [
            "openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey",
            audited / "verifier.pub.pem", "-in", tmp_path / "message", "-sigfile",
            tmp_path / "signature",
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "Signature Verified Successfully" in done.stdout


def test_any_mapper(honest, tmp_path):
    """Replays may run anywhere and come back in any order; progress sees each."""

    def shuffled(function, tasks):
        reports = [function(task) for task in tasks]
        return iter([*reports[1::2], *reports[::2]])

    seen = []
    with Audit.open(honest, AuditOptions(steps=5, threads=1)) as a:
        reports = a.run(shuffled, lambda report: seen.append(report.step))
        assert [report.step for report in reports] == a.samples()
        assert sorted(seen) == a.samples()
        a.conclude(reversed(reports), tmp_path, VERIFIER)
        with pytest.raises(OptionError, match="not those of the challenged steps"):
            a.conclude(reports[1:], tmp_path, VERIFIER)
    assert result_of(tmp_path)["verdict"] == "PASS"


def test_all_steps(honest, tmp_path):
    """Replaying everything leaves no bad step possible."""
    data = audit(honest, tmp_path, steps=100)
    assert data.draw.f_max == "0.000000"
    assert data.draw.steps == tuple(range(runs.STEPS))
    assert "Every recorded step" in (tmp_path / "report.html").read_text()


def test_mismatch_fails_and_is_told(honest, tmp_path):
    """A false chunk fails the audit; no bound is claimed; the page says where."""
    folder = runs.copy(honest, tmp_path / "run")
    runs.flip(folder.store / "operands" / "0" / "c" / "0" / "0", 1000)
    data = audit(folder.root, tmp_path / "out")
    assert data.overall is Overall.FAIL
    assert data.draw.f_max is None
    assert result_of(tmp_path / "out")["f_max"] == "1"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Not verified" in page
    assert "step 0: the stored bytes are not those that were committed" in page


def test_deleted_chunk_is_incomplete(honest, tmp_path):
    """A deleted chunk is no response: the audit does not pass, and does not accuse."""
    folder = runs.copy(honest, tmp_path / "run")
    (folder.store / "operands" / "0" / "c" / "5" / "0").unlink()
    data = audit(folder.root, tmp_path / "out")
    assert data.overall is Overall.INCOMPLETE
    assert data.draw.f_max is None
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Not decided" in page
    assert "3</b> of 6 training steps were computed again" in page


def test_log_without_the_sampled_step(honest, tmp_path):
    """Steps that the log does not have are asked for, and not answered."""
    folder = runs.copy(honest, tmp_path / "run")
    lines = folder.leaves.read_text().splitlines(keepends=True)
    folder.leaves.write_text("".join(lines[:-1]))
    data = audit(folder.root, tmp_path / "out")
    last = data.steps[-1]
    assert last.step == runs.STEPS - 1
    assert [check.verdict for check in last.checks] == [V.NON_RESPONSE]
    folder.leaves.unlink()
    data = audit(folder.root, tmp_path / "out")
    assert {report.verdict for report in data.steps} == {V.NON_RESPONSE}
    assert data.overall is Overall.INCOMPLETE


def test_sparse_recording(tmp_path):
    """With every other step recorded, only those are drawn, and the report says so."""
    config = runs.config(record={"policy": "every", "every": 2}, train={"steps": 8})
    run = runs.train(tmp_path / "run", config)
    data = audit(run, tmp_path / "out", steps=100)
    assert data.overall is Overall.PASS
    assert data.draw.steps == (0, 2, 4, 6, 7)
    assert data.run.recorded == 5
    assert any(
        "did not record" in text and text.startswith("The arithmetic of 3 steps")
        for text in data.not_checked
    )


def test_beacon_older_than_the_commitment(honest, tmp_path):
    """A drand round that was public before the commitment decides nothing."""
    old = Beacon(value=b"x", kind="drand", description="drand round 1", time=1_700_000_000)
    data = audit(honest, tmp_path, beacon=old)
    check = next(c for c in data.checks if c.name == "challenge.beacon")
    assert check.verdict is V.INCONCLUSIVE
    assert data.overall is Overall.INCOMPLETE
    new = Beacon(value=b"x", kind="drand", description="drand round 2", time=4_000_000_000)
    assert audit(honest, tmp_path, beacon=new).overall is Overall.PASS


def test_beacon_is_recorded(honest, tmp_path):
    """The beacon's value stands in the result, and changes the seed."""
    data = audit(honest, tmp_path, beacon=beacon_from_hex("00ff"))
    assert result_of(tmp_path)["beacon"]["value"] == "00ff"
    assert "--beacon-hex 00ff" in data.commands[-1]
    assert data.draw.seed != audit(honest, tmp_path, beacon=NO_BEACON).draw.seed


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"steps": 5000},
        {"delta": Decimal(0)},
        {"delta": Decimal(1)},
        {"nonce": b"short"},
        {"nonce": bytes(65)},
    ],
)
def test_bad_options(options):
    """Options out of range are refused before anything is read."""
    with pytest.raises(OptionError):
        AuditOptions(**options)


def test_attempts_and_unknown_key_are_told(honest, tmp_path):
    """Without a trusted key the report says that nobody vouches for it."""
    data = audit(honest, tmp_path)
    assert any(text.startswith("Who the trainer is") for text in data.not_checked)
    assert "not known beforehand" in (tmp_path / "report.html").read_text()


def test_verify_each_statement(honest, audited):
    """Registration, commitment and result verify offline, with a given key or without."""
    for path, kind, key in (
        (honest / "registration.dsse.json", "registration", runs.KEY),
        (honest / "commitment.dsse.json", "commitment", runs.KEY),
        (audited / "audit-result.dsse.json", "audit-result", VERIFIER),
        (audited / "commitment.dsse.json", "commitment", runs.KEY),
    ):
        loose, strict = verify_file(path), verify_file(path, key.public)
        assert (loose.kind, loose.trusted, strict.trusted) == (kind, False, True)
        assert loose.key_id == strict.key_id == key.public.key_id
        with pytest.raises(SignatureError, match=path.name):
            verify_file(path, PrivateKey.generate().public)
    assert verify_file(audited / "audit-result.dsse.json").facts["verdict"] == "PASS"


def test_verify_needs_a_key(moved, tmp_path):
    """A commitment or result alone cannot be checked without a key, and says what is missing."""
    (moved / "verifier.pub.pem").unlink()
    (moved / "registration.dsse.json").unlink()
    for name, wanted in (
        ("audit-result.dsse.json", "verifier.pub.pem"),
        ("commitment.dsse.json", "registration.dsse.json"),
    ):
        with pytest.raises(UntrustedError, match=wanted):
            verify_file(moved / name)


def test_altered_result(moved):
    """A result with other bytes under the same signature is not signed."""
    path = moved / "audit-result.dsse.json"
    envelope = json.loads(path.read_text())
    payload = base64.b64decode(envelope["payload"]).replace(b'"PASS"', b'"FAIL"')
    envelope["payload"] = base64.b64encode(payload).decode()
    path.write_text(json.dumps(envelope))
    with pytest.raises(SignatureError, match="not signed by"):
        verify_file(path)


def test_verdict_that_does_not_follow(moved):
    """Even the verifier's own key cannot sign a PASS over a check that failed."""
    path = moved / "audit-result.dsse.json"
    envelope = Envelope.parse(path.read_bytes())
    payload = envelope.payload.replace(b'"verdict":"MATCH"', b'"verdict":"MISMATCH"', 1)
    path.write_bytes(Envelope.sign(payload, envelope.payload_type, [VERIFIER]).encode())
    with pytest.raises(MalformedError, match="verdict does not follow"):
        verify_file(path)


def test_other_statements(tmp_path, moved):
    """Another type, another version and no statement at all are told apart in one line."""
    path = tmp_path / "x.json"
    envelope = Envelope.parse((moved / "audit-result.dsse.json").read_bytes())
    path.write_bytes(Envelope.sign(envelope.payload, "text/plain", [VERIFIER]).encode())
    with pytest.raises(SignatureError, match="signed as 'text/plain'"):
        verify_file(path, VERIFIER.public)
    later = envelope.payload.replace(b"in-toto.io/Statement/v1", b"in-toto.io/Statement/v2")
    path.write_bytes(Envelope.sign(later, envelope.payload_type, [VERIFIER]).encode())
    with pytest.raises(VersionError, match=r"Statement/v2"):
        verify_file(path, VERIFIER.public)
    for payload in (b"{}", b"[]", b'{"predicateType":"https://example.org/v1"}'):
        path.write_bytes(Envelope.sign(payload, envelope.payload_type, [VERIFIER]).encode())
        with pytest.raises(MalformedError, match=r"x\.json"):
            verify_file(path, VERIFIER.public)
    for text in (b"", b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(text)
        with pytest.raises(Exception, match=r"x\.json") as caught:
            verify_file(path, VERIFIER.public)
        assert "\n" not in str(caught.value)


def test_result_of_another_run(honest, audited, tmp_path):
    """A result shown for another run, or for other weights of the same run, is refused."""
    path = audited / "audit-result.dsse.json"
    assert verify_file(path, run=honest).kind == "audit-result"
    other = runs.train(tmp_path / "other", runs.config())
    with pytest.raises(ResultError, match="is about commitment"):
        verify_file(path, run=other)
    swapped = runs.copy(honest, tmp_path / "swapped")
    runs.flip(swapped.weights, 5000)
    with pytest.raises(ResultError, match="another weights/model"):
        verify_file(path, run=swapped.root)


def test_report_of_other_data(moved):
    """The page is only made from the data that the result names."""
    page = (moved / "report.html").read_bytes()
    (moved / "report.html").unlink()
    assert write_report(moved).read_bytes() == page
    data = (moved / "report.json").read_bytes()
    (moved / "report.json").write_bytes(data.replace(b'"tiny"', b'"tidy"'))
    with pytest.raises(ResultError, match=r"report\.json: is not the report"):
        write_report(moved)
    with pytest.raises(ResultError, match=r"report\.json"):
        verify_file(moved / "audit-result.dsse.json")


def test_key_beside_the_result_must_be_its_own(moved):
    """Another key beside the result does not verify it."""
    (moved / "verifier.pub.pem").write_text(PrivateKey.generate().public.pem())
    with pytest.raises(SignatureError):
        write_report(moved)
    assert PublicKey.load(moved / "verifier.pub.pem").key_id != VERIFIER.public.key_id


def test_a_drand_round_is_checked_again_with_the_result(honest, tmp_path):
    """Whoever reads an audit result sees offline that its beacon is what the network signed."""
    round_ = test_drand.quicknet()
    good = Beacon(value=round_.randomness, kind="drand", description="drand", round=round_)
    audit(honest, tmp_path / "good", beacon=good)
    verified = verify_file(tmp_path / "good" / "audit-result.dsse.json")
    assert verified.facts["beacon"] == "drand"

    lies = {
        "made-up": replace(good, round=test_drand.quicknet(1001)),
        "other": replace(good, value=bytes(32)),
    }
    for name, beacon in lies.items():
        with pytest.raises(ResultError):
            audit(honest, tmp_path / name, beacon=beacon)
    with pytest.raises(ResultError, match="drand round 1001 of chain quicknet is not one"):
        verify_file(tmp_path / "made-up" / "audit-result.dsse.json")
    with pytest.raises(ResultError, match="is not the beacon that was signed"):
        verify_file(tmp_path / "other" / "audit-result.dsse.json")
