"""Each kind of tampering shows at its own check, with its own verdict, and stops nothing else."""

import json
from pathlib import Path

import pytest

from tests.verifier import runs
from transcript.dsse import Envelope
from transcript.keys import PrivateKey
from transcript.run import RunFolder
from transcript.statements import Registration, open_registration, sign_statement
from verifier.audit import Audit, AuditOptions
from verifier.errors import BudgetError, RunError
from verifier.replay import replay_step
from verifier.structure import guarded
from verifier.verdict import Verdict

V = Verdict


def verdicts(folder, **options):
    with Audit.open(
        folder.root if isinstance(folder, RunFolder) else folder, AuditOptions(threads=1, **options)
    ) as audit:
        checks = audit.structure()
    names = [check.name for check in checks]
    assert len(names) == len(set(names))
    return {check.name: check for check in checks}


def wrong(folder, **options):
    """Return name to verdict of what did not match."""
    found = verdicts(folder, **options)
    return {name: check.verdict for name, check in found.items() if not check.ok}


def test_honest_run_matches_everywhere(honest):
    """An honest run raises nothing, and every documented check is made."""
    found = verdicts(honest)
    assert all(check.ok for check in found.values())
    assert set(found) == {
        "registration.signature", "commitment.signature", "registration.config",
        "commitment.registration", "numerics.evidence", "graph.digest", "graph.file",
        "constants.root", "constants.stored", "initial_state", "dataset.root", "store.plan",
        "state.stored", "log.size", "log.root", "log.checkpoints", "log.leaf", "state.chain",
        "scalars.schedule", "batch.schedule", "state.final", "weights.digest", "weights.final",
        "device.probe.start", "device.probe.end", "registration.attempts",
    }  # fmt: skip


def test_every_check_is_documented(honest):
    """docs/audit.md explains each check by its name."""
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    step_checks = {check.name for check in replay_step(honest, 0, 1).checks}
    for name in {*verdicts(honest), *step_checks}:
        assert f"`{name}`" in page


def test_trusted_key(honest):
    """The registered key matches if it is the one the auditor trusts, and not otherwise."""
    assert not wrong(honest, trusted=(runs.KEY.public,))
    other = PrivateKey.generate().public
    assert wrong(honest, trusted=(other,)) == {"registration.signature": V.INVALID_COMMITMENT}


@pytest.mark.parametrize("name", ["registration", "commitment"])
def test_foreign_signature(copied, name):
    """A statement that the registered key did not sign is seen, and the rest is still checked."""
    path = getattr(copied, name)
    payload = Envelope.parse(path.read_bytes())
    forged = Envelope.sign(payload.payload, payload.payload_type, [PrivateKey.generate()])
    path.write_bytes(forged.encode())
    assert wrong(copied) == {f"{name}.signature": V.INVALID_COMMITMENT}


def test_other_payload_type(copied):
    """Bytes signed as another type are not a commitment."""
    payload = Envelope.parse(copied.commitment.read_bytes()).payload
    copied.commitment.write_bytes(Envelope.sign(payload, "text/plain", [runs.KEY]).encode())
    assert wrong(copied) == {"commitment.signature": V.INVALID_COMMITMENT}


def _register(folder, **changes):
    """Change fields of the registration and sign it again with the trainer's own key."""
    predicate = open_registration(folder.registration.read_bytes()).predicate
    changed = Registration.model_validate({**predicate.model_dump(), **changes})
    folder.registration.write_bytes(sign_statement(changed, runs.KEY)[0])


@pytest.mark.parametrize(
    ("field", "value", "check"),
    [
        ("arch", "ada", "registration.config"),
        ("steps", 7, "registration.config"),
        ("graph_digest", "0" * 64, "graph.digest"),
        ("constants_root", "0" * 64, "constants.root"),
        ("initial_state_root", "0" * 64, "initial_state"),
        ("dataset", {"root": "0" * 64, "tokens": 20_000}, "dataset.root"),
    ],
)
def test_registration_rewritten_afterwards(copied, field, value, check):
    """A registration changed and signed again lies by itself, and nothing refers to it any more."""
    _register(copied, **{field: value})
    found = wrong(copied)
    assert found[check] is V.MISMATCH
    assert found["commitment.registration"] is V.MISMATCH
    assert found["log.leaf"] is V.MISMATCH


def test_graph_file(copied):
    """Another graph.json is a mismatch, none is no response."""
    runs.flip(copied.graph, 100)
    assert wrong(copied) == {"graph.file": V.MISMATCH}
    copied.graph.unlink()
    assert wrong(copied) == {"graph.file": V.NON_RESPONSE}


def _chunk(store, array, slot=0):
    return store / array / "c" / str(slot) / "0"


