"""Batches and initial values: functions of roots and seeds, uniform and in range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import TINY, tiny_document
from trainer.config import DataConfig, RunConfig
from trainer.data import batch_at, load_corpus, window_starts
from trainer.errors import DataError
from trainer.state import initial_state

ROOT = "ab" * 32
CONFIG = RunConfig.from_document(TINY)
TOKENS = np.arange(1000, dtype=np.uint32).astype(np.uint8)


@given(st.integers(0, 2**20), st.integers(0, 1))
def test_targets_are_the_next_bytes(step: int, rank: int) -> None:
    """Every target is the byte after its token, and both lie in the corpus."""
    config = RunConfig.from_document(tiny_document(train={"world": 2}))
    batch = batch_at(TOKENS, ROOT, config, step, rank)
    starts = window_starts(len(TOKENS), ROOT, config, step, rank)
    for row, start in enumerate(starts):
        window = TOKENS[start : start + config.model.context + 1]
        assert batch["tokens"][row].tolist() == window[:-1].tolist()
        assert batch["targets"][row].tolist() == window[1:].tolist()


def test_schedule_depends_on_root_seed_step_and_rank() -> None:
    """Changing any of the four gives other windows; changing none gives the same."""

    def starts(root: str = ROOT, seed: int = 7, step: int = 3, rank: int = 0) -> list[int]:
        document = tiny_document(train={"world": 2, "batch": 8}) | {"seed": seed}
        config = RunConfig.from_document(document)
        return window_starts(10**6, root, config, step, rank).tolist()

    base = starts()
    assert starts() == base
    for other in (starts(root="cd" * 32), starts(seed=8), starts(step=4), starts(rank=1)):
        assert other != base


def test_last_window_can_be_drawn_and_ends_at_the_last_token() -> None:
    """With one possible start every window is the whole corpus."""
    tokens = CONFIG.model.context + 1
    assert window_starts(tokens, ROOT, CONFIG, 0, 0).tolist() == [0] * CONFIG.train.batch


def test_corpus_shorter_than_a_window_is_refused() -> None:
    """Too little text is an error with both numbers."""
    with pytest.raises(DataError, match=r"16 tokens.*needs 17"):
        window_starts(CONFIG.model.context, ROOT, CONFIG, 0, 0)


def test_corpus_is_read_in_path_order_with_separators(tmp_path: Path) -> None:
    """Files are joined in the order of their paths, a zero byte after each, up to the limit."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "y.txt").write_bytes(b"two")
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / "skip.md").write_bytes(b"no")
    data = DataConfig(source=str(tmp_path), pattern="*.txt", max_bytes=100)
    assert load_corpus(data).tobytes() == b"one\0two\0"
    assert load_corpus(data.model_copy(update={"max_bytes": 6})).tobytes() == b"one\0tw"


@pytest.mark.parametrize("source", ["absent", "."])
def test_corpus_without_files_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path with no matching file is named."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no file matches"):
        load_corpus(DataConfig(source=source))


def test_initial_state_has_the_declared_scale() -> None:
    """Matrices are uniform with deviation 1/sqrt(fan-in), norms ones, moments zeros."""
    config = RunConfig.from_document(tiny_document(model={"width": 128, "hidden": 256}))
    state = initial_state(config)
    for name, tensor in state.items():
        if not name.startswith("params/"):
            assert not tensor.any()
        elif "norm" in name:
            assert (tensor == 1).all()
        else:
            fan_in = 128 if "embedding" in name else tensor.shape[0]
            assert abs(tensor.std() * fan_in**0.5 - 1) < 0.03
            assert np.abs(tensor).max() <= np.float32((3 / fan_in) ** 0.5)
            assert abs(tensor.mean()) * fan_in**0.5 < 0.03


def test_initial_state_depends_on_the_seed() -> None:
    """Another seed gives another value in every matrix; the same seed the same bits."""
    first, again = initial_state(CONFIG), initial_state(CONFIG)
    other = initial_state(CONFIG.model_copy(update={"seed": 8}))
    for name in first:
        assert first[name].tobytes() == again[name].tobytes()
        if name.startswith("params/") and "norm" not in name:
            assert not (first[name] == other[name]).all()
