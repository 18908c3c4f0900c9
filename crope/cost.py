"""What a sweep costs on a kind of machine, from step times that were measured there. Imports no torch."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crope.compose import Run
from crope.model.counting import train_flops_per_token
from crope.verify import read_runs

Shape = tuple[str, int, int, int, int, int]


@dataclass(frozen=True)
class Cost:
    """Of some runs on one kind of device; `hours` is None where a shape among them was never timed there."""

    runs: int
    steps: int
    train_flops: int  # without validation
    hours: float | None


def shape_of(model: str, config: dict[str, Any]) -> Shape:
    """All that a step's time depends on, on one device and at one precision."""
    part, train = config["model"], config["train"]
    vocab_size = config["tokenizer"]["vocab_size"]
    return model, part["n_layers"], part["d_model"], vocab_size, train["batch_size"], train["seq_len"]


def measured_steps(published: Path) -> dict[str, dict[Shape, float]]:
    """Device -> shape -> median step time in ms over the published runs of that shape."""
    found: dict[str, dict[Shape, list[float]]] = defaultdict(lambda: defaultdict(list))
    machines = [path for path in sorted(published.iterdir()) if path.is_dir()]
    for run in (run for machine in machines for run in read_runs(machine)[0]):
        if run.summary["status"] == "complete":
            times = found[run.provenance["device"]][shape_of(run.summary["model"], run.config)]
            times.append(run.summary["time"]["median_step_ms"])
    return {
        device: {shape: statistics.median(times) for shape, times in shapes.items()} for device, shapes in found.items()
    }


def cost(runs: Sequence[Run], step_ms: dict[Shape, float]) -> Cost:
    """Step time x steps over the runs: training alone, since a step's time is measured without validation."""
    shapes = [shape_of(run.model, run.container) for run in runs]
    steps = [run.config.train.max_steps for run in runs]
    hours = None
    if all(shape in step_ms for shape in shapes):
        hours = sum(step_ms[shape] * count for shape, count in zip(shapes, steps, strict=True)) / 3.6e6
    return Cost(len(runs), sum(steps), sum(map(train_flops, runs)), hours)


def train_flops(run: Run) -> int:
    """Floating-point operations of a run's training steps (crope/model/counting.py says how they are counted)."""
    config, train = run.config, run.config.train
    per_token = train_flops_per_token(config.model, vocab_size=config.tokenizer.vocab_size, seq_len=train.seq_len)
    return per_token * train.batch_size * train.seq_len * train.max_steps
