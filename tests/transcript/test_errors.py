"""The error tree."""

import pickle

import pytest

from transcript import errors

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.TranscriptError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_pickling_keeps_everything(kind):
    """An error that crosses a process boundary keeps its class, text, file and evidence."""
    error = kind("no such thing", file="run/log", evidence={"found": "a", "expected": "b"})
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made one line above
    assert type(copy) is kind
    assert (copy.message, copy.file, copy.evidence) == (error.message, error.file, error.evidence)
    assert str(copy) == str(error) == "run/log: no such thing"


def test_codes_are_unique_and_documented():
    """Every class has a code of its own, and the docstring's tree shows it."""
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes) == 10
    for kind in KINDS[1:]:
        assert kind.__name__ in errors.__doc__
        assert kind.code in errors.__doc__


def test_hostile_text_stays_on_one_line():
    """A name with line breaks or terminal escapes cannot forge a second line of output."""
    error = errors.MalformedError("bad\n\x1b[2Jgood", file="a\nb\u202e")
    assert str(error).isprintable()
    assert str(error).isascii()
