"""Curves against slow references, and what Fig. 4 makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from crope.report.curves import FULL, SAMPLED, TRAIN, mean_curve, moving_average, read_curves, window_of
from crope.report.fig4 import build_columns, describe_columns
from crope.report.frame import resolve_cells


@pytest.fixture
def columns(read_sound, cells):
    def columns(unavailable=None):
        results = resolve_cells(read_sound(), cells, unavailable=unavailable or {})
        return build_columns(results, read_curves([run for result in results for run in result.runs]))

    return columns


def test_mean_curve_by_hand() -> None:
    curve = mean_curve([{0: 3.0, 20: 1.0}, {0: 5.0, 20: 2.0, 40: 7.0}])
    assert curve.step.tolist() == [0, 20]  # step 40 is not in both
    assert (curve.mean.tolist(), curve.low.tolist(), curve.high.tolist()) == ([4.0, 1.5], [3.0, 1.0], [5.0, 2.0])
    assert curve.n == 2
    assert mean_curve([{0: 1.0}, {1: 1.0}]) is None
    assert mean_curve([]) is None


@pytest.mark.parametrize("window", [1, 3, 7])
def test_moving_average_against_a_loop(window: int) -> None:
    values = np.array([5.0, 1.0, 4.0, 2.0, 8.0, 3.0, 9.0, 0.0])
    half = window // 2
    slow = [values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))]
    assert moving_average(values, window) == pytest.approx(slow)


def test_points_are_the_lines_of_the_record(write_run, read_sound) -> None:
    write_run("crope", "ptb", final=4.0)
    (run,) = read_sound()
    points = read_curves([run])[run.path]
    for name in (SAMPLED, FULL, TRAIN):
        assert points[name] == {row["step"]: row[name] for row in run.metrics() if name in row}
    assert points[FULL] == {80: 3.875, 100: 4.0}


def test_only_a_long_training_curve_is_smoothed_and_that_is_said(write_run, columns) -> None:
    write_run("crope", "ptb")
    short = columns()
    assert window_of(short[2].curves[TRAIN]["crope"]) == 1
    assert "moving average" not in describe_columns(short)
    long = mean_curve([dict.fromkeys(range(1000), 1.0)])
    assert window_of(long) == 21
    short[2].curves[TRAIN]["crope"] = long
    assert "moving average over 21 logged steps" in describe_columns(short)


def test_columns_are_the_datasets_and_hold_the_metrics(write_run, columns) -> None:
    write_run("crope", "ptb", seed=0, final=4.0, std=None)
    write_run("crope", "ptb", seed=1, final=4.5, std=None)
    found = columns({"pg19": "no network"})
    assert [column.title for column in found] == ["PG-19", "Wikitext-2", "Penn Treebank"]
    curves = found[2].curves
    assert curves[FULL]["crope"].mean.tolist() == [4.125, 4.25]  # at step 80, an eighth lower, and at the end
    assert curves[SAMPLED]["crope"].mean[[0, -1]].tolist() == [8.0, 4.25]
    assert curves[TRAIN]["crope"].mean[-1] == 4.0
    assert set(found[2].absent) == {"xpos", "rope"}
    assert found[0].absent["rope"] == "missing: PG-19: no network"
    assert "Mean over 2 seeds; band: lowest to highest seed." in describe_columns(found)
