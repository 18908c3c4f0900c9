"""Progress without a terminal, on a fake clock, and tables as they are printed."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from crope.runs import progress as terminal
from crope.runs.progress import RunProgress, SweepProgress, last_step, print_grid, tail
from tests.conftest import toy_run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock.now)
    return clock


def test_a_run_prints_a_line_per_minute_with_its_last_losses(clock, tmp_path, capsys) -> None:
    run = toy_run(tmp_path, "model=rope", "train.max_steps=400")
    with RunProgress(run) as progress:
        progress.log({"step": 0, "val/loss_nats": 7.5, "train/loss_nats": 7.25})
        clock.now = 61
        progress.log({"step": 100, "train/loss_nats": 5.0, "speed/tokens_per_s": 1234.4})
        clock.now = 90
        progress.log({"step": 200, "train/loss_nats": 4.0})
    (line,) = capsys.readouterr().err.splitlines()
    assert "rope tiny base quick s0: step 100/400" in line
    assert "5.000" in line and "7.500" in line and "1,234 tokens/s" in line


def test_a_sweep_shows_the_part_of_its_tokens_that_is_trained(clock, tmp_path, capsys) -> None:
    """Runs of 100 and 300 equal steps: half of the second is 37 %, then the first has ended: 62 %."""
    short = toy_run(tmp_path, "model=rope", "train.max_steps=100")
    long = toy_run(tmp_path, "model=crope", "train.max_steps=300")
    with SweepProgress([short, long]) as progress:
        long.path.mkdir(parents=True)
        lines = '{"step": 0}\n{"step": 150, "val/loss_nats": 5.5}\n'
        (long.path / "metrics.jsonl").write_text(lines)
        for clock.now in (1, 1.5, 62):
            progress.update([short, long])
        progress.end(short.run_id, "short has ended", stopped=False)
        clock.now = 130
        progress.update([long])
        progress.end(long.run_id, "long was stopped", stopped=True)
        clock.now = 200
        progress.update([])
    out, err = capsys.readouterr()
    assert out.splitlines() == ["short has ended", "long was stopped"]
    first, second, third = err.splitlines()
    assert "37 %" in first or "38 %" in first
    assert "0 of 2 runs" in first and "rope tiny base quick s0: starting" in first
    assert "crope tiny base quick s0: step 150, val 5.500" in first
    assert "62 %" in second and "1 of 2 runs" in second and "rope tiny" in second
    assert "1 of 2 runs" in third


@pytest.mark.parametrize(
    ("content", "steps"),
    [(b"", []), (b'{"step"', []), (b"\xff\n", []), (b'{"step": 1}\n{"st', [1])],
)
def test_the_tail_of_metrics_that_are_being_written(
    content: bytes, steps: list[int], tmp_path: Path
) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    assert [line["step"] for line in tail(tmp_path / "metrics.jsonl")] == steps
    assert tail(tmp_path / "none.jsonl") == []
    assert last_step(tail(tmp_path / "metrics.jsonl")) == (steps or [0])[-1]


def test_a_malformed_last_line_is_no_step() -> None:
    assert [last_step([line]) for line in ({}, [], {"step": None}, 3)] == [0] * 4


def test_the_tail_of_a_long_file_has_whole_lines(tmp_path: Path) -> None:
    lines = [{"step": step} for step in range(1000)]
    (tmp_path / "m").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    last = tail(tmp_path / "m")
    assert 100 < len(last) < 1000 and last == lines[-len(last) :]


def test_a_table_is_printed_as_it_is(capsys) -> None:
    print_grid("A [b]caption[/b]", ["name", "n"], [["x [1]", "1"], ["a|b", "22"]], text_columns=[0])
    caption, headings, _, *rows = capsys.readouterr().out.splitlines()
    assert caption == "A [b]caption[/b]"
    assert headings.split() == ["name", "n"]
    assert [row.split() for row in rows] == [["x", "[1]", "1"], ["a|b", "22"]]
    assert len({len(row) for row in rows}) == 1  # numbers end in one column
