"""The theory section's tables: printed cells under headings, from the JSON of `make theory`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from crope import paper
from crope.report.theory_figures import Data, paper_order

Table = tuple[list[str], list[list[str]]]  # headings, rows
NO_TABLE: Table = ([], [])

SHARES = {
    "given": "given pairs",
    "layer": "best J: Q, K, V",
    "queries_keys": "best J: Q, K",
    "values": "V under J of Q, K",
    "model": "one J: all layers",
}


def missed_table(data: Data) -> Table:
    """Missed weight by width, with scores as in Eq. 2 and as in attention."""
    by_width = data["missed_by_width"]
    columns = zip(by_width["widths"], by_width["scores"], by_width["scores / √D"], strict=True)
    return ["D", "missed, scores", "missed, scores / √D"], [[f"{d:,}", f"{a:.4f}", f"{b:.4f}"] for d, a, b in columns]


def by_hand_table(points: Data) -> Table:
    """The smallest weight that any pointer of a text puts on its target, by length, for both constructions."""
    least = points["least_weight"]
    lengths = sorted(least, key=int)
    rows = [
        [f"{name}, by hand", *(f"{least[length][name]:.4f}" for length in lengths)] for name in ("rotary", "absolute")
    ]
    return ["least weight of any pointer", *(f"{length} tokens" for length in lengths)], rows


def pointer_table(data: Data) -> Table:
    """Accuracy and weight by model and length: mean over seeds, range from lowest to highest."""
    lengths, rows = [str(length) for length in data["task"]["lengths"]], []
    for model in dict.fromkeys(run["model"] for run in data["runs"]):
        runs = [run for run in data["runs"] if run["model"] == model]
        loss = f"{fmean(run['loss_nats'] for run in runs):.3f}"
        for measure in ("accuracy", "weight"):
            cells = [_spread([run["by_length"][length][measure] for run in runs]) for length in lengths]
            rows.append([paper.MODEL_LABELS[model], str(len(runs)), loss, measure, *cells])
    return ["Model", "seeds", "loss (nats)", "measure", *(f"{length} tokens" for length in lengths)], rows


def share_table(data: Data) -> Table:
    """Complex shares by model and dataset: before, after, after turned at random, and the excess of after over that."""
    gaussian, runs = data["gaussian"]["shares"], data["runs"]
    rows = [["Gaussian", "", "", *(_range([gaussian[name]]) for name in SHARES)]]
    for model, dataset in sorted({(run["model"], run["dataset"]) for run in runs}, key=paper_order):
        chosen = [run for run in runs if (run["model"], run["dataset"]) == (model, dataset)]
        label = [paper.MODEL_LABELS.get(model, model), paper.DATASET_LABELS.get(dataset, dataset)]
        for state in ("before", "after"):
            cells = [_spread([run[state][name] for run in chosen], 4) for name in SHARES]
            rows.append([*label, f"{state} (n = {len(chosen)})", *cells])
        rows.append([*label, "after, turned", *(_range([run["turned"][name] for run in chosen]) for name in SHARES)])
        excess = {name: [run["after"][name] - run["turned"][name]["mean"] for run in chosen] for name in SHARES}
        rows.append([*label, "excess", *(_spread(excess[name], 4) for name in SHARES)])
    return ["Model", "Dataset", "maps", *SHARES.values()], rows


def errata_table(data: Data) -> Table:
    fields = {
        "document": "Document",
        "equation": "Eq.",
        "printed": "printed",
        "holds": "what holds",
        "test": "shown by",
    }
    return list(fields.values()), [[erratum[name] for name in fields] for erratum in data["errata"]]


def _spread(values: Sequence[float], decimals: int = 3) -> str:
    """Mean, and lowest to highest where there are several."""
    if len(values) == 1:
        return f"{values[0]:.{decimals}f}".replace("-", "−")
    mean, low, high = (f"{value:.{decimals}f}".replace("-", "−") for value in (fmean(values), min(values), max(values)))
    return f"{mean} ({low} to {high})"


def _range(summaries: Sequence[dict[str, float]]) -> str:
    """Mean of the means, lowest to highest draw of all."""
    low, high = min(one["low"] for one in summaries), max(one["high"] for one in summaries)
    return f"{fmean(one['mean'] for one in summaries):.4f} ({low:.4f} to {high:.4f})"
