"""Figures of the report as matplotlib Figures: Fig. 4, forests, differences against the step,
length, scaling.

`render` gives the same bytes for the same numbers. Each model has one colour, marker and line style
everywhere. The functions take data frames of claims.py and studies.py, one row per run or per
difference.
"""

import io
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from crope.report.claims import MARGIN, model_label, pair_label, row_label
from crope.report.frame import DATASET_LABELS, load_curves
from crope.report.stats import interval

TEXT, MUTED, SHADE = "#1c2128", "#66707c", "#f3e9cf"
COLOURS = {
    "xpos": "#3fa796", "rope": "#123f7c", "crope": "#c44c10", "learned": "#8a6bb1", "relative_bias": "#a3195b",
    "alibi": "#6b7a1c", "nope": "#2f8fc4", "complex_wide": "#8a6bb1",
}  # fmt: skip
MARKERS = {"xpos": "^", "rope": "o", "crope": "D", "relative_bias": "v", "alibi": "s", "nope": "P"}
# Line style as well as colour: RoPE and CRoPE nearly coincide, and the dashes let the line below
# show through.
LINES: dict[str, Any] = {
    "xpos": (0, (1, 1.2)),
    "crope": (0, (4, 1.6)),
    "relative_bias": (0, (3, 1, 1, 1)),
}
STYLE: dict[str, Any] = {
    "svg.hashsalt": "crope", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 8.5,
    "axes.titley": 1.0, "axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": MUTED, "axes.labelcolor": TEXT,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#e4e7eb", "grid.linewidth": 0.7, "xtick.color": MUTED,
    "ytick.color": MUTED, "xtick.labelcolor": TEXT, "ytick.labelcolor": TEXT, "text.color": TEXT,
    "text.parse_math": False, "legend.frameon": False,
}  # fmt: skip
CURVES = {
    "validation": "val/loss_nats",
    "training": "train/loss_nats",
}  # the panels of Fig. 4 from the top
FULL = "val_full/loss_nats"
PHASES = 10  # equal parts of a run, over each of which sampled validation losses are averaged
EARLY = 0.15  # share of steps whose high losses may leave the frame, so that the models can be told apart
NATS = "nats per token"


def render(figure: Figure, kind: str = "svg") -> bytes:
    """SVG or PNG without a date: the same figure gives the same bytes. `savefig` would draw every
    figure twice.
    """
    out = io.BytesIO()
    if kind == "svg":
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    else:
        figure.set_dpi(120)
        FigureCanvasAgg(figure).print_png(out, metadata={"Software": None})
    figure.set_layout_engine("none")  # the next format has the same layout
    return out.getvalue()


def read_curves(runs: pd.DataFrame) -> pd.DataFrame:
    """The logged losses of all runs: one row per run and step."""
    names = ["dataset", "row", "model", "seed"]
    parts = [
        load_curves(run["path"]).assign(**{name: run[name] for name in names})
        for _, run in runs.iterrows()
    ]
    columns = [*names, "step", *CURVES.values(), FULL]
    return (
        pd.concat(parts, ignore_index=True).reindex(columns=columns)
        if parts
        else pd.DataFrame(columns=columns)
    )


