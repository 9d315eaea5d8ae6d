"""A generation is committed like a run: registered, logged, stored, committed."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import pytest
import safetensors.numpy

import trainer.kernels
from tests.verifier import runs
from trainer.config import RecordConfig
from trainer.errors import ConfigError
from trainer.generate import GenerationConfig, TrainedModel, decode, derive_decode_graph, generate
from trainer.generate.run import configure
from trainer.kernels.errors import EnvironmentMissingError
from trainer.plan import layouts_of
from transcript.errors import MissingError, ProofError
from transcript.log import LogReader
from transcript.run import RunFolder
from transcript.statements import Commitment, open_statement, read_registration
from transcript.store import RunStore

PROMPT, TOKENS = b"import", 8
STEPS = len(PROMPT) + TOKENS - 1


@pytest.fixture(scope="module")
def made(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("generation")
    return generate(trained, PROMPT, TOKENS, key=runs.KEY, out=out, threads=1)


def leaves(folder):
    with LogReader(folder.log, read_registration(folder).predicate.run_id) as log:
        return list(log.leaves())


def test_the_text_is_what_plain_decoding_gives(made, source):
    """Committing changes no byte of the text, which begins with the prompt."""
    folder = RunFolder(made.folder)
    config = GenerationConfig.from_document(read_registration(folder).predicate.config)
    assert made.text == decode(config, source.parameters, [PROMPT])[0].tobytes()
    assert made.text.startswith(PROMPT)
    assert len(made.text) == len(PROMPT) + TOKENS
    assert (made.folder / "text/output.bin").read_bytes() == made.text


def test_statements_name_run_and_text(made, trained):
    """The registration names the training run's commitment, the commitment the text's digest."""
    folder = RunFolder(made.folder)
    signed = read_registration(folder)
    commitment = open_statement(folder.commitment.read_bytes(), Commitment, [runs.KEY.public])
    training = open_statement(
        RunFolder(trained).commitment.read_bytes(), Commitment, [runs.KEY.public]
    )
    assert signed.predicate.config["kind"] == "generation"
    assert signed.predicate.config["commitment"] == training.digest
    assert commitment.digest == made.commitment
    assert commitment.predicate.registration == signed.digest
    assert [item.path for item in commitment.predicate.weights] == ["text/output.bin"]


def test_every_token_is_a_logged_step(made):
    """One leaf a token fed, chained from the registered to the committed state."""
    folder = RunFolder(made.folder)
    logged = leaves(folder)
    registration = read_registration(folder).predicate
    assert len(logged) == STEPS == registration.steps
    assert logged[0].state_before == registration.initial_state_root
    assert all(a.state_after == b.state_before for a, b in pairwise(logged))
    assert len({leaf.arenas for leaf in logged}) == STEPS


def test_two_generations_have_equal_roots(made, trained, tmp_path):
    """With one thread or two, roots are the same; only names, times and keys differ."""
    again = generate(trained, PROMPT, TOKENS, key=runs.KEY, out=tmp_path / "again", threads=2)

    def roots(folder):
        return [(e.state_before, e.state_after, e.batches, e.arenas) for e in leaves(folder)]

    assert roots(RunFolder(again.folder)) == roots(RunFolder(made.folder))
    assert again.text == made.text


def test_a_policy_keeps_fewer_steps(trained, tmp_path):
    """With `every: 5` each fifth step and the last are kept, each with its state before."""
    record = RecordConfig(policy="every", every=5)
    made = generate(trained, PROMPT, TOKENS, key=runs.KEY, out=tmp_path / "g", record=record)
    folder = RunFolder(made.folder)
    config = GenerationConfig.from_document(read_registration(folder).predicate.config)
    store = RunStore.open(folder.store, layouts_of(derive_decode_graph(config)))
    assert list(store.recorded) == [0, 5, 10, 12]
    assert store.read_state(5).any()
    with pytest.raises(MissingError):
        store.read_arena(0, 1)


def test_generations_lie_in_the_runs_folder(trained):
    """Without another place, a generation lies below its run."""
    made = generate(trained, b"x", 1, key=runs.KEY, threads=1)
    assert made.folder == trained / "generations" / made.run_id


def test_each_token_is_announced(trained, tmp_path):
    """The caller hears of every step's byte as it is decided."""
    heard = []
    made = generate(
        trained, PROMPT, TOKENS, key=runs.KEY, out=tmp_path / "g",
        on_token=lambda step, byte: heard.append((step, byte)),
    )  # fmt: skip
    assert heard == [(i, made.text[i + 1 : i + 2]) for i in range(STEPS)]


