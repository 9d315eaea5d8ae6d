"""The decoding step gives what the training model gives, one token at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.constants import step_constants
from trainer.errors import ConfigError, GraphError
from trainer.generate import GenerationConfig, decode
from trainer.generate.decode import run_step, tensors
from trainer.generate.step import (
    batch_of,
    cache_bytes,
    constants_of,
    derive_decode_graph,
    initial_state,
    state_declared,
)
from trainer.model import Transformer
from trainer.trace import trace_step

PROMPT = b"def __init"


def configure(source, **fields):
    document = {
        "run": source.run_id,
        "commitment": source.commitment,
        "numerics": source.config.numerics,
        "model": source.config.model,
        "prompt": len(PROMPT),
        "tokens": source.config.model.context - len(PROMPT) + 1,
    }
    return GenerationConfig.from_document({**document, **fields})


def logits_by_step(config, source, prompts):
    """Decode, keeping each step's logits: f32 [steps, B, V], and the tokens fed."""
    graph = derive_decode_graph(config)
    last = next(node for node in reversed(graph.nodes) if node.op == "bitwitness::gemm").outputs[0]
    rows = []

    def sink(value, tensor):
        if value.id == last:
            rows.append(tensor.numpy())
        return tensor

    state = tensors(initial_state(config, np.array([list(p) for p in prompts], np.uint8)))
    constants = tensors(constants_of(config, source.parameters))
    for step in range(config.steps):
        state = run_step(graph, state, constants, step, sink)
    return np.stack(rows), state["tokens"]


def forward_logits(config, source, tokens):
    """Return the training model's logits over whole sequences: f32 [T, B, V]."""
    model = Transformer(model=config.model, numerics=config.numerics)
    constants = tensors(step_constants(config.model, 1))
    with torch.no_grad():
        flat = model.logits(tensors(source.parameters), constants, tokens)
    return flat.view(*tokens.shape, -1).transpose(0, 1).numpy()


@pytest.mark.parametrize("profile", ["fp32", "bf16"])
def test_logits_are_the_training_models(source, profile):
    """With an f32 cache, decoding gives the bits of the training model's forward pass."""
    numerics = {"arch": "hopper", "profile": profile}
    config = configure(source, numerics=numerics, cache="f32", batch=2)
    got, tokens = logits_by_step(config, source, [PROMPT, PROMPT[::-1]])
    expected = forward_logits(config, source, tokens[:, : config.model.context].contiguous())
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("profile", ["heal", "fp32"])
def test_int16_attention_stays_close(source, profile):
    """With an INT16 cache the logits are within 2e-4 of those with plain values."""
    numerics = {"arch": "hopper", "profile": profile}
    config = configure(source, numerics=numerics, tokens=1)
    got, tokens = logits_by_step(config, source, [PROMPT])
    padded = torch.zeros((1, config.model.context), dtype=torch.int32)
    padded[:, : config.steps] = tokens[:, : config.steps]
    expected = forward_logits(config, source, padded)[: config.steps]
    assert np.abs(got - expected).max() < 2e-4 * np.abs(expected).max()
    assert not np.array_equal(got, expected)


def test_each_token_is_the_largest_logit_of_the_step_before(source):
    """Prompt bytes stand; every later byte is the lowest index of the largest logit."""
    config = configure(source, batch=2)
    prompts = [PROMPT, PROMPT[::-1]]
    logits, tokens = logits_by_step(config, source, prompts)
    assert [bytes(row[: config.prompt].tolist()) for row in tokens] == prompts
    chosen = logits.argmax(axis=2).T[:, config.prompt - 1 :]
    assert np.array_equal(tokens.numpy()[:, config.prompt :], chosen)


def test_a_batch_decodes_like_its_prompts_alone(source):
    """Rows do not touch each other: a batch gives what its prompts give one by one."""
    prompts = [PROMPT, b"import sys", b"0123456789"]
    together = decode(configure(source, batch=3), source.parameters, prompts)
    alone = [decode(configure(source), source.parameters, [p])[0] for p in prompts]
    assert np.array_equal(together, np.stack(alone))


