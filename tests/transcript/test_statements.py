"""Signed statements: what is signed, by whom, as what."""

import base64
import json
import shutil
import subprocess

import pytest

from tests.transcript.statement_samples import (
    AUDIT,
    COMMITMENT,
    FAULT,
    REGISTRATION,
    registration,
)
from transcript import canonical
from transcript.dsse import Envelope, pae
from transcript.errors import (
    LimitError,
    MalformedError,
    SignatureError,
    TranscriptError,
    VersionError,
)
from transcript.keys import PrivateKey
from transcript.predicates import AuditResult, Commitment, Registration, overall
from transcript.statements import (
    PAYLOAD_TYPE,
    open_registration,
    open_statement,
    sign_statement,
)

KEY = PrivateKey.generate()
P256 = PrivateKey.generate("ecdsa-p256-sha256")
SAMPLES = [REGISTRATION, FAULT, COMMITMENT, AUDIT]


@pytest.mark.parametrize("key", [KEY, P256], ids=["ed25519", "p256"])
@pytest.mark.parametrize("predicate", SAMPLES, ids=lambda p: type(p).__name__)
def test_round_trip(predicate, key):
    """A signed statement opens to what was signed, and its digest is the payload's SHA-256."""
    data, digest = sign_statement(predicate, key)
    signed = open_statement(data, type(predicate), [PrivateKey.generate().public, key.public])
    assert signed.predicate == predicate
    assert signed.digest == digest
    assert [signer.key_id for signer in signed.signers] == [key.public.key_id]


def test_the_pre_authentication_encoding():
    """PAE is the one of the DSSE specification's own example."""
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_the_payload_is_an_in_toto_statement():
    """The payload has in-toto's four fields, and its subjects are the predicate's."""
    data, _ = sign_statement(COMMITMENT, KEY)
    payload = json.loads(base64.b64decode(json.loads(data)["payload"]))
    assert payload["_type"] == "https://in-toto.io/Statement/v1"
    assert payload["predicateType"] == "https://bitwitness.dev/commitment/v2"
    assert payload["subject"][-1] == {
        "name": "weights/model.safetensors",
        "digest": {"sha256": COMMITMENT.weights[0].sha256},
    }


@pytest.mark.parametrize("predicate", SAMPLES, ids=lambda p: type(p).__name__)
def test_flipped_payload_bits_are_refused(predicate):
    """A signature covers every byte of the payload."""
    data, _ = sign_statement(predicate, KEY)
    envelope = Envelope.parse(data)
    for position in range(0, len(envelope.payload), 37):
        payload = bytearray(envelope.payload)
        payload[position] ^= 1
        changed = json.loads(data)
        changed["payload"] = base64.b64encode(payload).decode()
        with pytest.raises(SignatureError):
            open_statement(canonical.dumps(changed), type(predicate), [KEY.public])


def test_a_wrong_key_is_refused():
    """A statement by a key that is not trusted is refused, whatever key it claims."""
    data, _ = sign_statement(COMMITMENT, PrivateKey.generate())
    changed = json.loads(data)
    changed["signatures"][0]["keyid"] = KEY.public.key_id
    for attempt in (data, canonical.dumps(changed)):
        with pytest.raises(SignatureError, match="x: not signed by"):
            open_statement(attempt, Commitment, [KEY.public], file="x")
    with pytest.raises(SignatureError, match="no key"):
        open_statement(data, Commitment, [])


def test_a_wrong_key_id_decides_nothing():
    """A key id is a hint: a good signature under a false one is still good."""
    data, digest = sign_statement(COMMITMENT, KEY)
    changed = json.loads(data)
    changed["signatures"][0]["keyid"] = "somebody"
    assert open_statement(canonical.dumps(changed), Commitment, [KEY.public]).digest == digest


def test_another_payload_type_is_refused():
    """The same bytes signed as another type do not pass, nor does a type changed afterwards."""
    payload = Envelope.parse(sign_statement(COMMITMENT, KEY)[0]).payload
    other = Envelope.sign(payload, "text/plain", [KEY])
    with pytest.raises(SignatureError, match="signed as 'text/plain'"):
        open_statement(other.encode(), Commitment, [KEY.public])
    forged = Envelope(payload_type=PAYLOAD_TYPE, payload=payload, signatures=other.signatures)
    with pytest.raises(SignatureError, match="not signed by"):
        open_statement(forged.encode(), Commitment, [KEY.public])


def test_one_statement_does_not_pass_for_another():
    """A signed commitment is no registration and no audit result."""
    data, _ = sign_statement(COMMITMENT, KEY)
    for kind in (Registration, AuditResult):
        with pytest.raises(VersionError, match="predicateType"):
            open_statement(data, kind, [KEY.public])


