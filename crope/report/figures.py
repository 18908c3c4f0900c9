"""Fig. 4: validation and training curves, a column a dataset, a colour a model.

The paper's caption puts validation on top, its text (Sec. 6.1) training; the caption's order is taken.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crope import paper
from crope.report.frame import DATASET_LABELS, CellResult, group_rows
from crope.report.style import LIGHT, LINE_STYLES, MARKERS, OTHER_LINE_STYLE, OTHER_MARKER, Theme, rc_params

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
SAMPLED, FULL, TRAIN = "val/loss_nats", "val_full/loss_nats", "train/loss_nats"
PANELS = ("validation", "training")
CROPPED = 0.15  # share of steps whose high losses may leave the frame, so that the models can be told apart
SMOOTHED = 50  # the training curve is averaged over one 50th of its points


@dataclass(frozen=True)
class Curve:
    """Mean over seeds of one metric at the steps that all seeds have; low and high are the lowest and highest seed."""

    step: Array
    mean: Array
    low: Array
    high: Array
    n: int


@dataclass(frozen=True)
class Column:
    """What one dataset's panels show: curves[metric][model], and why a model is not among them."""

    title: str
    curves: dict[str, dict[str, Curve]]
    absent: dict[str, str]


def build_columns(results: Sequence[CellResult]) -> list[Column]:
    """One column a row of Table 1. Reads the metrics of its complete runs."""
    return [_build_column(row) for row in group_rows(results, "table1")]


def _build_column(row: Sequence[CellResult]) -> Column:
    curves: dict[str, dict[str, Curve]] = {SAMPLED: {}, FULL: {}, TRAIN: {}}
    for result in row:
        metrics = [run.metrics() for run in result.runs]
        for name, by_model in curves.items():
            curve = mean_curve(metrics, name)
            if curve is not None:
                by_model[result.cell.model] = curve
    dataset = row[0].cell.dataset
    absent = {r.cell.model: f"{r.status}: {r.reason}" for r in row if not r.n}
    return Column(DATASET_LABELS.get(dataset, dataset), curves, absent)


def mean_curve(runs: Sequence[Sequence[Mapping[str, Any]]], name: str) -> Curve | None:
    """Averages the metric `name` over runs at their common steps; None where there is none."""
    by_run = [{int(line["step"]): float(line[name]) for line in lines if line.get(name) is not None} for lines in runs]
    steps = sorted(set.intersection(*map(set, by_run))) if by_run else []
    if not steps:
        return None
    values = np.array([[one[step] for step in steps] for one in by_run])
    return Curve(np.array(steps, dtype=float), values.mean(0), values.min(0), values.max(0), len(by_run))