@pytest.mark.parametrize("profile", ["heal", "exact"])
def test_int16_scores_do_not_depend_on_the_architecture(source, profile):
    """Under `exact` every committed value is the same on all architectures."""
    rows = []
    for arch in ("volta", "ampere", "hopper"):
        config = configure(source, numerics={"arch": arch, "profile": profile})
        rows.append(logits_by_step(config, source, [PROMPT])[0])
    same = all(np.array_equal(row, rows[0]) for row in rows)
    assert same == (profile == "exact")


def test_the_cache_is_half_of_float32(source):
    """A vector of K values takes 2 K + 1 bytes instead of 4 K."""
    size = source.config.model.head_size
    small, large = cache_bytes(configure(source)), cache_bytes(configure(source, cache="f32"))
    assert small * 4 * size == large * (2 * size + 1)
    wide = source.config.model.model_copy(update={"width": 256, "heads": 2})
    ratio = cache_bytes(configure(source, model=wide)) / cache_bytes(
        configure(source, model=wide, cache="f32")
    )
    assert 0.5 < ratio < 0.502


def test_the_state_keeps_what_was_fed(source):
    """After each step the cache holds one more row, and rows before it are untouched."""
    config = configure(source)
    graph = derive_decode_graph(config)
    constants = tensors(constants_of(config, source.parameters))
    state = tensors(initial_state(config, np.frombuffer(PROMPT, np.uint8)[None]))
    for step in range(4):
        after = run_step(graph, state, constants, step, lambda _value, tensor: tensor)
        for name in state_declared(config):
            if name != "tokens":
                before, now = state[name].numpy(), after[name].numpy()
                assert now[..., step, :].any()
                assert not now[..., step + 1 :, :].any()
                assert np.array_equal(before[..., :step, :], now[..., :step, :])
        state = after


def test_the_graph_depends_on_the_configuration_alone(source):
    """Same configuration, same digest; another cache or profile, another graph."""
    config = configure(source)
    assert derive_decode_graph(config).digest == derive_decode_graph(config).digest
    others = [configure(source, cache="f32"), configure(source, numerics={"profile": "bf16"})]
    assert len({derive_decode_graph(c).digest for c in (config, *others)}) == 3


def test_scores_and_logits_have_a_place_in_the_arena(source):
    """Operands and results of every product are committed; the cache is, by the state."""
    graph = derive_decode_graph(configure(source))
    layers = source.config.model.layers
    ops = [graph.nodes[graph.producers[i]].op for i in graph.committed]
    assert ops.count("bitwitness::int16_scores") == ops.count("bitwitness::int16_mix") == layers
    assert ops.count("bitwitness::gemm") == 4 * layers + 1
    assert "bitwitness::cache_write" not in ops
    assert {graph.values[i].dtype for i in graph.committed} == {"f32"}


def test_an_operator_outside_the_pinned_set_is_refused_by_name():
    """A step that leaves the pinned set has no graph."""
    with pytest.raises(GraphError, match=r"aten\.exp"):
        trace_step(
            lambda state, _batch, _constants, _scalars: ({"x": state["x"].exp()}, {}),
            state={"x": ("f32", (2,))},
            batch={},
            constants={},
            scalars={},
        )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tokens": 8}, "window is 16"),
        ({"tokens": 0}, "tokens"),
        ({"prompt": 0}, "prompt"),
        ({"kind": "training"}, "kind"),
        ({"cache": "int8"}, "cache"),
        ({"numerics": {"device": "tpu"}}, "numerics.device"),
        ({"temperature": "0.7"}, "temperature"),
    ],
)
def test_what_cannot_be_generated_is_refused(source, fields, words):
    """Each refusal names its fault in one line."""
    with pytest.raises(ConfigError, match=words):
        configure(source, **fields)


def test_a_vocabulary_beyond_bytes_is_refused(source):
    """Text is bytes, in and out."""
    with pytest.raises(ConfigError, match="vocabulary of 300"):
        configure(source, model=source.config.model.model_copy(update={"vocab": 300}))


def test_prompts_must_be_what_the_configuration_says(source):
    """Another number or another length is refused."""
    for prompts in ([PROMPT, PROMPT], [PROMPT[:-1]]):
        with pytest.raises(ConfigError, match="1 prompts of 10 bytes"):
            decode(configure(source), source.parameters, prompts)


def test_the_batch_is_the_position():
    """Step t feeds the token at position t."""
    assert batch_of(5)["position"].tolist() == [5]
