"""Figures of the report as matplotlib Figures: Fig. 4, forests, differences against the training
tokens, length, scaling.

`render` gives the same bytes for the same numbers. Each model has one colour, marker and line style
everywhere. The functions take comparisons and lines of evidence.py, one row per run or per difference.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from crope.report.evidence import LEVEL, MARGIN, Comparison, Training, interval
from crope.report.frame import dataset_label, load_curves, model_label
from crope.style import COLOURS, LINES, MARKERS, MUTED, TEXT, new_figure
from crope.style import render as render

SHADE = "#f3e9cf"
CURVES = {"validation": "val/loss_nats", "training": "train/loss_nats"}  # the panels of Fig. 4
FULL = "val_full/loss_nats"
EDGE = 0.14  # nats: larger differences leave the frame of the forest
EARLY = 0.15  # fraction of steps whose high losses may leave the frame, to tell the models apart
PANELS_IN_A_ROW = 4
# Models of the forest whose names need words.
GLOSSARY = {
    "xpos": "XPOS: sinusoidal absolute positions, not the later xPos",
    "nope": "NoPE: no positions",
    "thin_ffn": "thin FFN, multi-query: as many weights saved elsewhere",
    "complex_qk": "Q/K only, V only: Eq. 30 there alone",
    "complex_misaligned": "misaligned: in other pairs than the rotation's",
    "lowrank": "low rank, block-diagonal: half the weights otherwise",
    "conjugate": "conjugate: Q of the conjugate input",
    "halved": "halved: heads half as wide",
}
NATS = "nats per token"


def read_curves(runs: pd.DataFrame) -> pd.DataFrame:
    """The logged losses of all runs: one row per run and step."""
    names = ["dataset", "row", "model", "seed"]
    columns = [*names, "step", *CURVES.values(), FULL]
    if runs.empty:
        return pd.DataFrame(columns=columns)
    logged = pd.concat({path: load_curves(path) for path in runs["path"]}, names=["path"])
    curves = runs[["path", *names]].merge(logged.reset_index("path"), on="path")
    return curves.reindex(columns=columns)


def fig4(curves: pd.DataFrame, datasets: Sequence[str]) -> Figure:
    """Validation (top) and training loss of the base row: a column per dataset, mean over seeds,
    band from lowest to highest seed; markers are the full validation loss. The paper's text puts
    training on top, its caption validation.
    """
    figure, axes = _axes(2, len(datasets), (3.5, 2.6))
    base = curves[curves["row"] == "base"]
    for (top, bottom), dataset in zip(axes.T, datasets, strict=True):
        runs = base[base["dataset"] == dataset]
        top.set_title(dataset_label(dataset))
        _draw_losses(top, runs, "validation")
        _draw_losses(bottom, runs, "training")
        bottom.set_xlabel("step")
    for axis, panel in zip(axes[:, 0], CURVES, strict=True):
        axis.set_ylabel(f"{panel} loss ({NATS})")
    _legend(figure, curves["model"].unique())
    return figure


def _draw_losses(axis: Axes, runs: pd.DataFrame, panel: str) -> None:
    """One panel of Fig. 4; training losses are smoothed over a fiftieth of the run."""
    late = []
    for model, of_model in _by_model(runs):
        losses = _over_seeds(of_model, CURVES[panel])
        if losses.empty:  # a long runtime.log_every
            continue
        window = 2 * (len(losses) // 100) + 1 if panel == "training" else 1
        losses = losses.rolling(window, center=True, min_periods=1).mean()
        axis.fill_between(
            losses.index,
            losses["min"],
            losses["max"],
            color=_colour(model),
            alpha=0.15,
            linewidth=0,
        )
        axis.plot(losses.index, losses["mean"], label=model, **_line(model))
        late.append(losses[losses.index >= EARLY * losses.index.max()])
        if panel == "validation":
            full = _over_seeds(of_model, FULL)["mean"]
            axis.plot(full.index, full, **_marked(model) | {"linestyle": "none"}, gid="full")
    if not late:
        axis.text(0.5, 0.5, "no complete run", transform=axis.transAxes, ha="center", color=MUTED)
        return
    lowest = min(losses["min"].min() for losses in late)
    highest = max(losses["mean"].max() for losses in late)
    room = 0.06 * (highest - lowest) or 0.1
    axis.set_ylim(lowest - room, highest + room)


def _over_seeds(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Mean, min and max over seeds by step, at the steps that every seed has."""
    logged = runs.dropna(subset=name)
    losses = logged.groupby("step")[name].agg(["mean", "min", "max", "count"])
    return losses[losses["count"] == logged["seed"].nunique()]


