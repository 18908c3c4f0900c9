"""Figures of the report: Fig. 4, the difference at each learning rate, all models beside RoPE.

Each function takes frames (runs of `by_study`, lines of `answers`) and gives a matplotlib Figure.
The main models have one colour, marker and line style everywhere. Intervals are drawn above the
dots.
"""

from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from crope.report.frame import dataset_label, model_label
from crope.style import COLOURS, LINES, MARKERS, MUTED, new_figure

CURVES = {"validation": "val/loss_nats", "training": "train/loss_nats"}  # the panels of Fig. 4
FULL = "val_full/loss_nats"
EARLY = 0.15  # fraction of steps whose high losses may leave the frame, to tell the models apart
DRAWN_LAST = "crope"  # over RoPE, whose line it nearly covers; its dashes let RoPE's show through
NATS = "nats per token"
BESIDE = 1.08  # a second corpus at one rate is drawn at this multiple of it
PAPER_RATE = 1e-3  # Sec. 5.3
# Colour and marker of each corpus, and the side of its interval at which its numbers are written.
CORPUS_STYLES = (("#123f7c", "o", "right"), ("#c44c10", "D", "left"))
NUMBER: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points", "fontsize": "x-small"}


def fig4(curves: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """Draws validation (top) and training loss of Table 1's runs: a column per dataset, mean over
    seeds, band from lowest to highest seed; markers are the full validation loss, dotted lines the
    learning-rate drops. The paper's text puts training on top, its caption validation.

    curves   of `load_curves(runs)`
    """
    datasets = runs["dataset"].unique()
    figure = new_figure(3.5 * len(datasets), 5.5)
    axes = figure.subplots(len(CURVES), len(datasets), squeeze=False)
    for row, panel in enumerate(CURVES):
        axes[row][0].set_ylabel(f"{panel} loss ({NATS})")
        for axis, dataset in zip(axes[row], datasets, strict=True):
            _draw_losses(axis, curves[curves["dataset"] == dataset], panel)
            run = runs[runs["dataset"] == dataset].iloc[0]
            period, end = int(run["config.train.lr_step_size"]), int(run["config.train.max_steps"])
            for step in range(period, end, period):
                axis.axvline(step, color=MUTED, linewidth=0.5, linestyle=":", gid="drop", zorder=0)
    for top, bottom, dataset in zip(*axes, datasets, strict=True):
        top.set_title(dataset_label(dataset))
        bottom.set_xlabel("step")
    handles = []
    for model in curves["model"].unique():
        handles.append(Line2D([], [], label=model_label(model), **_marked(model)))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles) or 1)
    return figure


