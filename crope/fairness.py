"""Is the comparison fair? Each model judged at its own best learning rate, from the runs of a grid such as fair_lr.

A model that happens to suit the one rate of the paper would win by it. Here all models have the same rates, the same
seeds and the same budget; the rate with the lowest mean loss over seeds is a model's own. Imports no torch.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from crope import paper
from crope.record import Record
from crope.report.frame import DATASET_LABELS, run_status
from crope.report.markdown import render_sheet
from crope.report.sheets import Sheet
from crope.report.stats import Difference, Spread, paired_difference, spread_over_seeds

CHOICES = ("position", "projection", "attention")  # of the model section: what makes a model
REFERENCE = "rope"
DIVERGED = "NonFiniteLoss"  # the error of a run whose loss became infinite: a result of its rate, not of the machine

CSV_COLUMNS = (
    "dataset", "row", "scale", "model", "lr", "mean_nats", "std_nats", "n", "own_best", "held_out_mean_nats",
    "minus_rope_nats", "low_nats", "high_nats",
)  # fmt: skip

Losses = Mapping[float, Mapping[int, float]]  # rate -> seed -> final loss on the full pass, nats per token


@dataclass(frozen=True)
class Judged:
    """One model over all rates; `best_lr` is None where it diverged at every rate.

    held_out   by seed: its loss at the rate that the other seeds choose; empty for one seed
    on_edge    the best rate is the lowest or the highest: a better one may lie outside
    """

    model: str
    losses: Losses
    best_lr: float | None
    on_edge: bool
    held_out: Mapping[int, float]

    def spread(self, lr: float) -> Spread:
        """Infinite, without ±, where a seed diverged."""
        values = list(self.losses[lr].values())
        return spread_over_seeds(values) if all(map(math.isfinite, values)) else Spread(math.inf, None, len(values))

    @property
    def best(self) -> Mapping[int, float]:
        return self.losses[self.best_lr] if self.best_lr is not None else {}


@dataclass(frozen=True)
class Comparison:
    """One grid of model x rate x seed that is complete; what differs in anything else is another comparison."""

    dataset: str
    row: str
    scale: str
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    models: tuple[Judged, ...]
    left_out: int  # runs of the grid that have no counterpart in every model and rate

    def difference(self, model: str, *, held_out: bool = False) -> Difference | None:
        """`model` - RoPE, each at its own best rate, paired by seed."""
        by_name = {judged.model: judged for judged in self.models}
        if model == REFERENCE or REFERENCE not in by_name or model not in by_name:
            return None
        first, second = by_name[model], by_name[REFERENCE]
        return (
            paired_difference(first.held_out, second.held_out)
            if held_out
            else paired_difference(first.best, second.best)
        )


def compare_at_own_best(records: Sequence[Record]) -> list[Comparison]:
    """Every grid of two or more rates and models among the records, in the order of dataset, row and scale.

    Complete runs of the current numerics count, and runs that diverged, as an infinite loss: leaving those out would
    spare a rate the seeds that it loses. Other failed runs count as missing.
    """
    grids: dict[str, dict[str, dict[float, dict[int, float]]]] = {}
    names: dict[str, tuple[str, str, str]] = {}
    for record in records:
        loss = _loss(record)
        if loss is None:
            continue
        key, summary = _rest(record), record.summary
        names[key] = (summary["dataset"], summary["row"], summary["scale"])
        rates = grids.setdefault(key, {}).setdefault(summary["model"], {})
        rates.setdefault(record.config["train"]["lr"], {})[summary["seed"]] = loss
    found = [_compare(names[key], grid) for key, grid in grids.items()]
    datasets = list(DATASET_LABELS)
    return sorted(
        (comparison for comparison in found if comparison),
        key=lambda one: (datasets.index(one.dataset) if one.dataset in datasets else 99, one.row, one.scale),
    )


def _loss(record: Record) -> float | None:
    if run_status(record) == "complete":
        return float(record.summary["val_full"]["final_nats"])
    error = record.summary.get("error") or {}
    return math.inf if record.summary["status"] == "failed" and error.get("type") == DIVERGED else None


def _rest(record: Record) -> str:
    """What all runs of one grid have in common: the configuration without model, rate and seed, and the device."""
    config, summary = record.config, record.summary
    part: dict[str, Any] = {name: config[name] for name in ("data", "tokenizer", "eval")}
    part["model"] = {key: value for key, value in config["model"].items() if key not in CHOICES}
    part["train"] = {key: value for key, value in config["train"].items() if key != "lr"}
    return json.dumps([part, *(summary[name] for name in ("row", "scale", "device_kind", "numerics_version"))])


def _compare(names: tuple[str, str, str], grid: Mapping[str, Losses]) -> Comparison | None:
    rates = sorted(set.intersection(*(set(losses) for losses in grid.values())))
    if len(rates) < 2 or len(grid) < 2:
        return None
    seeds = sorted(set.intersection(*(set(losses[lr]) for losses in grid.values() for lr in rates)))
    if not seeds:
        return None
    there = sum(len(by_seed) for losses in grid.values() for by_seed in losses.values())
    order = [*(name for name in paper.MODEL_LABELS if name in grid), *sorted(grid.keys() - paper.MODEL_LABELS.keys())]
    models = tuple(_judge(name, {lr: {s: grid[name][lr][s] for s in seeds} for lr in rates}) for name in order)
    return Comparison(*names, tuple(rates), tuple(seeds), models, there - len(grid) * len(rates) * len(seeds))


def _judge(model: str, losses: Losses) -> Judged:
    rates, seeds = list(losses), list(next(iter(losses.values())))
    best = choose(losses, seeds)
    held_out = {}
    for seed in seeds if len(seeds) > 1 else ():
        chosen = choose(losses, [other for other in seeds if other != seed])
        held_out[seed] = math.inf if chosen is None else losses[chosen][seed]
    if not all(map(math.isfinite, held_out.values())):
        held_out = {}
    return Judged(model, losses, best, best in (rates[0], rates[-1]), held_out)


def choose(losses: Losses, seeds: Sequence[int]) -> float | None:
    """The rate with the lowest mean loss over `seeds`, the lower one of two equals; None where all diverge."""
    means = {lr: fmean(by_seed[seed] for seed in seeds) for lr, by_seed in losses.items()}
    best = min(means, key=lambda lr: (means[lr], lr))
    return best if math.isfinite(means[best]) else None


def render_markdown(comparisons: Sequence[Comparison]) -> str:
    """A table a comparison; empty where there is no grid to judge."""
    return "\n".join(render_sheet(fairness_sheet(comparison)) for comparison in comparisons)


def fairness_sheet(comparison: Comparison) -> Sheet:
    """Loss by rate with each model's own best marked, the paired differences there, and what they are not."""
    where = f"{DATASET_LABELS.get(comparison.dataset, comparison.dataset)}, row {comparison.row}"
    n = len(comparison.seeds)
    rows = []
    for judged in comparison.models:
        cells = [_cell(judged, lr) for lr in comparison.rates]
        best = "diverges" if judged.best_lr is None else f"{judged.best_lr:g}{' (edge)' if judged.on_edge else ''}"
        held_out = f"{fmean(judged.held_out.values()):.4f}" if judged.held_out else "-"
        difference = _difference(comparison.difference(judged.model))
        rows.append((_label(judged.model), *cells, best, held_out, difference))
    return Sheet(
        name=f"fairness-{comparison.dataset}-{comparison.row}",
        caption=f"Each model at its own best learning rate. {where}. Scale: {comparison.scale}. n = {n} {_seeds(n)}.",
        headings=("Model", *(f"{lr:g}" for lr in comparison.rates), "own best", "held out", "- RoPE, own best"),
        rows=tuple(rows),
        text_columns=(0,),
        notes=tuple(_notes(comparison)),
    )