@pytest.mark.parametrize(
    ("array", "slot", "checks"),
    [
        ("dataset", 0, {"dataset.root", "batch.schedule"}),
        ("constants", 0, {"constants.stored"}),
        ("state", runs.STEPS, {"state.stored", "weights.final"}),
    ],
)
def test_stored_bytes(copied, array, slot, checks):
    """A flipped byte in the store is a mismatch; a deleted chunk is no response."""
    dataset = array == "dataset"
    path = _chunk(copied.dataset, "constants") if dataset else _chunk(copied.store, array, slot)
    runs.flip(path, 50)
    found = wrong(copied)
    assert set(found) == checks
    assert V.MISMATCH in found.values()
    path.unlink()
    assert wrong(copied) == dict.fromkeys(checks, V.NON_RESPONSE)


def test_rewritten_log_entry(copied):
    """One other loss in the log: its root is no longer the one that was signed."""
    lines = copied.leaves.read_text().splitlines()
    leaf = json.loads(lines[2])
    leaf["metrics"]["loss"] = "3f800000"
    lines[2] = json.dumps(leaf, sort_keys=True, separators=(",", ":"))
    copied.leaves.write_text("\n".join(lines) + "\n")
    assert wrong(copied) == {"log.root": V.MISMATCH, "log.checkpoints": V.INVALID_COMMITMENT}


def test_rewritten_state(copied):
    """A log entry that names another state breaks the chain on both sides."""
    lines = copied.leaves.read_text().splitlines()
    leaf = json.loads(lines[2])
    leaf["state_before"] = "0" * 64
    lines[2] = json.dumps(leaf, sort_keys=True, separators=(",", ":"))
    copied.leaves.write_text("\n".join(lines) + "\n")
    check = verdicts(copied)["state.chain"]
    assert check.verdict is V.MISMATCH
    assert check.evidence["step"] == "2"


def test_cut_log(copied):
    """A log that lost its last entry does not answer; one that lost its file neither."""
    lines = copied.leaves.read_text().splitlines(keepends=True)
    copied.leaves.write_text("".join(lines[:-1]))
    found = wrong(copied)
    assert found["log.root"] is V.NON_RESPONSE
    assert found["state.final"] is V.MISMATCH
    copied.leaves.unlink()
    assert wrong(copied) == {"log.leaf": V.NON_RESPONSE}


def test_extended_log(copied):
    """An entry more than was committed is a mismatch of size and root."""
    with copied.leaves.open("a") as stream:
        stream.write(copied.leaves.read_text().splitlines()[-1] + "\n")
    found = wrong(copied)
    assert found["log.size"] is found["log.root"] is V.MISMATCH
    assert found["log.leaf"] is V.INVALID_COMMITMENT


def test_log_of_garbage(copied):
    """Bytes that are no log entry end the walk at their line, without an exception."""
    lines = copied.leaves.read_text().splitlines()
    lines[3] = '{"type": NaN}'
    copied.leaves.write_text("\n".join(lines) + "\n")
    check = verdicts(copied)["log.leaf"]
    assert check.verdict is V.INVALID_COMMITMENT
    assert "leaves.jsonl:4" in check.detail


def test_tree_heads(copied):
    """A missing tree head is no response, one of another key is invalid."""
    head = copied.checkpoint(2)
    saved = head.read_bytes()
    head.unlink()
    assert wrong(copied) == {"log.checkpoints": V.NON_RESPONSE}
    head.write_bytes(saved.replace(b"\n2\n", b"\n3\n"))
    assert wrong(copied) == {"log.checkpoints": V.INVALID_COMMITMENT}


def test_swapped_weights(copied):
    """Other exported weights differ in digest and bits; a missing file is no response."""
    runs.flip(copied.weights, copied.weights.stat().st_size - 1)
    found = verdicts(copied)
    assert found["weights.digest"].verdict is V.MISMATCH
    assert found["weights.final"].verdict is V.MISMATCH
    assert found["weights.final"].evidence["found"] == "layer1.qkv"
    copied.weights.unlink()
    assert wrong(copied) == {"weights.final": V.NON_RESPONSE}


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff" * 8, b"\x02" + bytes(7) + b"{}", b"\x02" + bytes(7) + b"[]", bytes(1 << 20)],
)
def test_hostile_weights(copied, data):
    """A weights file that is none is a check, never an exception, and is never read whole."""
    copied.weights.write_bytes(data)
    assert wrong(copied)["weights.final"] in {V.INVALID_COMMITMENT, V.MISMATCH}


def test_symbolic_link(copied, tmp_path):
    """A link in the run's folder is not followed."""
    copied.graph.rename(tmp_path / "elsewhere")
    copied.graph.symlink_to(tmp_path / "elsewhere")
    assert wrong(copied) == {"graph.file": V.INVALID_COMMITMENT}


def _patched(monkeypatch, tmp_path, target, replacement):
    monkeypatch.setattr(target, replacement)
    run = runs.train(tmp_path / "cheat", runs.config())
    monkeypatch.undo()
    return run


def test_other_learning_rate(monkeypatch, tmp_path):
    """A learning rate off the schedule at one step is found there."""
    from trainer.constants import step_scalars

    def cheat(optim, steps, step):
        scalars = step_scalars(optim, steps, step)
        return scalars * 2 if step == 3 else scalars

    run = _patched(monkeypatch, tmp_path, "trainer.rank.step_scalars", cheat)
    assert wrong(run) == {"scalars.schedule": V.MISMATCH}
    assert verdicts(run)["scalars.schedule"].evidence["step"] == "3"