def training(comparisons: Sequence[Training]) -> Figure:
    """CRoPE - RoPE against the tokens seen, a panel per comparison."""
    columns = min(len(comparisons), PANELS_IN_A_ROW)
    figure, axes = _axes(math.ceil(len(comparisons) / columns), columns, (3.3, 2.6))
    for axis, comparison in zip(axes.flat, comparisons, strict=False):
        _draw_training(axis, comparison)
    for axis in axes.flat[len(comparisons) :]:
        axis.remove()
    for axis in axes[:, 0]:
        axis.set_ylabel(f"CRoPE − RoPE ({NATS})")
    return figure


def _draw_training(axis: Axes, comparison: Training) -> None:
    """The mean over seeds, single seeds (thin), and, with all planned seeds, the 95 % interval; on
    top RoPE's loss at that moment; the cross is the paper's difference where RoPE has its loss.
    """
    tokens = comparison.differences.columns.to_numpy(float) / 1e6
    by_phase = comparison.differences.to_numpy(float).T
    colour = _colour("crope")
    axis.axhline(0, color=MUTED, linewidth=0.8)
    axis.plot(tokens, by_phase, color=MUTED, linewidth=0.5, alpha=0.5)
    title = comparison.title
    if len(comparison.differences) == comparison.planned:
        bounds = np.array([interval([values], LEVEL)[1:] for values in by_phase])
        axis.fill_between(tokens, *bounds.T, color=colour, alpha=0.2, linewidth=0)
    else:
        title += f" ({len(comparison.differences)} of {comparison.planned} seeds)"
    axis.plot(tokens, comparison.differences.mean(), color=colour, gid="mean")
    if comparison.paper:
        paper_tokens, difference, rope_nats = comparison.paper
        axis.plot([paper_tokens / 1e6], [difference], "x", color=TEXT, gid="paper")
        axis.annotate(
            f"the paper, at RoPE's {rope_nats:.2f}",
            (paper_tokens / 1e6, difference),
            (6, -3),
            textcoords="offset points",
        )
    axis.set(xlabel="training tokens (millions)")
    axis.set_title(title, pad=28)  # points, above the second axis
    top = axis.secondary_xaxis("top")
    shown = slice(0, None, 3)
    top.set_xticks(tokens[shown], [f"{loss:.2f}" for loss in comparison.rope_nats.iloc[shown]])
    top.set_xlabel("RoPE's loss", fontsize="small")


def forest(lines: pd.DataFrame, paper_row: Training | None = None) -> Figure:
    """Every model minus RoPE: one panel per `title`, one line per model; +-MARGIN is shaded. On the
    right CRoPE - RoPE while a row of the paper is trained at its own size.

    Bars are the intervals of the mean, dots the seeds of each corpus. A difference beyond EDGE is
    an arrow with its value.
    """
    models = list(lines.groupby("first")["mean_nats"].min().sort_values().index)
    panels = lines.groupby("title", sort=False)
    low = -0.5 * EDGE
    columns = max(1, len(panels)) + (paper_row is not None)
    figure, axes = _axes(1, columns, (4.2, 0.8 + 0.24 * len(models)))
    if paper_row:
        _draw_training(axes[0][-1], paper_row)
        axes[0][-1].set_ylabel(f"CRoPE − RoPE ({NATS})")
    for axis, (title, of_panel) in zip(axes[0], panels, strict=False):
        axis.axvspan(-MARGIN, MARGIN, color=SHADE, linewidth=0, zorder=0)
        axis.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
        for line in of_panel.to_dict("records"):
            y, mean = models.index(line["first"]), line["mean_nats"]
            if low < mean < EDGE:
                _draw_difference(axis, line, y, horizontal=True)
                continue
            text, end, align = f"{mean:+.2f} →", EDGE, "right"
            if mean <= low:
                text, end, align = f"← {mean:+.2f}", low, "left"
            colour = _colour(line["first"])
            axis.annotate(text, (end, y), ha=align, va="center", color=colour, gid="beyond")
        axis.set(title=title, xlabel=f"model − RoPE ({NATS})", xlim=(low, EDGE))
        axis.set(yticks=range(len(models)), yticklabels=[], ylim=(len(models) - 0.5, -0.5))
        axis.locator_params(axis="x", nbins=5)
        axis.grid(False, axis="y")
    axes[0][0].set_yticklabels(map(model_label, models))
    return figure


def forest_caption(lines: pd.DataFrame, paper_row: Training | None) -> str:
    """What the forest shows; `lines` and `paper_row` are those of `forest`."""
    drawn = set(lines["first"])
    words = [text for model, text in GLOSSARY.items() if model in drawn]
    parts = [
        f"Means over corpora, 95 % intervals; dots: seeds; shaded: ±{MARGIN:g}; arrows: outside"
    ]
    if words:
        parts.append("; ".join(words))
    if paper_row:
        text = "Right: CRoPE − RoPE during training at the paper's size"
        if len(paper_row.differences) == paper_row.planned:
            text += ", shaded: 95 %"
        if paper_row.paper:
            text += "; cross: the paper's final difference, where RoPE's loss here is the paper's"
        parts.append(text)
    return f"{'. '.join(parts)}."


