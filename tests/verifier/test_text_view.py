"""Whatever bytes a model wrote, a page and a terminal show them, and do nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.report import render
from verifier.report_data import TextFacts, from_json, to_json
from verifier.text_view import MAX_GENERATED, one_line, pieces
from verifier.verdict import Verdict

from .report_samples import sample

HOSTILE = b"a\x1b[31m<b>&\xff\xe2\x80\xae\x00\x9b\\x00\r\n\tz"


def facts(text: bytes, prompt: int = 1) -> TextFacts:
    """Return what a report holds of one text."""
    words = {"run": "tiny", "commitment": "0" * 64, "cache": "int16"}
    return TextFacts(**words, batch=1, prompt=prompt, text=text.hex())


def test_what_cannot_be_printed_is_a_number():
    """Escapes, broken UTF-8 and direction marks are shown by number, apart from the same letters.

    Markup is left to the page's own escaping.
    """
    shown = pieces(HOSTILE)
    assert [piece.text for piece in shown if piece.escaped] == [
        "\\x1b", "\\xff\\u202e\\x00\\x9b", "\\x0d",
    ]  # fmt: skip
    assert "".join(piece.text for piece in shown if not piece.escaped) == "a[31m<b>&\\x00\n\tz"


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60))
def test_a_line_is_one_line(data):
    """A terminal gets one line of printable characters of any bytes."""
    line = one_line(data)
    assert line.isprintable()
    assert one_line(b"x" * 201).endswith("... (201 bytes)")


def test_a_character_has_the_gravest_verdict_of_its_bytes():
    """The bytes of a character may be decided by several steps: what convicts is not hidden."""
    verdicts = [Verdict.MATCH, Verdict.MATCH, None, Verdict.MISMATCH]
    shown = pieces("a\u20ac".encode(), verdicts)
    assert [(piece.text, piece.verdict) for piece in shown] == [
        ("a", Verdict.MATCH), ("\u20ac", Verdict.MISMATCH),
    ]  # fmt: skip


@pytest.mark.parametrize("byte", [b"\x00", b"\xff", b"<", b"\xe2\x80\xae", b"a"])
def test_the_page_stays_small(byte):
    """Under 100 KB however long the text is and whatever it holds, with every other step drawn."""
    text = byte * (2 * MAX_GENERATED)
    outcomes = dict.fromkeys(range(0, 800, 2), Verdict.MISMATCH)
    data = replace(sample(len(text) - 1, outcomes), losses=(), text=facts(text))
    html = render(data).encode("ascii", "xmlcharrefreplace")
    assert len(html) < 100_000
    assert b"more bytes in text/output.bin" in html


def test_the_page_shows_it_as_text():
    """Nothing of a text becomes markup or a control character, and data and page survive JSON."""
    data = replace(sample(len(HOSTILE) - 1, {0: Verdict.MATCH}), losses=(), text=facts(HOSTILE))
    html = render(data)
    assert "&lt;b&gt;&amp;" in html
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", html)
    assert "Audit of" in html
    assert "generated text" in html
    assert render(from_json(to_json(data))) == html
