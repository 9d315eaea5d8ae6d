from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.config import MAX_CONFIG_BYTES, load_job
from tests.conftest import TINY, tiny_document
from trainer.config import RunConfig
from trainer.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
TEXT = yaml.safe_dump(TINY, sort_keys=False)


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "run.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configuration_is_valid(path: Path) -> None:
    """Every file in configs/ is a complete run whose name is the file's."""
    assert load_job(path).run.name == path.stem


def test_yaml_is_the_run_configuration(tmp_path: Path) -> None:
    """A file means what its document means to the trainer, and `cluster:` is no part of it."""
    job = load_job(write(tmp_path, TEXT + "cluster: {restarts: 1, address: auto}\n"))
    assert job.run == RunConfig.from_document(TINY)
    assert (job.cluster.restarts, job.cluster.address) == (1, "auto")
    assert "cluster" not in job.run.document()


@given(st.from_regex(r"0\.[0-9]{0,17}[1-9]", fullmatch=True))
def test_fraction_keeps_its_digits(tmp_path_factory: pytest.TempPathFactory, digits: str) -> None:
    """A fraction is committed with the digits that the file has: no binary float on the way."""
    document = tiny_document(optim={"learning_rate": "RATE"})
    text = yaml.safe_dump(document).replace("RATE", digits)
    folder = tmp_path_factory.mktemp("config")
    assert load_job(write(folder, text)).run.document()["optim"]["learning_rate"] == digits


FAULTS = {
    "not utf-8": (b"name: \xff\n", "not UTF-8"),
    "too large": (b"#" * (MAX_CONFIG_BYTES + 1), "larger than"),
    "no mapping": ("- 1\n", "mapping"),
    "empty": ("", "mapping"),
    "repeated key": (TEXT + "name: other\n", "'name' is repeated"),
    "repeated inner key": (TEXT.replace("  batch: 2", "  batch: 2\n  batch: 3"), "repeated"),
    "key is a list": (TEXT + "? [1]\n: 2\n", "not a string"),
    "alias": (TEXT.replace("name: tiny", "name: &n tiny\nother: *n"), "aliases"),
    "python object": ("a: !!python/object/apply:os.getpid []\n", "tag"),
    "deep": ("[" * 30_000, "too deeply"),
    "control character": ("name: \x01\n", "special characters"),
    "unknown key": (TEXT + "extra: 1\n", "extra"),
    "unknown cluster key": (TEXT + "cluster: {nodes: 3}\n", "cluster.nodes"),
    "cluster is a list": (TEXT + "cluster: [1]\n", "cluster"),
    "fraction of a step": (TEXT.replace("steps: 4", "steps: 4.5"), "train.steps"),
    "yes is no number": (TEXT.replace("steps: 4", "steps: yes"), "train.steps"),
    "huge integer": (TEXT.replace("seed: 7", f"seed: {'9' * 5000}"), "seed: "),
    "heads": (TEXT.replace("heads: 2", "heads: 3"), "heads"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_file_gives_one_line(tmp_path: Path, fault: str) -> None:
    """Whatever is wrong with the file, one line names the file and the fault."""
    text, expected = FAULTS[fault]
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_job(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert expected in message
    assert "\n" not in message


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is named, with the system's reason."""
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: .*No such file"):
        load_job(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(("world", "cpus", "least"), [(1, 1.0, 2), (3, 2.0, 7), (2, 0.5, 2)])
def test_private_ray_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int, cpus: float, least: int
) -> None:
    """A private Ray gets at least the CPUs that all ranks and the commit actor reserve."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    document = copy.deepcopy(TINY)
    document["train"]["world"] = world
    document["cluster"] = {"cpus_per_rank": cpus}
    job = load_job(write(tmp_path, yaml.safe_dump(document)))
    assert job.cpus_wanted() == least
