"""Canonical JSON: what is hashed or signed, and a strict reader for what others sent.

Output follows RFC 8785 (JCS), restricted to what has one meaning everywhere: no floating-point
numbers, integers within +-(2^53 - 1). Floats travel as strings or bit patterns.

The reader takes UTF-8 without a byte order mark and refuses duplicate keys, floats, NaN and
Infinity, integers beyond the range, lone surrogates, trailing bytes, and anything too large or too
deep. A document that must be canonical is serialised again and must come out byte for byte.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

import rfc8785

from transcript.errors import ContractError, LimitError, MalformedError

MAX_INTEGER: Final = 2**53 - 1
MAX_DEPTH: Final = 32
_MAX_DIGITS: Final = 17  # a sign and the sixteen digits of 2^53


class _RefusedError(Exception):
    """The reason why a hook of the JSON parser refuses; never leaves this module."""


def dumps(value: Any) -> bytes:
    """Serialise to canonical JSON.

    Raises:
        ContractError: a float, an integer out of range, a key that is not a string, a lone
            surrogate, or a type that JSON does not have.

    """
    try:
        _check(value, 0)
        # the package's type lists concrete JSON types; _check has just established them
        return rfc8785.dumps(value)
    except (_RefusedError, rfc8785.CanonicalizationError) as error:
        raise ContractError(f"not canonical JSON: {error}") from None


def loads(data: bytes, *, limit: int, file: str = "", canonical: bool = True) -> Any:
    """Parse untrusted JSON strictly.

    Args:
        data: the whole document.
        limit: greatest accepted size in bytes.
        file: its name, for messages.
        canonical: refuse any encoding but the canonical one.

    Raises:
        LimitError: larger than `limit`, or nested deeper than MAX_DEPTH.
        MalformedError: anything else the module's docstring names.

    """
    if len(data) > limit:
        raise LimitError(f"larger than the {limit} bytes allowed", file=file)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
        _check(value, 0)
    except RecursionError:
        raise LimitError(f"nested deeper than {MAX_DEPTH}", file=file) from None
    except _RefusedError as error:
        kind = LimitError if str(error).startswith("nested") else MalformedError
        raise kind(str(error), file=file) from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise MalformedError(f"not JSON in UTF-8: {error}", file=file) from None
    if canonical and rfc8785.dumps(value) != data:
        raise MalformedError("not in canonical form (RFC 8785)", file=file)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RefusedError("an object names a key twice")
    return members


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _RefusedError("an integer is beyond 2^53 - 1")
    return int(digits)


def _refuse_number(text: str) -> NoReturn:
    raise _RefusedError(f"a number is not an integer: {text[:40]}")


def _check(value: object, depth: int) -> None:
    """Refuse, at any depth, what canonical JSON cannot hold."""
    if depth > MAX_DEPTH:
        raise _RefusedError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                raise _RefusedError("a key is not a string")
            _check_text(key)
            _check(member, depth + 1)
    elif isinstance(value, list | tuple):
        for member in value:
            _check(member, depth + 1)
    elif isinstance(value, int):
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise _RefusedError("an integer is beyond 2^53 - 1")
    elif value is not None:
        raise _RefusedError(f"a {type(value).__name__} has no canonical form")


def _check_text(text: str) -> None:
    # the only code points that UTF-8 cannot encode are the surrogates
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise _RefusedError("a string holds a lone surrogate")
