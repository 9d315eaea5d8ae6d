"""The cluster's errors: where a run is executed, and what the command line is given.

ClusterError
|-- UsageError       E_USAGE        the command line is not one
|-- FileError        E_FILE         a file that was named is missing or unusable
|-- ExistsError      E_EXISTS       something is already there that would be overwritten
|-- RayError         E_RAY          Ray is not reachable, did not start or failed
|-- PlacementError   E_PLACEMENT    the cluster has no room for the actors of this run
`-- ActorLostError   E_ACTOR_LOST   an actor died more often than the run tolerates

Each crosses Ray: an error is its one-line message and its `next_step`, both strings.
"""

from __future__ import annotations

from typing import ClassVar


class ClusterError(Exception):
    """Base of all errors this package raises on purpose.

    Args:
        message: one line that names the file or the place, and the fault.
        next_step: what the user can do about it, one line; may be empty.

    """

    code: ClassVar[str] = "E_CLUSTER"

    def __init__(self, message: str, *, next_step: str = "") -> None:
        self.message = message
        self.next_step = next_step
        super().__init__(message)

    def __reduce__(self) -> tuple[object, tuple[type[ClusterError], str, str]]:
        return _rebuild, (type(self), self.message, self.next_step)


class UsageError(ClusterError):
    """The command line is not one."""

    code = "E_USAGE"


class FileError(ClusterError):
    """A file that the caller named is missing, unreadable or not what it should be."""

    code = "E_FILE"


class ExistsError(ClusterError):
    """Something that would be overwritten is already there."""

    code = "E_EXISTS"


class RayError(ClusterError):
    """Ray is not reachable, did not start or failed."""

    code = "E_RAY"


class PlacementError(ClusterError):
    """The cluster has no room for the actors of this run."""

    code = "E_PLACEMENT"


class ActorLostError(ClusterError):
    """An actor's process or node died more often than the run tolerates."""

    code = "E_ACTOR_LOST"


def _rebuild(kind: type[ClusterError], message: str, next_step: str) -> ClusterError:
    return kind(message, next_step=next_step)
