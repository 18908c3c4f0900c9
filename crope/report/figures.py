"""Figures of the report: Fig. 4, the difference at each learning rate, all models beside RoPE.

Each function takes frames (runs of `by_study`, lines of `answers`) and gives a matplotlib Figure.
The main models have one colour, marker and line style everywhere. Intervals are drawn above the
dots.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from crope.report.frame import dataset_label, model_label
from crope.report.tables import interval_text
from crope.style import COLOURS, LINES, MARKERS, MUTED, new_figure

CURVES = {"validation": "val/loss_nats", "training": "train/loss_nats"}  # the panels of Fig. 4
FULL = "val_full/loss_nats"
EARLY = 0.15  # fraction of steps whose high losses may leave the frame, to tell the models apart
DRAWN_LAST = "crope"  # over RoPE, whose line it nearly covers; its dashes let RoPE's show through
NATS = "nats per token"
BESIDE = 1.08  # a second corpus at one rate is drawn at this multiple of it
PAPER_RATE = 1e-3  # Sec. 5.3
STROKES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))  # of one model's runs
CORPUS_STYLES = (("#123f7c", "o"), ("#c44c10", "D"))  # colour and marker of each corpus
PAPER, BAND = "#b3261e", "#f7e3d8"  # the paper's differences; the interval of all settings
FOREST_RANGE = (-0.05, 0.105)  # nats per token


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
    shown = pd.concat(late)
    _frame(axis, shown["min"].min(), shown["mean"].max())


def _frame(axis: Axes, lowest: float, highest: float) -> None:
    room = 0.06 * (highest - lowest) or 0.1
    axis.set_ylim(lowest - room, highest + room)


def over_seeds(curves: pd.DataFrame, name: str) -> pd.DataFrame:
    """Gives mean, min and max over seeds by step, at the steps that every seed has."""
    logged = curves.dropna(subset=name)
    losses = logged.groupby("step")[name].agg(["mean", "min", "max", "count"])
    return losses[losses["count"] == logged["seed"].nunique()]


def own_curves(curves: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """Draws the validation loss of single runs: a panel per dataset, a colour per model, a stroke for
    its runs that differ in the seed only. Markers are losses of the whole split or its fixed part,
    lines the sampled ones.

    curves   of `load_curves(runs)`
    """
    datasets = sorted(runs["dataset"].unique())
    figure = new_figure(1.5 + 4 * len(datasets), 4.5)
    axes = dict(zip(datasets, figure.subplots(1, len(datasets), squeeze=False)[0], strict=True))
    others = sorted(set(runs["model"]) - COLOURS.keys())
    colours = COLOURS | {model: colormaps["Dark2"](at) for at, model in enumerate(others)}
    labels: dict[str, dict[str, int]] = {}  # by model: label -> its place in STROKES
    handles = []
    keys = curves.columns.intersection(["folder", "run_id"])  # two sets may have one run
    for run in runs.sort_values("run_id").to_dict("records"):
        of_run = curves[(curves[keys] == [run[key] for key in keys]).all(axis=1)].set_index("step")
        label = " ".join([run["run_id"].rpartition("-s")[0], *run["settings"]])
        of_model = labels.setdefault(run["model"], {})
        first = label not in of_model
        line, marker = STROKES[of_model.setdefault(label, len(of_model)) % len(STROKES)]
        style: dict[str, Any] = {"color": colours[run["model"]], "markersize": 4}
        axis = axes[run["dataset"]]
        axis.plot(of_run[CURVES["validation"]].dropna(), line, linewidth=0.7, **style)
        (drawn,) = axis.plot(of_run[FULL].dropna(), marker, label=label, **style)
        handles += [drawn] if first else []
    for dataset, axis in axes.items():
        axis.set(title=dataset_label(dataset), xlabel="step")
        losses = curves[curves["dataset"] == dataset].dropna(subset=CURVES["validation"])
        last = losses.groupby("run_id")["step"].transform("max")
        late = losses.loc[losses["step"] >= EARLY * last, CURVES["validation"]]
        if len(late):
            _frame(axis, late.min(), late.max())
    axes[datasets[0]].set_ylabel(f"validation loss ({NATS})")
    # Both are given: matplotlib on its own leaves out a label that begins with "_".
    names = [str(handle.get_label()) for handle in handles]
    figure.legend(handles, names, loc="outside lower left", ncols=len(datasets))
    return figure


def rates(lines: pd.DataFrame) -> Figure:
    """Draws CRoPE - RoPE at each learning rate with its 95 % interval; corpora stand side by side,
    and the legend has their numbers of seeds.

    lines   of `pooled.rate_lines`
    """
    figure, axis = _one_panel(4.7, 3.2)
    axis.axhline(0, color=MUTED, linewidth=0.8)
    axis.axvline(PAPER_RATE, color=MUTED, linewidth=0.8, linestyle=":")
    for place, (dataset, of_dataset) in enumerate(lines.groupby("dataset", sort=False)):
        colour, marker = CORPUS_STYLES[place]
        at = of_dataset["rate"] * BESIDE**place
        seeds = ", ".join(map(str, of_dataset["n"]))
        label = f"{dataset_label(str(dataset))} (seeds: {seeds})"
        axis.plot([at, at], [of_dataset["low"], of_dataset["high"]], color=colour, gid="interval")
        axis.plot(at, of_dataset["mean"], color=colour, marker=marker, linestyle="", label=label)
    marks = sorted(lines["rate"].unique())
    axis.set_xscale("log", base=2)
    axis.set_xticks(marks, [f"{rate:g}" for rate in marks])
    axis.set_xticks([], minor=True)
    axis.set(xlabel="learning rate (dotted: the paper's)", ylabel=f"CRoPE − RoPE ({NATS})")
    axis.legend(loc="lower left")
    return figure


def forest(
    units: pd.DataFrame, pooled: pd.DataFrame, best: pd.DataFrame, widths: pd.DataFrame
) -> Figure:
    """Draws CRoPE - RoPE in every setting (dots, 95 % over seeds; hollow: none), the
    paper's own differences (crosses) and the pooled estimates (diamonds), from top to bottom.

    units    of `pooled.units`
    pooled   the estimate of each group and of all: title and the columns of `pooled.pooled_lines`
    best     of `answers`, each model at its best rate: the mean over corpora, then each corpus
    widths   of `answers`, models of other widths: the means over corpora, with a label
    """
    lines = list(forest_lines(units, pooled, best, widths))
    figure, axis = _one_panel(5.2, 0.5 + 0.2 * len(lines))
    all_low, all_high = pooled.iloc[-1][["low", "high"]]
    axis.axvspan(all_low, all_high, color=BAND, zorder=0)
    axis.axvline(0, color=MUTED, linewidth=0.8)
    axis.set_yticks(range(len(lines)), [line["label"] for _, line in lines])
    for at, (kind, line) in enumerate(lines):
        if kind == "unit":
            _draw_unit(axis, at, line)
            continue
        axis.get_yticklabels()[at].set_fontweight("bold")
        if kind == "pool":
            corners = [line["low"], line["mean"], line["high"], line["mean"]]
            axis.fill(corners, [at, at - 0.4, at, at + 0.4], color=_colour("crope"), gid="pool")
            axis.get_yticklabels()[at].set_color(_colour("crope"))
    axis.set(xlim=FOREST_RANGE, ylim=(len(lines) - 0.4, -0.6), xticks=[-0.04, 0, 0.04, 0.08])
    figure.supxlabel(f"CRoPE − RoPE, {NATS}; right of 0 CRoPE is worse", fontsize="medium")
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")
    return figure


def forest_lines(
    units: pd.DataFrame, pooled: pd.DataFrame, best: pd.DataFrame, widths: pd.DataFrame
) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Yields the lines of a forest plot: title, unit or pool, and its label and numbers."""
    *of_groups, of_all = pooled.to_dict("records")
    for estimate in of_groups:
        yield "title", {"label": f"{estimate['title']}: {estimate['n']} pairs"}
        for unit in units[units["group"] == estimate["title"]].to_dict("records"):
            yield "unit", unit | {"label": f"{unit['label']} ({unit['n']})"}
        yield "pool", estimate | {"label": interval_text(estimate, 3)}
    yield "title", {"label": f"All {of_all['units']} settings: {of_all['n']} pairs"}
    yield "pool", of_all | {"label": interval_text(of_all, 3)}
    overall, *corpora = best.to_dict("records")
    yield "title", {"label": f"Each model at its best rate: {overall['n']} seeds"}
    for line in corpora:
        label = f"{dataset_label(line['dataset'])}, 3,200 steps, warm-up"
        yield "unit", line | {"label": label, "of_paper": np.nan}
    yield "pool", overall | {"label": interval_text(overall, 3)}
    yield "title", {"label": "Other widths, mean of two corpora"}
    for line in widths.to_dict("records"):
        yield "unit", line | {"label": f"{line['label']} ({line['n']})", "of_paper": np.nan}


def _draw_unit(axis: Axes, at: int, line: Mapping[Any, Any]) -> None:
    fill = "white" if np.isnan(line["low"]) else _colour("rope")
    axis.plot([line["low"], line["high"]], [at, at], color=_colour("rope"), gid="interval")
    style: dict[str, Any] = {"color": _colour("rope"), "markersize": 4, "gid": "unit"}
    axis.plot(line["mean"], at, marker="o", markerfacecolor=fill, **style)
    axis.plot(line["of_paper"], at, marker="x", color=PAPER, markersize=5, gid="paper")


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
