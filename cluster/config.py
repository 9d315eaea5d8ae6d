"""One YAML file per run: the committed configuration and, beside it, where to run it.

The top-level keys are those of `trainer.config.RunConfig`, plus an optional `cluster:`
section, which changes no bit of a run and is not committed. The YAML is the strict subset of
`emulator_ext.strict_yaml`: fractions stay the strings that were written, so that the committed
digits are those of the file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from emulator_ext import strict_yaml
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
    try:
        document = strict_yaml.load(path, limit=MAX_CONFIG_BYTES, booleans=True)
    except strict_yaml.StrictYamlError as error:
        raise ConfigError(str(error)) from None
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