def _draw_losses(axis: Axes, curves: pd.DataFrame, panel: str) -> None:
    """Draws one panel of Fig. 4; training losses are smoothed over a fiftieth of the run."""
    late = []
    for model in sorted(curves["model"].unique(), key=lambda name: name == DRAWN_LAST):
        of_model = curves[curves["model"] == model]
        losses = over_seeds(of_model, CURVES[panel])
        if losses.empty:  # a long runtime.log_every
            continue
        window = 2 * (len(losses) // 100) + 1 if panel == "training" else 1
        losses = losses.rolling(window, center=True, min_periods=1).mean()
        band: dict[str, Any] = {"color": _colour(model), "alpha": 0.15, "linewidth": 0}
        axis.fill_between(losses.index, losses["min"], losses["max"], **band)
        axis.plot(losses.index, losses["mean"], label=model, **_stroke(model))
        late.append(losses[losses.index >= EARLY * losses.index.max()])
        if panel == "validation":
            full = over_seeds(of_model, FULL)["mean"]
            axis.plot(full.index, full, **_marked(model) | {"linestyle": "none"}, gid="full")
    if not late:
        return
    lowest = min(losses["min"].min() for losses in late)
    _frame(axis, lowest, max(losses["mean"].max() for losses in late))


def _frame(axis: Axes, lowest: float, highest: float) -> None:
    room = 0.06 * (highest - lowest) or 0.1
    axis.set_ylim(lowest - room, highest + room)


def over_seeds(curves: pd.DataFrame, name: str) -> pd.DataFrame:
    """Gives mean, min and max over seeds by step, at the steps that every seed has."""
    logged = curves.dropna(subset=name)
    losses = logged.groupby("step")[name].agg(["mean", "min", "max", "count"])
    return losses[losses["count"] == logged["seed"].nunique()]


def own_curves(curves: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """Draws the validation loss of single runs, a panel per dataset and a colour for runs that
    differ in the seed only: markers are losses of the whole split or its fixed part, lines the
    sampled ones.

    curves   of `load_curves(runs)`
    """
    datasets = sorted(runs["dataset"].unique())
    figure = new_figure(1.5 + 4 * len(datasets), 4.5)
    axes = dict(zip(datasets, figure.subplots(1, len(datasets), squeeze=False)[0], strict=True))
    labels: dict[str, Any] = {}  # -> colour
    for run in runs.sort_values("run_id").to_dict("records"):
        of_run = curves[curves["run_id"] == run["run_id"]].set_index("step")
        label = " ".join([run["run_id"].rpartition("-s")[0], *run["settings"]])
        first = label not in labels
        place = len(labels)  # ten colours, then their light tints
        colour = labels.setdefault(label, colormaps["tab20"](2 * place % 20 + place // 10))
        axis = axes[run["dataset"]]
        axis.plot(of_run[CURVES["validation"]].dropna(), color=colour, linewidth=0.7)
        style: dict[str, Any] = {"color": colour, "marker": "o", "linestyle": ""}
        axis.plot(of_run[FULL].dropna(), label=label if first else None, **style)
    for dataset, axis in axes.items():
        axis.set(title=dataset_label(dataset), xlabel="step")
        losses = curves[curves["dataset"] == dataset].dropna(subset=CURVES["validation"])
        last = losses.groupby("run_id")["step"].transform("max")
        late = losses.loc[losses["step"] >= EARLY * last, CURVES["validation"]]
        if len(late):
            _frame(axis, late.min(), late.max())
    axes[datasets[0]].set_ylabel(f"validation loss ({NATS})")
    figure.legend(loc="outside lower left", ncols=len(datasets))
    return figure


def rates(lines: pd.DataFrame) -> Figure:
    """Draws CRoPE - RoPE at each learning rate with its 95 % interval and number of seeds; corpora
    stand side by side.

    lines   dataset, rate, n, mean, low, high
    """
    figure, axis = _one_panel(6.6, 3.4)
    axis.axhline(0, color=MUTED, linewidth=0.8)
    axis.axvline(PAPER_RATE, color=MUTED, linewidth=0.8, linestyle=":")
    for place, (dataset, of_dataset) in enumerate(lines.groupby("dataset", sort=False)):
        colour, marker, side = CORPUS_STYLES[place]
        at, high = of_dataset["rate"] * BESIDE**place, of_dataset["high"]
        axis.plot([at, at], [of_dataset["low"], high], color=colour, gid="interval")
        for rate, top, seeds in zip(at, high, of_dataset["n"], strict=True):
            axis.annotate(f"n\u00a0=\u00a0{seeds}", (rate, top), ha=side, **NUMBER)
        label = dataset_label(str(dataset))
        axis.plot(at, of_dataset["mean"], color=colour, marker=marker, linestyle="", label=label)
    marks = sorted(lines["rate"].unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(marks, [f"{rate:g}" for rate in marks])
    axis.set_xticks([], minor=True)
    axis.set(xlabel="learning rate (dotted: the paper's)", ylabel=f"CRoPE − RoPE ({NATS})")
    axis.legend()
    return figure


def models(lines: pd.DataFrame, title: str) -> Figure:
    """Draws every model minus RoPE, one line per model, the lowest on top.

    lines   of `answers`, with a column `model`
    """
    order = lines.sort_values("mean", ignore_index=True)
    figure, axis = _one_panel(6.2, 0.5 + 0.25 * len(order))
    axis.axvline(0, color=MUTED, linewidth=0.8)
    for at, line in enumerate(order.to_dict("records")):
        seeds, model = list(line["by_seed"]), line["model"]
        axis.plot(seeds, [at] * len(seeds), color=MUTED, linestyle="", marker=".", gid="seeds")
        axis.plot([line["low"], line["high"]], [at, at], color=_colour(model), gid="interval")
        axis.plot(line["mean"], at, **_marked(model), gid="mean")
    axis.set_yticks(range(len(order)), order["model"].map(model_label))
    axis.set(ylim=(len(order) - 0.5, -0.5), title=title, xlabel=f"model − RoPE ({NATS})")
    axis.grid(False, axis="y")
    return figure


def _one_panel(width: float, height: float) -> tuple[Figure, Axes]:
    figure = new_figure(width, height + 0.3)  # with the labels of the x axis
    return figure, figure.subplots()


def _colour(model: str) -> str:
    return COLOURS.get(model, "#3d3d3d")


def _stroke(model: str) -> dict[str, Any]:
    return {"color": _colour(model), "linestyle": LINES.get(model, "-")}


def _marked(model: str) -> dict[str, Any]:
    return {**_stroke(model), "marker": MARKERS.get(model, "o"), "markersize": 4}