def window_of(curve: Curve) -> int:
    """Odd number of neighbouring points that the training curve is averaged over; 1 means not at all."""
    return 2 * (len(curve.step) // (2 * SMOOTHED)) + 1


def moving_average(values: Array, window: int) -> Array:
    """Centred; near the ends over the points that exist, so that no point is invented."""
    kernel = np.ones(window)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


def render_figure(
    columns: Sequence[Column], *, scale: str, file_format: str, theme: Theme = LIGHT, headed: bool = True
) -> bytes:
    """The figure's file, svg or png: the same bytes for the same curves. `headed` adds title, scale and footer."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = rc_params(theme)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        figure = Figure(figsize=(3.5 * len(columns) + 0.3, 5.6 if headed else 5.0), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, len(columns), squeeze=False, sharex="col")
        for index, column in enumerate(columns):
            _draw_column(list(axes[:, index]), column, theme, first=index == 0)
        _draw_legend(figure, columns, theme)
        if headed:
            title = f"Validation (top) and training loss (bottom), scale: {scale}"
            footer = textwrap.fill(describe_figure(columns), 46 * len(columns))
            figure.suptitle(title, x=0.01, ha="left", fontsize=11)
            figure.supxlabel(footer, x=0.01, ha="left", fontsize=7.5, color=theme.muted)
        buffer = io.BytesIO()
        # Date and program version would make the bytes depend on the day and the installation.
        metadata: dict[str, Any] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[file_format]
        figure.savefig(buffer, format=file_format, dpi=200, metadata=metadata)
    return buffer.getvalue()


def describe_figure(columns: Sequence[Column]) -> str:
    """What is drawn, for the footer and the page: averaging, band, smoothing, cropping."""
    curves = [curve for column in columns for by_model in column.curves.values() for curve in by_model.values()]
    if not curves:
        return "No complete run."
    seeds = sorted({curve.n for curve in curves})
    parts = ["Top: lines, sampled validation loss; markers, full validation loss."]
    if seeds == [1]:
        parts.append("One seed.")
    else:
        count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        parts.append(f"Mean over {count} seeds; band: lowest to highest seed.")
    windows = sorted({window_of(curve) for column in columns for curve in column.curves[TRAIN].values()} - {1})
    if windows:
        points = f"{windows[0]}" if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"
        parts.append(f"Bottom: moving average over {points} logged steps.")
    panels = [column.curves[name] for column in columns for name in (SAMPLED, TRAIN)]
    if any(_is_cropped(list(by_model.values())) for by_model in panels):
        parts.append(f"Losses of the first {100 * CROPPED:.0f} % of steps leave the frame at the top.")
    return " ".join(parts)


def _draw_column(axes: Sequence[Axes], column: Column, theme: Theme, *, first: bool) -> None:
    axes[0].set_title(column.title)
    if first:
        for axis, panel in zip(axes, PANELS, strict=True):
            axis.set_ylabel(f"{panel} loss (nats per token)")
    if not any(column.curves.values()):
        _draw_absence(axes, column, theme)
        return
    axes[1].set_xlabel("step (optimiser updates)")
    for axis, name in zip(axes, (SAMPLED, TRAIN), strict=True):
        for model, curve in column.curves[name].items():
            _draw_curve(axis, model, curve, theme, window=window_of(curve) if name == TRAIN else 1)
        axis.margins(x=0.03)
    for model, curve in column.curves[FULL].items():
        marker, size = MARKERS.get(model, OTHER_MARKER)
        line = axes[0].plot(curve.step, curve.mean, marker, color=theme.model_colour(model), markersize=size, zorder=4)
        line[0].set(markeredgecolor=theme.background, markeredgewidth=0.6)
    axes[0].set_ylim(*_limits([*column.curves[SAMPLED].values(), *column.curves[FULL].values()]))
    axes[1].set_ylim(*_limits(list(column.curves[TRAIN].values())))
    if column.absent:
        absent = {paper.MODEL_LABELS.get(model, model): why.partition(":")[0] for model, why in column.absent.items()}
        text = ", ".join(f"{label} {status}" for label, status in absent.items())
        axes[0].text(0.98, 0.96, text, transform=axes[0].transAxes, ha="right", va="top", color=theme.muted)


def _draw_curve(axis: Axes, model: str, curve: Curve, theme: Theme, *, window: int) -> None:
    colour = theme.model_colour(model)
    if curve.n > 1:
        low, high = moving_average(curve.low, window), moving_average(curve.high, window)
        axis.fill_between(curve.step, low, high, color=colour, alpha=0.15, linewidth=0)
    style = LINE_STYLES.get(model, OTHER_LINE_STYLE)
    axis.plot(curve.step, moving_average(curve.mean, window), color=colour, linestyle=style, linewidth=1.4)


def _draw_absence(axes: Sequence[Axes], column: Column, theme: Theme) -> None:
    """An empty frame that says why it is empty."""
    reasons = [textwrap.fill(textwrap.shorten(text, 300), 36) for text in dict.fromkeys(column.absent.values())]
    status = ", ".join(dict.fromkeys(text.partition(":")[0] for text in column.absent.values()))
    for axis, text in zip(axes, ("\n\n".join(reasons), status), strict=True):
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set_color(theme.grid)
            spine.set_visible(True)
        axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color=theme.muted, fontsize=8)


def _draw_legend(figure: Figure, columns: Sequence[Column], theme: Theme) -> None:
    from matplotlib.lines import Line2D

    models = dict.fromkeys(model for column in columns for by_model in column.curves.values() for model in by_model)
    handles = []
    for model in models:
        marker, size = MARKERS.get(model, OTHER_MARKER)
        style = LINE_STYLES.get(model, OTHER_LINE_STYLE)
        label = paper.MODEL_LABELS.get(model, model)
        line = Line2D([], [], color=theme.model_colour(model), linestyle=style, linewidth=1.8, label=label)
        line.set(marker=marker, markersize=size, markeredgecolor=theme.background, markeredgewidth=0.6)
        handles.append(line)
    if handles:
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), handlelength=3)


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Lowest to highest mean loss after the first steps, the bands' lower edges included, with a margin."""
    if not curves:
        return 0.0, 1.0
    kept = [(curve, curve.step >= CROPPED * curve.step[-1]) for curve in curves]
    low = min(float(curve.low[late].min()) for curve, late in kept)
    high = max(float(curve.mean[late].max()) for curve, late in kept)
    margin = 0.06 * (high - low) or 0.1
    return low - margin, high + margin


def _is_cropped(curves: Sequence[Curve]) -> bool:
    return bool(curves) and any(float(curve.mean.max()) > _limits(curves)[1] for curve in curves)
