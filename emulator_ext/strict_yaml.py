"""A strict subset of YAML 1.2, for files that a stranger may have written.

Mappings with string keys, sequences, strings, decimal integers, `null`, and `true` and `false`
where the caller takes them. No aliases, no tags, no repeated keys, no floats: a fraction stays
the string that was written. The size is bounded before anything is parsed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Literal

import yaml

_INTEGER: Final = ("int", r"0|-?[1-9][0-9]{0,17}", "-0123456789")
_NULL: Final = ("null", r"null|~|", ("n", "~", ""))
_BOOLEAN: Final = ("bool", r"true|false", "tf")


class StrictYamlError(ValueError):
    """The file is not in the subset, too large or unreadable; one line with file and fault."""


def load(
    path: Path,
    *,
    limit: int,
    encoding: Literal["ascii", "utf-8"] = "utf-8",
    booleans: bool = False,
) -> Any:
    """Read one file.

    Args:
        path: the file.
        limit: the most bytes that it may have.
        encoding: of its text.
        booleans: whether `true` and `false` are more than strings.

    Raises:
        StrictYamlError: one line naming the file, the line where known, and the fault.

    """
    text = _read(path, limit, encoding)
    try:
        return yaml.load(text, Loader=_WithBooleans if booleans else _Strict)  # noqa: S506  # stricter than SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        fault = f"{path}{line}: {error.problem or error.context or 'not YAML'}"
    except RecursionError:
        fault = f"{path}: nested too deeply"
    except (yaml.YAMLError, ValueError) as error:
        fault = f"{path}: {(str(error).splitlines() or ['not YAML'])[0]}"
    raise StrictYamlError(fault)


def _read(path: Path, limit: int, encoding: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        msg = f"{path}: cannot read: {error.strerror or error}"
        raise StrictYamlError(msg) from None
    if len(raw) > limit:
        msg = f"{path}: larger than {limit} bytes"
        raise StrictYamlError(msg)
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        msg = f"{path}: not {encoding.upper()} at byte {error.start}"
        raise StrictYamlError(msg) from None


class _Strict(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's own hook

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        fault = None
        if isinstance(event, yaml.AliasEvent):
            fault = "aliases are not allowed"
        elif getattr(event, "tag", None) is not None:
            fault = "tags are not allowed"
        if fault is not None:
            raise yaml.MarkedYAMLError(problem=fault, problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002  # PyYAML's signature
        seen: set[str] = set()
        for key, _ in node.value:
            fault = None
            if not isinstance(key, yaml.ScalarNode):
                fault = "a key is not a string"
            elif key.value in seen:
                fault = f"the key {key.value[:64]!r} is repeated"
            if fault is not None:
                raise yaml.MarkedYAMLError(problem=fault, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _WithBooleans(_Strict):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's own hook


for _loader, _scalars in (
    (_Strict, (_INTEGER, _NULL)),
    (_WithBooleans, (_INTEGER, _NULL, _BOOLEAN)),
):
    for _tag, _pattern, _first in _scalars:
        _loader.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first)
        )