def _draw_difference(axis: Axes, line: Mapping[Any, Any], at: float, *, horizontal: bool) -> None:
    """The interval (bar), the seeds (dots) and the mean of one line of evidence."""

    def draw(values: Sequence[float], **style: Any) -> None:
        positions = [at] * len(values)
        points = (values, positions) if horizontal else (positions, values)
        axis.plot(*points, **style)

    colour = _colour(line["first"])
    marker = MARKERS.get(line["first"], "o")
    draw([line["low_nats"], line["high_nats"]], color=colour, linewidth=1.6, gid="interval")
    draw(
        line["values"], color=TEXT, linestyle="", marker=".", markersize=2.5, gid="seeds", zorder=5
    )
    draw([line["mean_nats"]], color=colour, linestyle="", marker=marker, markersize=5, gid="mean")


def length(comparisons: Sequence[Comparison]) -> Figure:
    """Loss by length (± standard deviation over seeds), and by position in the longest sequences: a
    row per dataset. The dashed line is the training length.
    """
    figure, axes = _axes(len(comparisons), 2, (4.6, 2.8))
    for (left, right), comparison in zip(axes, comparisons, strict=True):
        runs = comparison.runs.dropna(subset="lengths")
        by_length = _measured(runs, "lengths")
        _error_lines(left, by_length, "at", "loss")
        for model, of_model in _by_model(_measured(runs, "positions")):
            by_position = of_model.groupby("at")["loss"].mean()
            right.plot(by_position.index, by_position, label=model, **_line(model))
        right.axvline(runs["seq_len"].iloc[0], color=MUTED, linewidth=0.9, linestyle="--")
        lengths = sorted(by_length["at"].unique())
        label = dataset_label(comparison.row.dataset)
        left.set_xscale("log", base=2)
        left.set_xticks(lengths, [f"{tokens:.0f}" for tokens in lengths])
        left.set(title=f"{label}: by length", xlabel="length (tokens)", ylabel=f"loss ({NATS})")
        right.set(title=f"{label}: by position", xlabel="position (tokens)")
    _legend(figure, comparisons[0].runs["model"].unique())
    return figure


def _measured(runs: pd.DataFrame, column: str) -> pd.DataFrame:
    """The pairs (length or position, loss) of `column`: one row per run and pair."""
    measured = runs[["model", column]].explode(column, ignore_index=True)
    pairs = pd.DataFrame(measured[column].to_list(), columns=["at", "loss"])
    return measured[["model"]].join(pairs)


def scaling(comparison: Comparison, lines: pd.DataFrame) -> Figure:
    """Loss by parameters (± standard deviation over seeds) on the dataset of one row of the study,
    and the differences `lines` by width.
    """
    figure, axes = _axes(1, 2, (4.6, 2.8))
    left, right = axes[0]
    runs = comparison.siblings
    sizes = runs.groupby("d_model")["parameters"].max()
    _error_lines(left, runs, "parameters", "final")
    left.set_xscale("log")
    left.set_xticks(sizes, [f"{size / 1e6:.2g}" for size in sizes])
    left.set_xticks([], minor=True)
    left.set(title=f"{dataset_label(comparison.row.dataset)}: by size")
    left.set(xlabel="parameters (millions)", ylabel=f"loss ({NATS})")
    right.axhspan(-MARGIN, MARGIN, color=SHADE, linewidth=0)
    right.axhline(0, color=MUTED, linewidth=0.8)
    for line in lines.to_dict("records"):
        aside = 0.0 if line["first"] == "crope" else 0.12
        _draw_difference(right, line, np.log2(line["width"]) + aside, horizontal=False)
    right.set_xticks(np.log2(sizes.index), sizes.index)
    right.set(title="difference to RoPE", xlabel="width D")
    _legend(figure, runs["model"].unique())
    return figure


def _axes(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    width, height = size
    figure = new_figure(columns * width, rows * height + 0.3)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _error_lines(axis: Axes, runs: pd.DataFrame, by: str, column: str) -> None:
    for model, of_model in _by_model(runs):
        losses = of_model.groupby(by)[column].agg(["mean", "std"])
        error = losses["std"].fillna(0)
        style = _marked(model)
        axis.errorbar(losses.index, losses["mean"], error, capsize=2, label=model, **style)


def _by_model(runs: pd.DataFrame) -> Iterable[tuple[Any, pd.DataFrame]]:
    return runs.groupby("model", sort=False)


def _legend(figure: Figure, models: Iterable[str]) -> None:
    handles = [Line2D([], [], label=model_label(model), **_marked(model)) for model in models]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles) or 1)


def _colour(model: str) -> str:
    return COLOURS.get(model, "#3d3d3d")


def _line(model: str) -> dict[str, Any]:
    return {"color": _colour(model), "linestyle": LINES.get(model, "-")}


def _marked(model: str) -> dict[str, Any]:
    return {**_line(model), "marker": MARKERS.get(model, "o"), "markersize": 4}