def test_a_registration_proves_its_own_key():
    """A registration opens under the key that it names, and only if that one signed it."""
    own = registration(public_key=KEY.public.pem())
    data, digest = sign_statement(own, KEY)
    assert open_registration(data).digest == digest
    assert open_registration(data, [KEY.public]).predicate == own
    with pytest.raises(SignatureError, match="not a trusted one"):
        open_registration(data, [P256.public])
    with pytest.raises(SignatureError, match="not signed by"):
        open_registration(sign_statement(own, P256)[0])
    with pytest.raises(MalformedError, match="PEM"):
        open_registration(sign_statement(registration(public_key="none"), KEY)[0])


def envelopes():
    """Yield a name and a broken envelope."""
    good = json.loads(sign_statement(COMMITMENT, KEY)[0])
    sig = good["signatures"][0]
    yield "no payload", {k: v for k, v in good.items() if k != "payload"}
    yield "extra field", {**good, "note": 1}
    yield "payload number", {**good, "payload": 1}
    yield "payload not base64", {**good, "payload": "*"}
    yield "payload url-safe", {**good, "payload": "-_-_"}
    yield "payload loose", {**good, "payload": "QUJDRB=="}
    yield "payload newline", {**good, "payload": good["payload"][:4] + "\n" + good["payload"][4:]}
    yield "type number", {**good, "payloadType": 1}
    yield "signatures object", {**good, "signatures": {}}
    yield "no signatures", {**good, "signatures": []}
    yield "many signatures", {**good, "signatures": [sig] * 17}
    yield "signature text", {**good, "signatures": ["x"]}
    yield "signature extra", {**good, "signatures": [{**sig, "alg": "none"}]}
    yield "no keyid", {**good, "signatures": [{"sig": sig["sig"]}]}
    yield "keyid number", {**good, "signatures": [{**sig, "keyid": 1}]}
    yield "long sig", {**good, "signatures": [{**sig, "sig": "QUJD" * 100}]}
    yield "list", [good]


@pytest.mark.parametrize("value", [e[1] for e in envelopes()], ids=[e[0] for e in envelopes()])
def test_broken_envelopes_are_refused(value):
    """Every deviation from an envelope's three fields is refused in one line."""
    with pytest.raises((MalformedError, LimitError), match=r"^c\.dsse\.json: [^\n]+$"):
        open_statement(canonical.dumps(value), Commitment, [KEY.public], file="c.dsse.json")


def payloads():
    """Yield a name and a change of a commitment's statement, signed by the right key."""
    yield "run version", lambda s: s.update(predicateType="https://bitwitness.dev/commitment/v3")
    yield "statement version", lambda s: s.update(_type="https://in-toto.io/Statement/v0.1")
    yield "extra field", lambda s: s.update(extra=1)
    yield "other subject", lambda s: s["subject"].pop()
    yield "swapped subject", lambda s: s["subject"][0]["digest"].update(sha256="0" * 64)
    yield "extra digest", lambda s: s["subject"][0]["digest"].update(md5="0" * 32)
    yield "unknown field", lambda s: s["predicate"].update(note="x")
    yield "missing field", lambda s: s["predicate"].pop("created")
    yield "missing field with a default", lambda s: s["predicate"].pop("faults")
    yield "faults out of order", lambda s: s["predicate"].update(faults=["1" * 64, "0" * 64])
    yield "a fault twice", lambda s: s["predicate"].update(faults=["1" * 64, "1" * 64])
    yield "size differs", lambda s: s["predicate"]["log"].update(size=3)
    yield "size text", lambda s: s["predicate"]["log"].update(size="4")
    yield "steps bool", lambda s: s["predicate"].update(steps=True)
    yield "steps null", lambda s: s["predicate"].update(steps=None)
    yield "bad date", lambda s: s["predicate"].update(created="2026-02-30T00:00:00Z")
    yield "local time", lambda s: s["predicate"].update(created="2026-01-01T00:00:00+01:00")
    yield "loose date", lambda s: s["predicate"].update(created="2026-1-1T0:0:0Z")
    yield "climbing path", lambda s: s["predicate"]["weights"][0].update(path="a/../../b")
    yield "absolute path", lambda s: s["predicate"]["weights"][0].update(path="/etc/passwd")
    yield "digest", lambda s: s["predicate"].update(final_state_root="g" * 64)


@pytest.mark.parametrize("change", [p[1] for p in payloads()], ids=[p[0] for p in payloads()])
def test_broken_statements_are_refused_though_signed(change):
    """A good signature does not excuse a statement that is not of its form."""
    payload = json.loads(Envelope.parse(sign_statement(COMMITMENT, KEY)[0]).payload)
    change(payload)
    data = Envelope.sign(canonical.dumps(payload), PAYLOAD_TYPE, [KEY]).encode()
    with pytest.raises((MalformedError, VersionError), match=r"^c\.dsse\.json: [^\n]+$"):
        open_statement(data, Commitment, [KEY.public], file="c.dsse.json")


