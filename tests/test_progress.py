"""The moving line: what it says, and that it is silent without a terminal."""

from __future__ import annotations

import io
import re

import pytest

from crope.progress import Progress, format_duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_says_percent_loss_speed_and_time_left(monkeypatch) -> None:
    clock = iter([100.0, 110.0, 110.0])
    monkeypatch.setattr("crope.progress.time.monotonic", lambda: next(clock))
    screen = Terminal()
    with Progress("run", start=100, total=400, stream=screen) as progress:
        assert progress.due()
        progress.show(200, loss=5.25, tokens_per_step=64)
    shown, cleared = screen.getvalue().split("\r\x1b[2K")[1:]
    # 100 steps of 64 tokens in 10 s; 200 of 400 steps are left.
    assert re.split(r"\s{2,}", shown) == ["run", "50 %", "loss 5.2500", "640 tokens/s", "ETA 20 s"]
    assert cleared == ""


def test_silent_without_a_terminal() -> None:
    file = io.StringIO()
    with Progress("run", start=0, total=10, stream=file) as progress:
        assert not progress.due()
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(9, "9 s"), (309, "5 min 09 s"), (3909, "1 h 05 min"), (59.6, "1 min 00 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