def fig4(curves: pd.DataFrame, datasets: Sequence[str]) -> Figure:
    """Validation (top) and training loss of the base row: a column per dataset, mean over seeds,
    band from lowest to highest seed; markers are the full validation loss. The paper's text puts
    training on top, its caption validation.
    """
    figure, axes = _axes(2, len(datasets), (3.5, 2.6))
    for column, dataset in enumerate(datasets):
        of = curves[(curves["dataset"] == dataset) & (curves["row"] == "base")]
        axes[0][column].set_title(DATASET_LABELS.get(dataset, dataset))
        axes[1][column].set_xlabel("step")
        for axis, (panel, name) in zip(axes[:, column], CURVES.items(), strict=True):
            axis.set_ylabel(f"{panel} loss ({NATS})" if column == 0 else "")
            late: list[float] = []
            for model, runs in _by_model(of):
                band = _over_seeds(runs, name)
                window = 2 * (len(band) // 100) + 1 if panel == "training" else 1
                band = band.rolling(window, center=True, min_periods=1).mean()
                axis.fill_between(
                    band.index,
                    band["min"],
                    band["max"],
                    color=_colour(model),
                    alpha=0.15,
                    linewidth=0,
                )
                axis.plot(band.index, band["mean"], label=model, **_line(model))
                late += (
                    band.loc[band.index >= EARLY * band.index.max(), ["min", "mean"]]
                    .to_numpy()
                    .ravel()
                    .tolist()
                )
                if panel == "validation":
                    full = _over_seeds(runs, FULL)["mean"]
                    axis.plot(
                        full.index,
                        full,
                        MARKERS.get(model, "o"),
                        color=_colour(model),
                        markersize=4,
                        gid="full",
                    )
            if not late:
                _absent(axis)
                continue
            room = 0.06 * (max(late) - min(late)) or 0.1
            axis.set_ylim(min(late) - room, max(late) + room)
    _legend(figure, curves["model"].unique())
    return figure


def gaps(found: dict[str, dict[str, pd.DataFrame]]) -> Figure:
    """Differences against the step: for each pair (title) and place a frame with a row per seed, a
    column per phase.

    Lines are means over seeds, bands 95 % t intervals, thin lines single seeds.
    """
    places = list(dict.fromkeys(place for of in found.values() for place in of))
    figure, axes = _axes(len(found), max(1, len(places)), (3.5, 2.3))
    for line, (title, by_place) in zip(axes, found.items(), strict=True):
        for axis, place in zip(line, places, strict=False):
            axis.set_title(f"{place}")
            axis.set_ylabel(title if axis is line[0] else "")
            axis.set_xlabel("share of the steps" if line is axes[-1] else "")
            axis.axhline(0, color=MUTED, linewidth=0.8)
            if place not in by_place:
                _absent(axis)
                continue
            of = by_place[place]
            x = (of.columns.to_numpy(float) + 0.5) / PHASES
            bounds = np.array([interval(values) for values in of.to_numpy(float).T])
            axis.plot(x, of.T, color=MUTED, linewidth=0.5, alpha=0.5)
            axis.fill_between(
                x, bounds[:, 0], bounds[:, 1], color=COLOURS["crope"], alpha=0.2, linewidth=0
            )
            axis.plot(x, of.mean(), color=COLOURS["crope"], gid="mean")
    return figure


def _over_seeds(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Mean, min and max over seeds by step, at the steps that every seed has."""
    logged = runs.dropna(subset=name)
    found = logged.groupby("step")[name].agg(["mean", "min", "max", "count"])
    return found[found["count"] == logged["seed"].nunique()].drop(columns="count")


def forest(lines: pd.DataFrame) -> Figure:
    """Paired final losses: one panel per `title`, one line per `label`; the equivalence margin is
    shaded.

    Bars are 95 % t intervals of the mean (none below three seeds), dots the seeds, crosses the
    paper's difference.
    """
    lines = lines.drop_duplicates(["title", "label"])
    labels, panels = list(lines["label"].unique()), dict([*lines.groupby("title", sort=False)])
    wrapped = [textwrap.fill(label, 40) for label in labels]
    height = 0.15 + 0.15 * max(text.count("\n") + 1 for text in wrapped)  # of a line, inches
    figure, axes = _axes(1, len(panels), (4.4, 0.9 + height * len(labels)))
    for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
        axis.axvspan(-MARGIN, MARGIN, color=SHADE, linewidth=0, zorder=0)
        axis.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
        for line in lines.to_dict("records"):
            y, colour = labels.index(line["label"]), _colour(line["first"])
            axis.plot(
                [line["t_low_nats"], line["t_high_nats"]],
                [y, y],
                color=colour,
                linewidth=1.6,
                gid="interval",
            )
            axis.plot(
                line["values"],
                [y] * len(line["values"]),
                ".",
                color=TEXT,
                markersize=3,
                gid="seeds",
                zorder=5,
            )
            axis.plot(
                [line["mean_nats"]],
                [y],
                MARKERS.get(line["first"], "o"),
                color=colour,
                markersize=5,
                gid="mean",
            )
            if not np.isnan(line.get("paper_nats", np.nan)):
                axis.plot([line["paper_nats"]], [y], "x", color=TEXT, markersize=5, gid="paper")
        axis.set(
            title=title,
            yticks=range(len(labels)),
            ylim=(len(labels) - 0.5, -0.5),
            xlabel=f"difference ({NATS})",
        )
        axis.set_yticklabels(wrapped if axis is axes[0][0] else [])
        axis.locator_params(axis="x", nbins=4)
        axis.grid(False, axis="y")
    return figure


def comparisons(lines: pd.DataFrame) -> Figure:
    """The forest of `claims.compare` at the final loss: both pairs with RoPE, a line per table row."""
    places = zip(lines["dataset"], lines["row"], strict=True)
    lines = lines.assign(title=lines["first"].map(lambda model: pair_label(model, "rope")))
    return forest(
        lines.assign(label=[row_label(*place) for place in places])[lines["second"] == "rope"]
    )


def study(runs: pd.DataFrame, answers: pd.DataFrame) -> Figure | None:
    """The figure of one study: by length or by width if it has several, else a forest of its
    answers, if it has any.
    """
    if runs["seq_len"].nunique() > 1:
        return length(runs)
    if runs["width"].nunique() > 1:
        return scaling(runs, answers)
    if answers.empty:
        return None
    return forest(answers)


def length(runs: pd.DataFrame) -> Figure:
    """Loss by length (± standard deviation over seeds), and by position in the longest sequences: a
    row per dataset.

    The dashed line is the training length.
    """
    datasets = list(runs["dataset"].unique())
    figure, axes = _axes(len(datasets), 2, (4.6, 2.8))
    for (left, right), dataset in zip(axes, datasets, strict=True):
        of_dataset = runs[runs["dataset"] == dataset]
        _error_lines(left, of_dataset, "seq_len")
        for model, of in _by_model(of_dataset):
            segments = of.drop_duplicates("seed")["positions"].explode().dropna()
            by_position = (
                pd.DataFrame(segments.to_list(), columns=["at", "loss"])
                .groupby("at")["loss"]
                .mean()
            )
            right.plot(by_position.index, by_position, label=model, **_line(model))
        right.axvline(
            runs["config.train.seq_len"].iloc[0], color=MUTED, linewidth=0.9, linestyle="--"
        )
        lengths, label = sorted(runs["seq_len"].unique()), DATASET_LABELS.get(dataset, dataset)
        left.set_xscale("log", base=2)
        left.set(
            xticks=lengths, xticklabels=[f"{n:.0f}" for n in lengths], xlabel="length (tokens)"
        )
        left.set(title=f"{label}: by length", ylabel=f"loss ({NATS})")
        right.set(title=f"{label}: by position", xlabel="position (tokens)")
    _legend(figure, runs["model"].unique())
    return figure


def scaling(runs: pd.DataFrame, answers: pd.DataFrame) -> Figure:
    """Loss by parameters (± standard deviation over seeds), and the differences of `answers` by
    width.
    """
    datasets = list(runs["dataset"].unique())
    figure, axes = _axes(len(datasets), 2, (4.6, 2.8))
    for (left, right), dataset in zip(axes, datasets, strict=True):
        of_dataset = runs[runs["dataset"] == dataset]
        _error_lines(left, of_dataset, "parameters.total")
        right.axhspan(-MARGIN, MARGIN, color=SHADE, linewidth=0)
        right.axhline(0, color=MUTED, linewidth=0.8)
        lines = answers[answers["dataset"] == dataset].drop_duplicates(["where", "first", "second"])
        for line in lines.to_dict("records"):
            x, colour = (
                np.log2(line["width"]) + 0.12 * (line["first"] != "crope"),
                _colour(line["first"]),
            )
            right.plot(
                [x, x],
                [line["t_low_nats"], line["t_high_nats"]],
                color=colour,
                linewidth=1.4,
                gid="interval",
            )
            right.plot(
                [x] * len(line["values"]), line["values"], ".", color=TEXT, markersize=3, zorder=5
            )
            right.plot(
                [x], [line["mean_nats"]], MARKERS.get(line["first"], "o"), color=colour, gid="mean"
            )
        widths = sorted(of_dataset["width"].unique())
        left.set_xscale("log")
        sizes = of_dataset.groupby("width")["parameters.total"].max()
        left.set_xticks(sizes, [f"{size / 1e6:.2g}" for size in sizes])
        left.set_xticks([], minor=True)
        left.set(
            title=f"{DATASET_LABELS.get(dataset, dataset)}: by size", xlabel="parameters (millions)"
        )
        left.set_ylabel(f"loss ({NATS})")
        right.set(
            title="difference to RoPE", xlabel="width D", xticks=np.log2(widths), xticklabels=widths
        )
    _legend(figure, runs["model"].unique())
    return figure


def _axes(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    matplotlib.style.use(["default", STYLE])  # whatever the user's own matplotlibrc says
    figure = Figure(figsize=(columns * size[0], rows * size[1] + 0.3), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _error_lines(axis: Axes, runs: pd.DataFrame, by: str) -> None:
    for model, of in _by_model(runs):
        at = of.groupby(by)["final"].agg(["mean", "std"])
        axis.errorbar(
            at.index, at["mean"], at["std"].fillna(0), capsize=2, label=model, **_marked(model)
        )


def _by_model(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(model), of) for model, of in runs.groupby("model", sort=False)]


def _legend(figure: Figure, models: Iterable[str]) -> None:
    handles = [Line2D([], [], label=model_label(model), **_marked(model)) for model in models]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles) or 1)


def _absent(axis: Axes) -> None:
    axis.text(0.5, 0.5, "no complete run", transform=axis.transAxes, ha="center", color=MUTED)


def _line(model: str) -> dict[str, Any]:
    return {"color": _colour(model), "linestyle": LINES.get(model, "-")}


def _marked(model: str) -> dict[str, Any]:
    return {**_line(model), "marker": MARKERS.get(model, "o"), "markersize": 4}


def _colour(model: str) -> str:
    return COLOURS.get(model, "#3d3d3d")
