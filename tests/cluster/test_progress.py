from __future__ import annotations

import pytest

from cluster.progress import LINE_INTERVAL_S, LineMeter, stderr_meter


def lines_of(seconds_per_item: float, total: int) -> list[str]:
    now = 0.0
    written: list[str] = []
    meter = LineMeter(written.append, clock=lambda: now)
    meter.start("train", total)
    for done in range(1, total + 1):
        now += seconds_per_item
        meter.advance(done, f"loss {done}")
    return written


def test_first_and_last_item_have_a_line() -> None:
    """However fast it goes, the first and the last item are reported."""
    lines = lines_of(0.001, 50)
    assert lines == ["train 1/50  loss 1", "train 50/50  loss 50"]


def test_lines_come_at_intervals() -> None:
    """A long stage writes a line an interval, with the time that is left."""
    lines = lines_of(1.0, 60)
    assert len(lines) == pytest.approx(60 / LINE_INTERVAL_S, abs=1)
    assert lines[1] == "train 6/60  loss 6  54 s left"


def test_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Where stderr is no terminal, progress is plain ASCII lines there, and stdout stays empty."""
    with stderr_meter() as meter:
        meter.note("hello")
        meter.start("audit", 1)
        meter.advance(1, "all match")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "hello\naudit 1/1  all match\n"


def test_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal a bar is drawn on stderr, with count and detail."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with stderr_meter() as meter:
        meter.note("[not markup]")
        meter.start("train", 2)
        meter.advance(2, "loss 1.5")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "[not markup]" in captured.err
    assert "2/2" in captured.err
    assert "loss 1.5" in captured.err