@pytest.mark.parametrize(
    "payload", [b'{"_type":1,"_type":1}', b"[1.5]", b"", b"\xff", b'{"a": 1}', b"[" * 10_000]
)
def test_hostile_payloads_are_refused_though_signed(payload):
    """Ambiguous JSON is refused also under a good signature."""
    data = Envelope.sign(payload, PAYLOAD_TYPE, [KEY]).encode()
    with pytest.raises(TranscriptError) as caught:
        open_statement(data, Commitment, [KEY.public], file="c.dsse.json")
    assert caught.value.code in {"E_MALFORMED", "E_LIMIT"}


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": 2},
        {"previous": "0" * 64},
        {"attempt": 0},
        {"probes": ("0" * 64,) * 2},
    ],
    ids=str,
)
def test_a_registration_is_coherent(change):
    """Only a first attempt has none before it, and either each rank was probed or none."""
    with pytest.raises(ValueError, match=r"attempt|probed"):
        registration(**change)


def test_floats_in_a_configuration_are_refused():
    """A configuration holds no floating-point number at any depth."""
    with pytest.raises(ValueError, match="not canonical JSON"):
        registration(config={"optim": {"learning_rate": 0.1}})


@pytest.mark.parametrize(
    ("verdicts", "result"),
    [
        (["MATCH"], "PASS"),
        ([], "INCOMPLETE"),
        (["MATCH", "NON_RESPONSE"], "INCOMPLETE"),
        (["MATCH", "INCONCLUSIVE"], "INCOMPLETE"),
        (["MATCH", "DECLARED_FAULT"], "INCOMPLETE"),
        (["NON_RESPONSE", "MISMATCH"], "FAIL"),
        (["INVALID_COMMITMENT"], "FAIL"),
    ],
)
def test_verdicts_combine(verdicts, result):
    """FAIL on proof of a lie, PASS only if everything checked matches, else INCOMPLETE."""
    assert overall(verdicts) == result


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "FAIL"},
        {"verdict": "INCOMPLETE"},
        {"sampled": 3},
        {"total": 1},
        {"steps": [AUDIT.steps[1], AUDIT.steps[0]]},
        {"f_max": "nan"},
        {"delta": "-1"},
        {"nonce": "00"},
        {"report": ""},
        {"beacon": {"source": "file", "value": "abc"}},
    ],
    ids=str,
)
def test_an_audit_result_is_coherent(change):
    """A verdict that does not follow from the checks, or false counts, cannot be stated."""
    with pytest.raises(MalformedError):
        AuditResult.check({**AUDIT.model_dump(), **change})


@pytest.mark.parametrize("value", ["0", "0.01", "1E-7", "0E-28", "1.5e+3"])
def test_decimals_are_what_pythons_decimal_prints(value):
    """Bounds are stated in the forms that exact decimal arithmetic prints."""
    result = AuditResult.check({**AUDIT.model_dump(), "f_max": value})
    assert result.f_max == value


def test_an_audit_without_a_beacon_says_so():
    """An empty beacon can be stated; it is up to the reader what it is worth."""
    result = AuditResult.check({**AUDIT.model_dump(), "beacon": {"source": "none", "value": ""}})
    assert result.beacon.value == ""


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("key", [KEY, P256], ids=["ed25519", "p256"])
def test_openssl_and_jq_verify_a_statement(tmp_path, key):
    """The recipe of docs/formats/statements.md accepts a statement and refuses a changed one."""
    from tests.transcript.recipe import RECIPES

    (tmp_path / "s.dsse.json").write_bytes(sign_statement(COMMITMENT, key)[0])
    (tmp_path / "key.pem").write_text(key.public.pem())

    def verify():
        script = RECIPES[key.public.algorithm]
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, check=False,
            capture_output=True, text=True,
        )  # fmt: skip

    done = verify()
    assert (done.returncode, done.stderr) == (0, "")
    assert "Success" in done.stdout or "OK" in done.stdout
    payload = (tmp_path / "payload").read_bytes()
    assert payload == Envelope.parse((tmp_path / "s.dsse.json").read_bytes()).payload
    changed = json.loads((tmp_path / "s.dsse.json").read_text())
    changed["payload"] = base64.b64encode(payload.replace(b'"steps":4', b'"steps":5')).decode()
    (tmp_path / "s.dsse.json").write_text(json.dumps(changed))
    assert verify().returncode != 0


@pytest.mark.parametrize("key", [KEY, P256], ids=["ed25519", "p256"])
def test_openssl_verifies_the_encoding(tmp_path, key):
    """`openssl pkeyutl -verify` accepts a signature over the PAE bytes, built by hand."""
    envelope = json.loads(sign_statement(COMMITMENT, key)[0])
    payload = base64.b64decode(envelope["payload"])
    message = b"DSSEv1 28 application/vnd.in-toto+json %d %b" % (len(payload), payload)
    (tmp_path / "message").write_bytes(message)
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    (tmp_path / "key.pem").write_text(key.public.pem())
    command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", "key.pem"]
    command += ["-sigfile", "sig", "-in", "message"]
    if key is P256:
        command += ["-digest", "sha256"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    (tmp_path / "message").write_bytes(message[:-1])
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode != 0