def test_a_folder_that_holds_a_run_is_refused(made, trained):
    """Nothing is overwritten."""
    before = RunFolder(made.folder).registration.read_bytes()
    with pytest.raises(ConfigError, match="holds a run already"):
        generate(trained, PROMPT, 1, key=runs.KEY, out=made.folder)
    assert RunFolder(made.folder).registration.read_bytes() == before


@pytest.mark.parametrize(("prompt", "tokens"), [(b"", 4), (b"x" * 17, 1), (b"x", 17), (b"x", 0)])
def test_what_does_not_fit_is_refused(trained, tmp_path, prompt, tokens):
    """No prompt, or more than the window holds: nothing is written."""
    with pytest.raises(ConfigError):
        generate(trained, prompt, tokens, key=runs.KEY, out=tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_the_source_is_what_the_run_exported(source, trained):
    """Parameters come from the final state and equal the exported file."""
    exported = safetensors.numpy.load(RunFolder(trained).weights.read_bytes())
    assert exported.keys() == source.parameters.keys()
    for name, array in exported.items():
        assert np.array_equal(array.view(np.uint32), source.parameters[name].view(np.uint32))


def test_other_weights_than_committed_are_refused(trained, tmp_path):
    """A final state that was exchanged in the store does not open the committed root."""
    folder = runs.copy(trained, tmp_path / "run")
    # Two kept states of the same size: put the one before where the final one lies.
    chunks = sorted((folder.store / "state/c").iterdir(), key=lambda p: int(p.name))
    (chunks[-1] / "0").write_bytes((chunks[-2] / "0").read_bytes())
    with pytest.raises(ProofError, match="another root than was committed"):
        TrainedModel.read(folder)


def test_an_unfinished_run_is_refused(trained, tmp_path):
    """Without a commitment there is nothing to generate from."""
    folder = runs.copy(trained, tmp_path / "run")
    folder.commitment.unlink()
    with pytest.raises(MissingError):
        generate(folder, PROMPT, 1, key=runs.KEY, out=tmp_path / "g")


def test_the_device_is_the_runs_or_the_callers(source):
    """Without a device the run's is taken; either way nothing else of the numerics changes."""
    arguments = (source, PROMPT, TOKENS)
    configs = [
        configure(*arguments, cache="int16", record=RecordConfig(), device=device)
        for device in (None, "emulated", "cuda")
    ]
    assert [c.numerics.device for c in configs] == ["emulated", "emulated", "cuda"]
    assert {c.numerics.model_copy(update={"device": "emulated"}) for c in configs} == {
        source.config.numerics
    }
    assert len({derive_decode_graph(c).digest for c in configs}) == 1


def test_without_a_gpu_nothing_is_written(trained, tmp_path, monkeypatch):
    """Asked for a GPU that is not there, a generation ends with E_NO_GPU and leaves no folder."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    trainer.kernels.runtime.cache_clear()
    with pytest.raises(EnvironmentMissingError, match="device cuda: CuPy is missing") as error:
        generate(trained, PROMPT, TOKENS, key=runs.KEY, out=tmp_path / "g", device="cuda")
    assert error.value.code == "E_NO_GPU"
    assert not (tmp_path / "g").exists()


def test_decoding_asks_for_the_gpu_too(source, monkeypatch):
    """Uncommitted decoding does not fall back to the CPU either."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    trainer.kernels.runtime.cache_clear()
    record = RecordConfig()
    config = configure(source, PROMPT, 1, cache="int16", record=record, device="cuda")
    with pytest.raises(EnvironmentMissingError, match="device cuda: CuPy is missing"):
        decode(config, source.parameters, [PROMPT])