def _cell(judged: Judged, lr: float) -> str:
    spread = judged.spread(lr)
    if math.isinf(spread.mean_nats):
        return "diverged"
    text = f"{spread.mean_nats:.4f}" + (f" ± {spread.std_nats:.4f}" if spread.std_nats is not None else "")
    return f"{text} (best)" if lr == judged.best_lr else text


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return ""
    if difference.low_nats is None:
        return f"{difference.mean_nats:+.4f}"
    return f"{difference.mean_nats:+.4f} [{difference.low_nats:+.4f}, {difference.high_nats:+.4f}]"


def _notes(comparison: Comparison) -> list[str]:
    notes = [
        "Final loss on the full validation pass, nats per token, mean ± sample standard deviation over seeds; best is "
        "the model's own best rate. Intervals are Student's 95 % over seeds, paired by seed.",
        f"Selection bias: the best of {len(comparison.rates)} rates is chosen on the losses it is judged by, which "
        "favours every model, and most the one whose losses scatter most. Held out is free of that: the mean of each "
        "seed's loss at the rate that the other seeds choose"
        + (" (it needs two seeds)." if len(comparison.seeds) < 2 else "."),
    ]
    for judged in comparison.models:
        held_out = comparison.difference(judged.model, held_out=True)
        if held_out:
            notes.append(f"{_label(judged.model)} - RoPE held out: {_difference(held_out)} (n = {held_out.n}).")
        if judged.on_edge:
            notes.append(
                f"{_label(judged.model)}: the best rate is at the edge of the grid; a better one may lie outside."
            )
    if comparison.left_out:
        notes.append(f"{comparison.left_out} runs are left out: not every model and rate has their seed or rate.")
    return notes


def render_csv(comparisons: Sequence[Comparison]) -> str:
    """One line for each model and rate; differences against RoPE stand on the line of the model's best rate."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for comparison in comparisons:
        for judged in comparison.models:
            for lr in comparison.rates:
                spread, best = judged.spread(lr), lr == judged.best_lr
                difference = comparison.difference(judged.model) if best else None
                held_out = fmean(judged.held_out.values()) if best and judged.held_out else None
                ends = (difference.mean_nats, difference.low_nats, difference.high_nats) if difference else (None,) * 3
                writer.writerow([
                    comparison.dataset, comparison.row, comparison.scale, judged.model, lr,
                    spread.mean_nats, spread.std_nats, spread.n, best, held_out, *ends,
                ])  # fmt: skip
    return out.getvalue()


def _label(model: str) -> str:
    return paper.MODEL_LABELS.get(model, model)


def _seeds(n: int) -> str:
    return "seed" if n == 1 else "seeds"
