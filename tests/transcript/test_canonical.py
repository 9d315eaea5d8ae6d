"""Canonical JSON and its strict reader."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transcript import canonical
from transcript.errors import ContractError, LimitError, MalformedError, TranscriptError

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | text
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(values)
def test_round_trip(value):
    """What is written is read back equal, and other encodings of it are refused."""
    data = canonical.dumps(value)
    assert canonical.loads(data, limit=1 << 20) == value
    spaced = json.dumps(value, indent=1).encode()
    assert canonical.loads(spaced, limit=1 << 20, canonical=False) == value
    if spaced != data:
        with pytest.raises(MalformedError, match="canonical"):
            canonical.loads(spaced, limit=1 << 20)


def test_keys_sort_by_utf16():
    """Keys sort by UTF-16 code units (RFC 8785, 3.2.3): an astral key goes before U+FB33."""
    assert canonical.dumps({"\ufb33": 1, "\U0001f600": 2, "1": 3}) == (
        '{"1":3,"\U0001f600":2,"\ufb33":1}'.encode()
    )


HOSTILE = {
    "duplicate key": b'{"a":1,"a":1}',
    "nested duplicate": b'[{"b":{"a":1,"a":2}}]',
    "float": b"[1.0]",
    "exponent": b"[1e2]",
    "NaN": b"[NaN]",
    "Infinity": b"[-Infinity]",
    "beyond 2^53": b"[9007199254740992]",
    "huge integer": b"[" + b"9" * 5000 + b"]",
    "lone surrogate": b'["\\ud800"]',
    "lone surrogate key": b'{"\\udfff":1}',
    "raw surrogate": b'["\xed\xa0\x80"]',
    "not UTF-8": b'["\xff"]',
    "byte order mark": b"\xef\xbb\xbf[]",
    "trailing bytes": b"[]x",
    "trailing newline": b"[]\n",
    "leading space": b" []",
    "key order": b'{"b":1,"a":2}',
    "escaped letter": b'["\\u0061"]',
    "escaped solidus": b'["\\/"]',
    "negative zero": b"[-0]",
    "cut": b'{"a":',
    "empty": b"",
    "comment": b"[]//",
    "control character": b'["\x01"]',
    "single quotes": b"{'a':1}",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_refused(data):
    """Each ambiguous or foreign encoding is refused in one line that names the file."""
    with pytest.raises(MalformedError) as caught:
        canonical.loads(data, limit=1 << 20, file="x.json")
    assert str(caught.value).startswith("x.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [33, 500, 100_000])
def test_deep_nesting_is_a_limit(opening, depth):
    """Nesting beyond the limit is refused, also where it would exhaust the parser's stack."""
    closing = b"]" if opening == b"[" else b"}"
    data = opening * depth + b"1" + closing * depth
    with pytest.raises(LimitError, match="nested"):
        canonical.loads(data, limit=1 << 20)


def test_size_is_a_limit():
    """A document over the limit is refused before it is parsed."""
    with pytest.raises(LimitError, match="5 bytes"):
        canonical.loads(b"[NaN]x", limit=5)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=40))
def test_no_other_error_escapes(data):
    """Arbitrary bytes give their own canonical value or an error of ours, nothing else."""
    with contextlib.suppress(TranscriptError):
        assert canonical.dumps(canonical.loads(data, limit=64)) == data


@pytest.mark.parametrize("value", [1.0, float("nan"), {1: 2}, {"a": b""}, 2**53, "\ud800", {1, 2}])
def test_what_has_no_canonical_form_is_not_written(value):
    """The writer refuses floats, large integers, odd keys, surrogates and foreign types."""
    with pytest.raises(ContractError):
        canonical.dumps([value])
