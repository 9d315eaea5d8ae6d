"""Training with INT16 queries, keys and values: the same bits as decoding, and a fair loss."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import tiny_document
from tests.runs import train_run
from tests.verifier import runs
from trainer.config import RunConfig
from trainer.generate import GenerationConfig, TrainedModel
from trainer.trace import derive_graph
from transcript.keys import PrivateKey
from transcript.run import RunFolder
from verifier.replay import replay_step
from verifier.verdict import Verdict

from .test_step import configure, forward_logits, logits_by_step

PROMPT = b"def __init"
INT16 = {"attention": "int16"}


@pytest.mark.parametrize("profile", ["fp32", "bf16", "heal", "exact"])
def test_decoding_has_the_bits_of_training(tmp_path, profile):
    """Under every profile, each logit of decoding is the training forward pass's, bit for bit."""
    numerics = {"profile": profile}
    run = runs.train(tmp_path / "run", runs.config(model=INT16, numerics=numerics))
    source = TrainedModel.read(RunFolder(run))
    config: GenerationConfig = configure(source, batch=2)
    got, tokens = logits_by_step(config, source, [PROMPT, PROMPT[::-1]])
    expected = forward_logits(config, source, tokens[:, : config.model.context].contiguous())
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_steps_replay(tmp_path):
    """A step with INT16 attention is audited like any other, its products compared."""
    run = runs.train(tmp_path / "run", runs.config(model=INT16))
    report = replay_step(run, 1, 1)
    assert report.verdict is Verdict.MATCH
    graph = derive_graph(runs.config(model=INT16))
    ops = [graph.nodes[graph.producers[i]].op for i in graph.committed]
    assert ops.count("bitwitness::int16_dot") == ops.count("bitwitness::int16_blend") == 2
    assert ops.count("bitwitness::int16_hold") == 6


def test_the_loss_is_that_of_plain_attention(tmp_path):
    """Over a run with a clear fall, every step's loss is within 0.1 % of f32 attention's."""

    def losses(attention):
        config = RunConfig.from_document(
            tiny_document(
                model={"width": 64, "hidden": 128, "context": 32, "attention": attention},
                optim={"learning_rate": "0.006", "warmup_steps": 4},
                train={"steps": 20, "batch": 4},
                record={"policy": "every", "every": 1000},
                numerics={"profile": "fp32"},
            )
        )
        steps = train_run(config, tmp_path / attention, PrivateKey.generate(), threads=2)
        return np.array([step.metric("loss") for step in steps])

    held, plain = losses("int16"), losses("f32")
    assert plain[-1] < 0.75 * plain[0]
    assert np.abs(held / plain - 1).max() < 1e-3
    assert not np.array_equal(held, plain)


def test_a_gpu_may_train_it():
    """A run with INT16 attention may ask for a GPU; the graph is the emulated device's."""
    document = tiny_document(model=INT16, numerics={"device": "cuda"})
    config = RunConfig.from_document(document)
    assert derive_graph(config).digest == derive_graph(runs.config(model=INT16)).digest
