"""Figures of the report as matplotlib Figures: Fig. 4, forests, differences against the step,
length, scaling.

`render` gives the same bytes for the same numbers. Each model has one colour, marker and line style
everywhere. The functions take places and lines of evidence.py, one row per run or per difference.
"""

import io
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

from crope.report.evidence import LEVEL, MARGIN, Place, interval
from crope.report.frame import DATASET_LABELS, load_curves, model_label

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
EDGE = 0.14  # nats: larger differences leave the frame of the forest
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


def phases(by_place: dict[str, pd.DataFrame]) -> Figure:
    """CRoPE - RoPE against the tokens seen: a panel per place, a row per seed and a column per
    phase. The line is the mean over seeds, the band its 95 % interval, thin lines single seeds.
    """
    figure, axes = _axes(1, max(1, len(by_place)), (3.3, 2.3))
    for axis, (place, differences) in zip(axes[0], by_place.items(), strict=False):
        tokens = differences.columns.to_numpy(float) / 1e6
        bounds = np.array(
            [interval([values], LEVEL)[1:] for values in differences.to_numpy(float).T]
        )
        axis.axhline(0, color=MUTED, linewidth=0.8)
        axis.plot(tokens, differences.T, color=MUTED, linewidth=0.5, alpha=0.5)
        axis.fill_between(
            tokens, bounds[:, 0], bounds[:, 1], color=COLOURS["crope"], alpha=0.2, linewidth=0
        )
        axis.plot(tokens, differences.mean(), color=COLOURS["crope"], gid="mean")
        axis.set(title=place, xlabel="training tokens (millions)")
        axis.set_ylabel(f"CRoPE − RoPE ({NATS})" if axis is axes[0][0] else "")
    return figure


def _over_seeds(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Mean, min and max over seeds by step, at the steps that every seed has."""
    logged = runs.dropna(subset=name)
    found = logged.groupby("step")[name].agg(["mean", "min", "max", "count"])
    return found[found["count"] == logged["seed"].nunique()].drop(columns="count")


def forest(lines: pd.DataFrame) -> Figure:
    """Every model less RoPE: one panel per `title`, one line per model; +-MARGIN is shaded.

    Bars are the intervals of the mean, dots the seeds. A difference beyond EDGE is an arrow with its
    value.
    """
    models = list(lines.groupby("first")["mean_nats"].min().sort_values().index)
    panels = dict([*lines.groupby("title", sort=False)])
    figure, axes = _axes(1, max(1, len(panels)), (4.2, 0.8 + 0.24 * len(models)))
    for axis, (title, of_panel) in zip(axes[0], panels.items(), strict=False):
        axis.axvspan(-MARGIN, MARGIN, color=SHADE, linewidth=0, zorder=0)
        axis.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
        for line in of_panel.to_dict("records"):
            y, colour, mean = models.index(line["first"]), _colour(line["first"]), line["mean_nats"]
            if abs(mean) > EDGE:
                axis.annotate(
                    f"{mean:+.2f} →", (EDGE, y), ha="right", va="center", color=colour, gid="beyond"
                )
                continue
            axis.plot(
                [line["low_nats"], line["high_nats"]],
                [y, y],
                color=colour,
                linewidth=1.6,
                gid="interval",
            )
            seeds = [value for value in line["values"] if abs(value) <= EDGE]
            axis.plot(
                seeds, [y] * len(seeds), ".", color=TEXT, markersize=2.5, gid="seeds", zorder=5
            )
            axis.plot(
                [mean],
                [y],
                MARKERS.get(line["first"], "o"),
                color=colour,
                markersize=5,
                gid="mean",
            )
        axis.set(
            title=title,
            yticks=range(len(models)),
            ylim=(len(models) - 0.5, -0.5),
            xlim=(-0.5 * EDGE, EDGE),
            xlabel=f"model − RoPE ({NATS})",
        )
        axis.set_yticklabels(map(model_label, models) if axis is axes[0][0] else [])
        axis.locator_params(axis="x", nbins=5)
        axis.grid(False, axis="y")
    return figure


def length(places: Sequence[Place]) -> Figure:
    """Loss by length (± standard deviation over seeds), and by position in the longest sequences: a
    row per dataset. The dashed line is the training length.
    """
    figure, axes = _axes(len(places), 2, (4.6, 2.8))
    for (left, right), place in zip(axes, places, strict=True):
        runs = place.runs.dropna(subset="lengths")
        measured = runs.explode("lengths")
        measured["length"], measured["loss"] = zip(*measured["lengths"], strict=True)
        _error_lines(left, measured, "length", "loss")
        for model, of_model in _by_model(runs):
            segments = pd.DataFrame(
                of_model["positions"].explode().to_list(), columns=["at", "loss"]
            )
            by_position = segments.groupby("at")["loss"].mean()
            right.plot(by_position.index, by_position, label=model, **_line(model))
        right.axvline(runs["seq_len"].iloc[0], color=MUTED, linewidth=0.9, linestyle="--")
        lengths = sorted(measured["length"].unique())
        label = DATASET_LABELS.get(place.row.dataset, place.row.dataset)
        left.set_xscale("log", base=2)
        left.set(
            xticks=lengths, xticklabels=[f"{n:.0f}" for n in lengths], xlabel="length (tokens)"
        )
        left.set(title=f"{label}: by length", ylabel=f"loss ({NATS})")
        right.set(title=f"{label}: by position", xlabel="position (tokens)")
    _legend(figure, places[0].runs["model"].unique())
    return figure


def scaling(places: Sequence[Place], lines: pd.DataFrame) -> Figure:
    """Loss by parameters (± standard deviation over seeds) on one dataset, and the differences
    `lines` by width.
    """
    figure, axes = _axes(1, 2, (4.6, 2.8))
    left, right = axes[0]
    runs = places[0].siblings
    _error_lines(left, runs, "parameters", "final")
    right.axhspan(-MARGIN, MARGIN, color=SHADE, linewidth=0)
    right.axhline(0, color=MUTED, linewidth=0.8)
    for line in lines.to_dict("records"):
        colour = _colour(line["first"])
        x = np.log2(line["width"]) + 0.12 * (line["first"] != "crope")
        right.plot(
            [x, x],
            [line["low_nats"], line["high_nats"]],
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
    sizes = runs.groupby("d_model")["parameters"].max()
    left.set_xscale("log")
    left.set_xticks(sizes, [f"{size / 1e6:.2g}" for size in sizes])
    left.set_xticks([], minor=True)
    dataset = places[0].row.dataset
    left.set(title=f"{DATASET_LABELS.get(dataset, dataset)}: by size", ylabel=f"loss ({NATS})")
    left.set(xlabel="parameters (millions)")
    right.set(
        title="difference to RoPE",
        xlabel="width D",
        xticks=np.log2(sizes.index),
        xticklabels=sizes.index,
    )
    _legend(figure, runs["model"].unique())
    return figure


def _axes(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    matplotlib.style.use(["default", STYLE])  # whatever the user's own matplotlibrc says
    figure = Figure(figsize=(columns * size[0], rows * size[1] + 0.3), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _error_lines(axis: Axes, runs: pd.DataFrame, by: str, column: str) -> None:
    for model, of_model in _by_model(runs):
        at = of_model.groupby(by)[column].agg(["mean", "std"])
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
