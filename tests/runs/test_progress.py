"""Progress on a fake clock, without a terminal and in one."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from crope.runs import progress
from crope.runs.compose import load_run
from crope.runs.progress import Display, RunProgress, SweepProgress, last_values, print_words
from tests.conftest import toy_run


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def runs(tmp_path):
    """Runs of 100, 300 and 600 equal steps: 10, 30 and 60 % of all tokens."""
    return [toy_run(tmp_path, "model=rope", f"train.max_steps={n}") for n in (100, 300, 600)]


def write(run, text):
    run.path.mkdir(parents=True, exist_ok=True)
    (run.path / "metrics.jsonl").write_text(text)


def shown(progress, *active):
    lines = []
    progress.show = lines.extend
    progress.update(active)
    return lines


def test_a_run_prints_a_line_per_minute_with_its_last_losses(clock, tmp_path, capsys):
    """300 of 400 steps are left after 100 in 61 seconds."""
    with RunProgress(toy_run(tmp_path, "model=rope", "train.max_steps=400")) as progress:
        progress.log({"step": 0, "val/loss_nats": 7.5, "train/loss_nats": 7.25})
        clock.now = 61
        progress.log({"step": 100, "train/loss_nats": 5.0, "speed/tokens_per_s": 1234.4})
        clock.now = 90
        progress.log({"step": 200, "train/loss_nats": 4.0})
    assert capsys.readouterr().err == (
        "rope tiny base s0: step 100/400, train 5.000, val 7.500, 1,234 tok/s, 3:03 left\n"
    )


def test_a_run_that_continues_has_trained_no_earlier_step(clock, tmp_path, capsys):
    """10 steps in 610 seconds, 90 are left."""
    with RunProgress(toy_run(tmp_path, "train.max_steps=400")) as progress:
        progress.log({"step": 300})
        clock.now = 610
        progress.log({"step": 310})
    assert "step 310/400, 1:31:30 left" in capsys.readouterr().err


def test_a_sweep_shows_the_part_of_its_tokens_and_a_line_for_each_run(clock, runs):
    """Losses in a fixed order, whatever line of metrics has them."""
    write(runs[1], '{"step": 140, "val/loss_nats": 5.5}\n{"step": 150, "train/loss_nats": 5.25}\n')
    assert shown(SweepProgress(runs), *runs[:2]) == [
        "15 % of tokens, 0 of 3 runs",
        "  0 %  rope tiny base s0: step 0",
        " 50 %  rope tiny base s0: step 150, train 5.250, val 5.500",
    ]


def test_a_run_that_has_ended_counts_whole(clock, runs, capsys):
    """One that was stopped will be continued."""
    progress = SweepProgress(runs)
    progress.end(runs[1].run_id, "complete", status="complete")
    progress.end(runs[0].run_id, "stopped", status="stopped")
    assert shown(progress) == ["30 % of tokens, 1 of 3 runs, 0:00 left"]
    assert capsys.readouterr().out == "complete\nstopped\n"


def test_the_time_left_is_by_what_was_trained_since_the_start(clock, runs):
    """200 steps in 60 seconds; 600 are left. Of the long run, 100 steps were there before; another
    command completes the short one.
    """
    write(runs[2], '{"step": 100}\n')
    progress = SweepProgress(runs)
    assert shown(progress) == ["10 % of tokens, 0 of 3 runs"]
    progress.end(runs[0].run_id, "completed by another process", status="skipped")
    write(runs[2], '{"step": 300}\n')
    clock.now = 60
    assert shown(progress, runs[2])[0] == "40 % of tokens, 1 of 3 runs, 3:00 left"


def test_lines_of_the_tables_fit_into_80_columns(clock, tmp_path):
    """This is the longest one."""
    row = "b2_l512_g09_s1000"
    names = ["model=crope", "data=pg19", f"ablation={row}", "seed=10", f"results_dir={tmp_path}"]
    run = load_run([*names, "scale=paper", "train.precision=fp32"])
    write(run, '{"step": 10000, "val/loss_nats": 10.5, "train/loss_nats": 10.25}\n')
    _, line = shown(SweepProgress([run]), run)
    assert line == f"100 %  crope pg19 {row} s10: step 10,000, train 10.250, val 10.500"
    assert len(line) <= 80


def test_a_terminal_breaks_lines_between_words(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=30)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    with Display() as display:
        display.show(["100 %  crope pg19 s0: step 10,000, train 10.250"])
        display.live.refresh()
        assert "100 %  crope pg19 s0: step \n10,000, train 10.250" in console.file.getvalue()


LINE = "a run-id-of-a-run: 5.1 nats per token"


@pytest.mark.parametrize(
    ("terminal", "printed"),
    [
        (True, "a\nrun-id-of-a-run:\n5.1 nats per\ntoken"),
        (False, LINE),
    ],
)
def test_a_final_line_is_broken_between_words_in_a_terminal(terminal, printed, monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "16")
    print_words(LINE)
    assert capsys.readouterr().out == f"{printed}\n"


@pytest.mark.parametrize(
    ("content", "step"),
    [
        ("3\n", 0),
        ("[" * 2000, 0),
        ('{"step": 1}\n{"st', 1),
    ],
)
def test_the_last_step_of_metrics_that_are_being_written(content, step, tmp_path):
    run = toy_run(tmp_path)
    write(run, content)
    assert last_values(run) == {"step": step}


def test_the_last_value_of_each_key(tmp_path):
    run = toy_run(tmp_path)
    write(run, '{"step": 1, "val": 5.5}\n{"step": 2, "val": 5.25}\n{"step": 3}\n')
    assert last_values(run) == {"step": 3, "val": 5.25}
