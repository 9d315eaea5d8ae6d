"""One YAML file per run: the committed configuration and, beside it, where to run it.

The top-level keys are those of `trainer.config.RunConfig`, plus an optional `cluster:`
section, which changes no bit of a run and is not committed. The YAML is a strict subset of
1.2: decimal integers, `true`, `false`, `null` and strings; no aliases, no tags, no repeated
keys. Fractions stay the strings that were written, so that the committed digits are those
of the file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer.config import RunConfig
from trainer.errors import ConfigError

MAX_CONFIG_BYTES: Final = 1 << 16
# What the commit actor reserves: it hashes a few hundred bytes a step.
COMMIT_CPUS: Final = 0.1

Count = Annotated[int, Field(ge=1, le=4096)]


class ClusterConfig(BaseModel):
    """Where and on what a run is executed.

    Attributes:
        address: `host:port` or `auto` of a running Ray cluster; none starts a local one.
        storage: folder against which relative run paths are resolved inside a Ray job.
        threads_per_rank: threads of one trainer actor; the machine's cores by default.
        cpus_per_rank: Ray CPUs that one trainer actor reserves.
        gpus_per_rank: Ray GPUs that one trainer actor reserves.
        restarts: how often lost trainer actors are replaced before the run gives up.
        placement_timeout: seconds to wait for the cluster to place the actors.

    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    storage: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    threads_per_rank: Count | None = None
    cpus_per_rank: Annotated[float, Field(gt=0, le=4096)] = 1.0
    gpus_per_rank: Annotated[float, Field(ge=0, le=4096)] = 0.0
    restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    placement_timeout: Annotated[int, Field(ge=1, le=86_400)] = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A parsed configuration file."""

    run: RunConfig
    cluster: ClusterConfig

    def cpus_wanted(self) -> int:
        """Return how many CPUs a private Ray must have to place this run's actors."""
        needed = self.run.train.world * self.cluster.cpus_per_rank + COMMIT_CPUS
        return max(os.cpu_count() or 1, ceil(needed))


def load_job(path: Path) -> Job:
    """Read one run's YAML file.

    Raises:
        ConfigError: one line naming the file, the line or field, and the fault.

    """
    document = _load_yaml(_read(path), str(path))
    if not isinstance(document, dict):
        msg = f"{path}: the file must be a mapping of sections"
        raise ConfigError(msg)
    section = document.pop("cluster", None) or {}
    try:
        cluster = ClusterConfig.model_validate(section)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(("cluster", *(str(part) for part in first["loc"])))
        msg = f"{path}: {where}: {first['msg']}"
        raise ConfigError(msg) from None
    return Job(run=RunConfig.from_document(document, name=str(path)), cluster=cluster)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        msg = f"{path}: cannot read the configuration: {error.strerror or error}"
        raise ConfigError(msg) from None
    if len(raw) > MAX_CONFIG_BYTES:
        msg = f"{path}: larger than {MAX_CONFIG_BYTES} bytes"
        raise ConfigError(msg)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        msg = f"{path}: not UTF-8 at byte {error.start}"
        raise ConfigError(msg) from None


class _StrictLoader(yaml.SafeLoader):
    """The YAML subset of the module's docstring."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's own hook

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases are not allowed", problem_mark=self.get_mark()
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002  # PyYAML's signature
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="a key is not a string", problem_mark=key.start_mark
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value[:64]!r} is repeated", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("int", r"0|-?[1-9][0-9]*", "-0123456789"),
    ("null", r"null|~|", ["n", "~", ""]),
):
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first)
    )


def _load_yaml(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506  # a stricter SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        msg = f"{name}{line}: {error.problem or error.context or 'not YAML'}"
    except RecursionError:
        msg = f"{name}: nested too deeply"
    except (yaml.YAMLError, ValueError) as error:
        first = (str(error).splitlines() or ["not YAML"])[0]
        msg = f"{name}: {first}"
    raise ConfigError(msg)
