"""Configurations: what is refused, and what is committed."""

from __future__ import annotations

import json

import pytest

from tests.conftest import tiny_document
from trainer.config import RecordConfig, RunConfig
from trainer.errors import ConfigError


def test_committed_document_holds_no_float(tiny: RunConfig) -> None:
    """The committed configuration is integers and strings only, and reads back equal."""

    def refuse(text: str) -> float:
        raise AssertionError(text)

    text = json.dumps(tiny.document())
    assert RunConfig.from_document(json.loads(text, parse_float=refuse)) == tiny


@pytest.mark.parametrize(
    ("section", "key", "value", "fault"),
    [
        ("model", "width", 0, "model.width"),
        ("model", "width", 1 << 40, "model.width"),
        ("model", "heads", 3, "even head size"),
        ("model", "depth", 3, "model.depth"),
        ("numerics", "arch", "pascal", "numerics.arch"),
        ("optim", "learning_rate", "nan", "optim.learning_rate"),
        ("optim", "warmup_steps", 99, "warmup_steps"),
        ("train", "world", 0, "train.world"),
    ],
)
def test_bad_field_is_named(section: str, key: str, value: object, fault: str) -> None:
    """A configuration that cannot be trained is refused in one line with file and field."""
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_document(tiny_document(**{section: {key: value}}), name="x.yaml")
    message = str(caught.value)
    assert message.startswith("x.yaml: ")
    assert fault in message
    assert "\n" not in message


def test_recorded_steps_hold_first_and_last() -> None:
    """Policy `every` keeps each n-th step and always the first and the last."""
    record = RecordConfig(policy="every", every=4)
    assert record.recorded(10) == [0, 4, 8, 9]
    assert RecordConfig().recorded(3) == [0, 1, 2]
