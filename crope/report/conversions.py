"""Trained RoPE models that scripts/convert.py made complex: losses before and after the tuning, over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crope.record import Record
from crope.report.comparison_tables import format_nats, format_range
from crope.report.csv_files import to_csv
from crope.report.frame import DATASET_LABELS, one_line
from crope.report.sheets import Sheet
from crope.report.stats import Difference, over_seeds, spread_over_seeds
from crope.report.tables import format_spread

FILE = "conversion.json"
ARMS = {"rope": "RoPE, tuned on", "best": "best structure", "random": "random structure", "fresh": "new Q, K, V"}
CSV_COLUMNS = ("run_id", "dataset", "d_model", "seed", "steps", "lr", "arm", "loss_nats", "tuned_loss_nats",
               "kept_share", "kept_share_by_chance")  # fmt: skip


@dataclass(frozen=True)
class Conversion:
    """What scripts/convert.py left beside one run; `problem` says why it cannot be read."""

    run: Record
    found: dict[str, Any]
    problem: str = ""

    @property
    def group(self) -> tuple[str, int, int, float]:
        """Text, width, and the tuning's steps and rate: what conversions of several seeds have in common."""
        width = self.run.config["model"]["d_model"]
        return self.run.summary["dataset"], width, self.found["steps"], self.found["lr"]


def read_conversions(runs: Sequence[Record]) -> list[Conversion]:
    """Of the runs that have one, in their order."""
    return [_read(run) for run in runs if (run.path / FILE).exists()]


def _read(run: Record) -> Conversion:
    try:
        found = json.loads((run.path / FILE).read_text(encoding="utf-8"))
        losses = [found["loss_nats"]["trained"], found["lr"], found["steps"], found["kept_share"]["best"]]
        losses += [found[when][arm] for when in ("loss_nats", "tuned_loss_nats") for arm in ARMS]
        if not all(map(math.isfinite, [*losses, *found["kept_share"]["best_by_chance"]])):
            raise ValueError("a number in it is not finite")
    except (OSError, ValueError, KeyError, TypeError) as error:
        cure = f"remove its {FILE}, scripts/convert.py makes it anew"
        return Conversion(run, {}, one_line(f"{run.path.name}: {type(error).__name__}: {error}; {cure}"))
    return Conversion(run, found)


def conversions_sheet(conversions: Sequence[Conversion], *, scale: str) -> Sheet:
    """A line a text, width and tuning: `before → after` of every arm, and what the structure is worth after it."""
    groups: dict[tuple[str, int, int, float], list[Conversion]] = {}
    for one in conversions:
        if not one.problem:
            groups.setdefault(one.group, []).append(one)
    headings = ("Dataset", "D", "n", "Steps", "Trained", *ARMS.values(), "Best − random", "95 %", "Best − RoPE",
                "95 %", "Kept", "by chance")  # fmt: skip
    notes = (
        "Loss: full validation, nats per token, mean over seeds: right after the conversion → after the same tuning at"
        " the run's last learning rate. Differences are of the tuned losses, paired by seed, with Student's 95 %"
        " interval.",
        "Best and random structure: Q, K and V projected onto Eq. 30 in the best complex structure of the residual"
        " stream and in one drawn at random. New: complex Q, K, V at initial values. Kept: the share of Q, K, V that is"
        " complex-linear in the best structure, and what a best structure keeps of the same maps once their channels"
        " are turned away from the rotation's pairs at random.",
        *(one.problem for one in conversions if one.problem),
    )
    return Sheet(
        name="conversion",
        caption=f"Trained RoPE models brought onto the complex subspace (scripts/convert.py). Scale: {scale}.",
        headings=headings,
        rows=tuple(_row(group, found) for group, found in groups.items()),
        text_columns=(0,),
        notes=notes,
    )


def _row(group: tuple[str, int, int, float], found: Sequence[Conversion]) -> tuple[str, ...]:
    dataset, width, steps, _ = group
    before, after = ([one.found[when] for one in found] for when in ("loss_nats", "tuned_loss_nats"))
    trained = format_spread(spread_over_seeds([losses["trained"] for losses in before]), 4)
    arms = [
        f"{_mean([losses[arm] for losses in before]):.4f} → {_mean([losses[arm] for losses in after]):.4f}"
        for arm in ARMS
    ]
    differences = [
        text
        for other in ("random", "rope")
        for text in _printed(over_seeds([losses["best"] - losses[other] for losses in after]))
    ]
    shares = [one.found["kept_share"] for one in found]
    kept = f"{_mean([share['best'] for share in shares]):.3f}"
    chance = f"{_mean([value for share in shares for value in share['best_by_chance']]):.3f}"
    label = DATASET_LABELS.get(dataset, dataset)
    return (label, str(width), str(len(found)), str(steps), trained, *arms, *differences, kept, chance)


def _mean(values: Sequence[float]) -> float:
    return spread_over_seeds(values).mean_nats


def _printed(found: Difference) -> tuple[str, str]:
    return format_nats(found.mean_nats), format_range(found.low_nats, found.high_nats)


def render_conversions_csv(conversions: Sequence[Conversion]) -> str:
    """A line a run and arm."""
    rows: list[list[object]] = []
    for one in conversions:
        if one.problem:
            continue
        dataset, width, steps, rate = one.group
        head = [one.run.summary["run_id"], dataset, width, one.run.summary["seed"], steps, rate]
        share = one.found["kept_share"]
        chance = _mean(share["best_by_chance"])
        for arm in ARMS:
            losses = [f"{one.found[when][arm]:.6f}" for when in ("loss_nats", "tuned_loss_nats")]
            rows.append([*head, arm, *losses, f"{share['best']:.6f}", f"{chance:.6f}"])
    return to_csv(CSV_COLUMNS, rows)
