"""The page: what it says, how large it is, and that nothing from a run gets out of its place."""

import math
import re
from html.parser import HTMLParser

import pytest

from verifier import chart
from verifier.errors import ResultError
from verifier.report import render
from verifier.report_data import from_json, to_json
from verifier.verdict import Check, Verdict

from .report_samples import bits, sample

MATCHING = dict.fromkeys([0, 3, 7, 9, 11], Verdict.MATCH)


class _Page(HTMLParser):
    """Collects tags, attributes and text; complains about tags left open."""

    VOID = frozenset({"meta", "circle", "path", "polyline", "br"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def test_a_pass_says_so_in_plain_words():
    """The first screen has verdict, k of N and what that proves; nothing is said to be wrong."""
    data = sample(12, MATCHING)
    text = _Page(render(data)).text
    assert "Verified PASS" in text
    assert "5 of 12 training steps were computed again" in text
    assert "If more than 79 % of the recorded steps had been falsified" in text
    assert "99 % confidence" in text
    assert "What is wrong" not in text
    assert "That the data is good." in text
    assert "bitwitness audit RUN --steps 8" in text


def test_a_fail_says_where():
    """A mismatch is told in words: step, operator, element and both bit patterns."""
    data = sample(12, MATCHING | {7: Verdict.MISMATCH})
    text = _Page(render(data)).text
    assert "Not verified: the record does not hold up FAIL" in text
    for words in ("Step 7, rank 0, operator bitwitness::rmsnorm (node 17)", "element [3, 7]"):
        assert words in text
    assert "committed as 3f800001" in text
    assert "gives 3f800000" in text
    assert "12 of 4,096 elements" in text
    assert "the sample bounds nothing about the others" in text


def test_incomplete_is_not_called_verified():
    """Something missing is neither a pass nor a fraud."""
    text = _Page(render(sample(12, MATCHING | {7: Verdict.NON_RESPONSE}))).text
    assert "Not decided INCOMPLETE" in text
    assert "does not count as verified" in text
    assert "Verified PASS" not in text


@pytest.mark.parametrize("steps", [1, 2, 10, 100_000])
def test_small_whatever_the_run(steps):
    """Under 100 KB for a run of any length, with hundreds of sampled steps of every outcome."""
    verdicts = list(Verdict)
    outcomes = {
        step: verdicts[i % len(verdicts)]
        for i, step in enumerate(range(0, steps, max(steps // 700, 1)))
    }
    html = render(sample(steps, outcomes))
    assert len(html.encode()) < 100_000
    _Page(html)


def test_small_whatever_went_wrong():
    """Faults with endless messages and names do not blow the page up either."""
    fault = Check(
        name="log.leaf", verdict=Verdict.MISMATCH, detail="x" * 9999, evidence={"y": "z" * 9999}
    )
    outcomes = dict.fromkeys(range(200), Verdict.MISMATCH)
    html = render(sample(200, outcomes, checks=(fault,) * 500))
    assert len(html.encode()) < 100_000


def test_nothing_is_loaded_or_run():
    """The page is self-contained: no script, no link, no outside address."""
    html = render(sample(12, MATCHING))
    page = _Page(html)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert "http" not in html
    assert "@import" not in html
    for _, attributes in page.tags:
        assert not {"src", "href", "style"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]


def test_the_picture_is_accessible():
    """The drawing has a title and a description, and ids that exist."""
    page = _Page(render(sample(12, MATCHING)))
    picture = next(a for tag, a in page.tags if tag == "svg")
    ids = {a.get("id") for _, a in page.tags}
    assert picture["role"] == "img"
    assert set(picture["aria-labelledby"].split()) <= ids
    assert "5 steps were drawn, 5 of them matched" in page.text


def test_names_from_the_run_are_escaped():
    """Markup in anything a prover wrote stays text."""
    evil = '<script>alert(1)</script>"onload=x'
    check = Check(name=evil, verdict=Verdict.MISMATCH, detail=evil, evidence={evil: evil})
    data = sample(12, MATCHING, checks=(check,), evidence=evil, commands=(evil,))
    page = _Page(render(data))
    assert "script" not in {tag for tag, _ in page.tags}
    assert evil in page.text


def test_shapes_differ_between_outcomes():
    """Verdicts can be told apart without colour."""
    kinds = [Verdict.MATCH, Verdict.MISMATCH, Verdict.NON_RESPONSE, Verdict.INCONCLUSIVE]
    assert len({chart.SHAPES[kind] for kind in kinds}) == len(kinds)
    assert set(chart.SHAPES) == set(Verdict)


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [math.nan],
        [math.inf, -math.inf, 1.0],
        [3.4e38, -3.4e38],
        [1e-45, 0.0],
        [2.0],
        [2.0, 2.0],
        [1e30, 1.0000001e30],
    ],
)
def test_any_losses_can_be_drawn(losses):
    """Non-finite losses are left out and extreme ones stay inside the picture."""
    drawn = chart.loss_chart([bits(loss) for loss in losses], {0: Verdict.MATCH})
    finite = [loss for loss in losses if math.isfinite(loss)]
    points = [tuple(map(float, p.split(","))) for p in drawn.line.split()]
    assert len(points) == len(finite)
    for x, y in points + [(m.x, m.y) for m in drawn.marks]:
        assert 0 <= x <= chart.WIDTH
        assert 0 <= y <= chart.HEIGHT


def test_thinning_keeps_spikes():
    """A single spike among 100,000 steps is still in the line."""
    losses = [2.0] * 100_000
    losses[54_321] = 9.0
    drawn = chart.loss_chart([bits(loss) for loss in losses], {})
    heights = [float(point.split(",")[1]) for point in drawn.line.split()]
    assert len(heights) <= 2 * chart.MAX_BUCKETS
    assert sum(height < max(heights) for height in heights) == 1


def test_marks_keep_what_did_not_match():
    """However many steps matched, those that did not are drawn."""
    outcomes = dict.fromkeys(range(5000), Verdict.MATCH) | {4321: Verdict.MISMATCH}
    drawn = chart.loss_chart([bits(1.0)] * 5000, outcomes)
    assert len(drawn.marks) <= chart.MAX_MARKS
    assert [mark.title for mark in drawn.marks][-1] == "step 4321: MISMATCH"


def test_data_round_trips():
    """report.json holds everything: parsing it gives the same data and the same page."""
    data = sample(12, MATCHING | {7: Verdict.MISMATCH})
    again = from_json(to_json(data))
    assert again == data
    assert render(again) == render(data)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"format": "other"}'])
def test_broken_report_data(text):
    """Report data that is none is one error that names the file and the field."""
    with pytest.raises(ResultError, match=r"report\.json: not an audit report"):
        from_json(text, file="report.json")