def test_swapped_batch(monkeypatch, tmp_path):
    """A step trained on another step's data is found there."""
    from trainer.data import batch_at

    def cheat(tokens, root, config, step, rank):
        return batch_at(tokens, root, config, 0 if step == 4 else step, rank)

    run = _patched(monkeypatch, tmp_path, "trainer.rank.batch_at", cheat)
    assert wrong(run) == {"batch.schedule": V.MISMATCH}
    assert verdicts(run)["batch.schedule"].evidence["step"] == "4"


def test_other_initial_state(monkeypatch, tmp_path):
    """A run that did not begin with its seed's state is found, however consistent it is."""
    from trainer.state import initial_state

    def cheat(config):
        return initial_state(config.model_copy(update={"seed": 8}))

    run = _patched(monkeypatch, tmp_path, "trainer.prepare.initial_state", cheat)
    assert wrong(run) == {"initial_state": V.MISMATCH}


def test_other_graph(monkeypatch, tmp_path):
    """A run with one layer less than registered is found by its graph alone."""
    from trainer.trace import derive_graph

    def cheat(config):
        model = config.model.model_copy(update={"norm_eps": config.model.norm_eps * 2})
        return derive_graph(config.model_copy(update={"model": model}))

    monkeypatch.setattr("trainer.prepare.derive_graph", cheat)
    run = _patched(monkeypatch, tmp_path, "trainer.rank.derive_graph", cheat)
    found = wrong(run)
    assert found["graph.digest"] is V.MISMATCH
    assert found["graph.file"] is V.MISMATCH
    assert found["log.leaf"] is V.MISMATCH


def test_unrecorded_steps(monkeypatch, tmp_path):
    """A store that lacks steps which the policy promises does not answer."""
    from trainer.config import RecordConfig

    original = RecordConfig.recorded
    monkeypatch.setattr(
        RecordConfig, "recorded", lambda self, steps: [s for s in original(self, steps) if s != 2]
    )
    run = runs.train(tmp_path / "cheat", runs.config())
    monkeypatch.undo()
    check = verdicts(run)["store.plan"]
    assert check.verdict is V.NON_RESPONSE
    assert "step 2" in check.detail


def test_unreadable_runs(copied, tmp_path):
    """No registration or commitment to begin with is one line naming the file."""
    with pytest.raises(RunError, match=r"registration\.dsse\.json: there is no such file"):
        Audit.open(tmp_path)
    copied.commitment.unlink()
    with pytest.raises(RunError, match=r"commitment\.dsse\.json: there is no such file"):
        Audit.open(copied.root)
    data = copied.registration.read_bytes()
    for broken in (b"", data[:200], b"{}", b"\xff\xfe"):
        copied.registration.write_bytes(broken)
        with pytest.raises(RunError, match=r"registration\.dsse\.json") as caught:
            Audit.open(copied.root)
        assert "\n" not in str(caught.value)


def test_another_version(copied):
    """A registration of a later version is refused as such."""
    payload = Envelope.parse(copied.registration.read_bytes()).payload
    later = payload.replace(b"registration/v2", b"registration/v3")
    copied.registration.write_bytes(
        Envelope.sign(later, "application/vnd.in-toto+json", [runs.KEY]).encode()
    )
    with pytest.raises(RunError, match="registration/v2"):
        Audit.open(copied.root)


@pytest.mark.parametrize(
    "model",
    [
        {"layers": 1 << 20},
        {"width": 1 << 20, "heads": 1 << 10, "hidden": 1 << 20},
        {"context": 1 << 20, "width": 1024, "heads": 2},
        {"context": 1 << 20, "width": 4, "heads": 1},
    ],
)
def test_monstrous_configurations(copied, model):
    """A configuration that would never end is refused before anything is derived from it."""
    document = runs.config().document()
    document["model"].update(model)
    _register(copied, config=document)
    with pytest.raises(BudgetError):
        Audit.open(copied.root)


def test_budget(honest):
    """An audit over the budget is refused with both figures, before the store is read."""
    with pytest.raises(BudgetError, match=r"replaying 4 steps takes .* it allows 2 steps"):
        Audit.open(honest, AuditOptions(steps=4, budget=6_000_000))
    with Audit.open(honest, AuditOptions(steps=4, budget=60_000_000)) as audit:
        assert audit.structure()


def test_guarded_keeps_what_came_before():
    """A fault in the middle of a group of checks does not lose the checks before it."""
    from transcript.errors import MissingError
    from verifier.verdict import match

    def checks():
        yield match("a", "")
        raise MissingError("gone")

    assert [(c.name, c.verdict) for c in guarded("b", checks)] == [
        ("a", V.MATCH), ("b", V.NON_RESPONSE),
    ]  # fmt: skip
