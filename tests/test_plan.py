"""The plan of a study: its sums worked out by hand, with a calibration of known speed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crope.compose import Run, load_run
from crope.execute import execute
from crope.interrupt import Unstoppable
from crope.plan import render_plan
from crope.work import run_flops
from tests.conftest import TOY_OVERRIDES


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    words = [*TOY_OVERRIDES, f"results_dir={tmp_path}"]
    return [load_run([*words, f"seed={s}", f"model={m}"]) for s in (0, 1) for m in ("rope", "crope")]


def test_runs_tokens_operations_and_time(runs: list[Run], toy_data, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ten_seconds_each(todo: list[Run], *, threads: int) -> dict[str, float]:
        asked.extend(run.run_id for run in todo)
        return {run.run_id: 10.0 for run in todo}

    monkeypatch.setattr("crope.plan.estimate_each", ten_seconds_each)
    assert execute(runs[0], stop=Unstoppable()).status == "complete"
    text = render_plan(runs, workers=2)
    assert asked == [run.run_id for run in runs[1:]]  # what is done costs nothing
    lines = [line.split() for line in text.splitlines()]
    assert lines[0][:6] == ["model", "B", "L", "steps", "runs", "done"]
    assert lines[1][:7] == ["rope", "2", "16", "12", "2", "1", "384"] and lines[1][8:] == ["10", "s"]
    assert lines[2][:7] == ["crope", "2", "16", "12", "2", "0", "384"] and lines[2][8:] == ["20", "s"]
    operations = f"{sum(map(run_flops, runs)) / 1e12:,.1f}"
    summary = (
        f"4 runs at scale quick, 1 done; in all 1,536 tokens and {operations} TFLOP; about 15 s left here, 2 at once"
    )
    assert text.splitlines()[4] == summary


def test_each_shape_is_timed_for_real_and_nothing_is_trained(runs: list[Run], tmp_path: Path) -> None:
    assert re.search(r"; about (\d+ min )?\d+ s left here, 1 at once$", render_plan(runs, workers=1), re.MULTILINE)
    assert not (tmp_path / "runs").exists()
