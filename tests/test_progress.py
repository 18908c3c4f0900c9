"""The moving line: what it says, and that it is silent without a terminal."""

from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path

import pytest

from crope.compose import Run, load_run
from crope.progress import RED, Progress, StudyProgress, format_duration, paint, rewrite
from crope.state import DONE, MISSING, RUNNING, RunState
from tests.conftest import TOY_OVERRIDES


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


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


class Narrow(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 99


def test_a_line_is_cut_to_the_terminals_width(monkeypatch) -> None:
    monkeypatch.setattr("crope.progress.os.get_terminal_size", lambda _: os.terminal_size((10, 5)))
    screen = Narrow()
    rewrite(screen, "0123456789abc")
    assert screen.getvalue() == "\r\x1b[2K012345678"


def test_colours_only_on_a_terminal_and_only_if_wanted(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert paint("x", RED, Terminal()) == "\x1b[31mx\x1b[0m"
    assert paint("x", RED, io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("x", RED, Terminal()) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert paint("x", RED, Terminal()) == "x"
    assert not Progress("run", start=0, total=1, stream=Terminal()).live


def two_runs(tmp_path: Path) -> list[Run]:
    return [load_run([*TOY_OVERRIDES, f"seed={seed}", f"results_dir={tmp_path}"]) for seed in (0, 1)]


def test_the_study_line_counts_runs_and_says_what_is_left(tmp_path: Path) -> None:
    """Equal runs: a quarter of one was there before, 5 s later half of it: 1.5 runs at 1/20 run a second."""
    runs = two_runs(tmp_path)
    states = [RunState(runs[0], RUNNING, 3), RunState(runs[1], MISSING)]
    progress = StudyProgress(runs, stream=Terminal())
    progress.work_before = progress._work(states)
    assert progress.line(states, 5.0) == f"run 1 of 2  {runs[0].run_id[:-9]} 25 %"
    states[0] = RunState(runs[0], RUNNING, 6, row={"train/loss_nats": 5.5})
    assert progress.line(states, 5.0) == f"run 1 of 2  30 s left  {runs[0].run_id[:-9]} 50 % loss 5.5000"
    progress.ended = 1
    states = [RunState(runs[0], DONE, 12), RunState(runs[1], RUNNING, 3)]
    assert progress.line(states, 10.0) == f"run 2 of 2  8 s left  {runs[1].run_id[:-9]} 25 %"


def test_the_study_line_moves_by_itself_and_gives_way(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("crope.progress.REFRESH_SECONDS", 0.01)
    screen = Terminal()
    with StudyProgress(two_runs(tmp_path), stream=screen) as progress:
        while "run 1 of 2" not in screen.getvalue():
            time.sleep(0.01)
        assert not Progress("run", start=0, total=1, stream=Terminal()).live  # one line at a time
        progress.report("first: done")
        progress.report("second: failed", failed=True)
    assert screen.getvalue().endswith("\r\x1b[2K")
    assert capsys.readouterr().out == "[1/2] first: done\n[2/2] second: failed\n"
    assert Progress("run", start=0, total=1, stream=Terminal()).live


def test_a_study_in_a_file_is_plain_lines(tmp_path: Path, capsys) -> None:
    file = io.StringIO()
    with StudyProgress(two_runs(tmp_path), stream=file) as progress:
        assert not progress.thread.is_alive()
        progress.report("first: failed", failed=True)
    assert (file.getvalue(), capsys.readouterr().out) == ("", "[1/2] first: failed\n")
