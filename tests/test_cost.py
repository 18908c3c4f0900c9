"""Costs against sums by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from crope.compose import load_run
from crope.cost import cost, measured_steps, shape_of, train_flops
from crope.report.published import PUBLISHED
from tests.conftest import TOY_OVERRIDES


def test_flops_of_a_paper_run_by_hand() -> None:
    """4 blocks of 12 D² weights, the head of D V, two operations a weight; causal scores and mixing 2 L D; times 3."""
    run = load_run(["scale=paper", "model=rope", "train.precision=bf16"])
    per_token = 3 * (4 * (2 * 12 * 128**2 + 2 * 1024 * 128) + 2 * 128 * 50257)
    assert train_flops(run) == per_token * 16 * 1024 * 10_000


def test_hours_are_step_time_times_steps_over_the_runs() -> None:
    runs = [load_run([*TOY_OVERRIDES, f"seed={seed}"]) for seed in range(3)]
    shape = shape_of(runs[0].model, runs[0].container)
    assert shape == ("crope", 1, 16, 300, 2, 16)
    found = cost(runs, {shape: 1500.0})
    assert (found.runs, found.steps) == (3, 36)
    assert found.hours == pytest.approx(36 * 1.5 / 3600)
    longer = replace(runs[0], config=replace(runs[0].config, train=replace(runs[0].config.train, seq_len=32)))
    assert cost([*runs, longer], {shape: 1500.0}).hours is None, "a shape that was never timed has no price"


def test_step_times_are_those_of_the_published_summaries() -> None:
    times = [
        json.loads(path.read_text())["time"]["median_step_ms"]
        for path in Path(PUBLISHED).glob("*/rope-ptb-base-*/summary.json")
        if json.loads(path.read_text())["scale"] == "quick"
    ]
    (steps,) = [steps for device, steps in measured_steps(PUBLISHED).items() if "EPYC" in device]
    measured = steps["rope", 4, 128, 4096, 2, 256]
    assert min(times) * 0.5 < measured < max(times) * 2  # of all datasets: the median may lie outside one's range
