"""The curves of runs, read once for every figure, and their mean over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crope.record import Record

Array = NDArray[np.float64]
Points = Mapping[int, float]  # step -> loss in nats per token
SAMPLED, FULL, TRAIN = "val/loss_nats", "val_full/loss_nats", "train/loss_nats"
METRICS = (SAMPLED, FULL, TRAIN)
SMOOTHED = 50  # the training curve is averaged over one 50th of its points


@dataclass(frozen=True)
class Curve:
    """Mean over seeds of one metric at the steps that all seeds have; low and high are the lowest and highest seed."""

    step: Array
    mean: Array
    low: Array
    high: Array
    n: int


def read_curves(runs: Sequence[Record]) -> dict[Path, dict[str, Points]]:
    """Directory -> metric -> points, of each of METRICS; a metric that a run did not log has none."""
    return {run.path: _read(run) for run in runs}


def _read(run: Record) -> dict[str, Points]:
    points: dict[str, dict[int, float]] = {name: {} for name in METRICS}
    for row in run.metrics():
        for name, found in points.items():
            if row.get(name) is not None:
                found[row["step"]] = row[name]
    return dict(points)


def mean_curve(runs: Sequence[Points]) -> Curve | None:
    """Averages one metric over runs at their common steps; None where there is none."""
    steps = sorted(set.intersection(*map(set, runs))) if runs else []
    if not steps:
        return None
    values = np.array([[points[step] for step in steps] for points in runs])
    return Curve(np.array(steps, dtype=float), values.mean(0), values.min(0), values.max(0), len(runs))


def window_of(curve: Curve) -> int:
    """Odd number of neighbouring points that the training curve is averaged over; 1 means not at all."""
    return 2 * (len(curve.step) // (2 * SMOOTHED)) + 1


def moving_average(values: Array, window: int) -> Array:
    """Centred; near the ends over the points that exist, so that no point is invented."""
    kernel = np.ones(window)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
