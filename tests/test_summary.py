"""summary.json's numbers against hand-made lines of metrics.jsonl."""

from __future__ import annotations

import math

import pytest

from crope.summary import speeds, summarise

ROWS = [
    {"step": 0, "val/loss_nats": 9.0, "train/loss_nats": 9.1},
    {"step": 10, "val/loss_nats": 4.0},
    {"step": 15, "train/loss_nats": 0.5},
    {"step": 20, "val/loss_nats": 2.9, "val_full/loss_nats": 2.8, "val_full/tokens": 100},
    {"step": 35, "val/loss_nats": 3.9},
    {"step": 36, "val/loss_nats": 3.0},
    {"step": 38, "val/loss_nats": 3.2},
    {
        "step": 40,
        "val/loss_nats": 3.7,
        "val_full/loss_nats": 3.1,
        "val_full/tokens": 100,
        "train_full/loss_nats": 2.6,
        "train_full/tokens": 96,
    },
]
VALIDATION = {"tokens": 101, "bytes": 404, "words": 77}


def test_every_number_by_hand() -> None:
    """The last 10 % of 40 steps are 36 to 40: 3.0, 3.2, 3.7, mean 3.3, variance (0.09 + 0.01 + 0.16) / 2 = 0.13."""
    found = summarise(ROWS, max_steps=40, validation=VALIDATION)
    assert found.pop("val_sampled") == {
        "mean_nats": pytest.approx(3.3, rel=1e-12),
        "std_nats": pytest.approx(math.sqrt(0.13), rel=1e-12),
        "n": 3,
        "first_step": 36,
        "last_step": 40,
        "best_nats": 2.9,
        "best_step": 20,
    }
    assert found.pop("val_full") == {
        "final_nats": 3.1, "best_nats": 2.8, "best_step": 20, "tokens": 100, "whole_split": True
    }  # fmt: skip
    assert found.pop("train") == {"final_nats": 2.6, "tokens": 96}
    assert found.pop("train_val_gap_nats") == pytest.approx(0.5, rel=1e-12)
    assert found.pop("val_nats_per_byte") == pytest.approx(3.1 / 4, rel=1e-12)  # four bytes a token
    assert not found


def test_a_subset_is_not_the_whole_split() -> None:
    found = summarise(ROWS, max_steps=40, validation={"tokens": 102, "bytes": 404})
    assert found["val_full"]["whole_split"] is False


def test_one_measurement_has_no_spread() -> None:
    rows = [ROWS[0], {**ROWS[-1], "step": 10}]
    found = summarise(rows, max_steps=10, validation=VALIDATION)["val_sampled"]
    assert (found["n"], found["mean_nats"], found["std_nats"]) == (1, 3.7, None)
    assert (found["first_step"], found["last_step"]) == (10, 10)


def test_best_is_the_first_of_equals_and_may_be_the_last() -> None:
    rows = [{**row, "val/loss_nats": 2.0} if row["step"] in (10, 38) else row for row in ROWS]
    assert summarise(rows, max_steps=40, validation=VALIDATION)["val_sampled"]["best_step"] == 10
    rows = [*ROWS[:-1], {**ROWS[-1], "val/loss_nats": 1.0, "val_full/loss_nats": 1.1}]
    found = summarise(rows, max_steps=40, validation=VALIDATION)
    assert (found["val_sampled"]["best_step"], found["val_full"]["best_step"]) == (40, 40)


@pytest.mark.parametrize("max_steps", [10, 30, 70, 110, 200, 230, 1230, 10_000])
def test_the_step_at_nine_tenths_is_in(max_steps: int) -> None:
    """A measurement at every step: those from 0.9 max_steps on, whatever 0.9 is in binary."""
    rows = [{"step": step, "val/loss_nats": 1.0} for step in range(max_steps)]
    rows.append({**ROWS[-1], "step": max_steps})
    found = summarise(rows, max_steps=max_steps, validation=VALIDATION)["val_sampled"]
    assert (found["first_step"], found["n"]) == (9 * max_steps // 10, max_steps // 10 + 1)


def test_speeds_are_medians_without_the_first_line() -> None:
    rows = [
        {"step": step, "time/step_ms": ms, "speed/tokens_per_s": pace}
        for step, ms, pace in [(0, 900.0, 1.0), (10, 10.0, 70.0), (20, 30.0, 40.0), (30, 14.0, 50.0)]
    ]
    rows.insert(2, {"step": 15, "val/loss_nats": 3.0})
    assert speeds(rows) == {"median_step_ms": 14.0, "tokens_per_s": 50.0}


def test_speeds_of_a_single_line() -> None:
    rows = [{"step": 0, "time/step_ms": 900.0, "speed/tokens_per_s": 5.0}]
    assert speeds(rows) == {"median_step_ms": 900.0, "tokens_per_s": 5.0}
