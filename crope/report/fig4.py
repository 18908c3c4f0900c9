"""Fig. 4: validation and training curves, a column a dataset, a colour a model.

The paper's caption puts validation on top, its text (Sec. 6.1) training; the caption's order is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from crope.report.comparisons import model_label
from crope.report.curves import FULL, METRICS, SAMPLED, TRAIN, Curve, Points, mean_curve, moving_average, window_of
from crope.report.figures import Panel, Plot, draw_absence, model_handles
from crope.report.frame import DATASET_LABELS, CellResult, group_rows
from crope.report.style import LIGHT, line_style, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = ("validation", "training")
CROPPED = 0.15  # share of steps whose high losses may leave the frame, so that the models can be told apart


@dataclass(frozen=True)
class Column:
    """What one dataset's panels show: curves[metric][model], and why a model is not among them."""

    title: str
    curves: dict[str, dict[str, Curve]]
    absent: dict[str, str]


def build_fig4(results: Sequence[CellResult], points: Mapping[Path, Mapping[str, Points]]) -> Plot:
    """Drawn from `points`, which `read_curves` gives for the runs of `results`."""
    return plot_columns(build_columns(results, points))


def plot_columns(columns: Sequence[Column]) -> Plot:
    models = dict.fromkeys(model for column in columns for by_model in column.curves.values() for model in by_model)
    return Plot(
        name="fig4",
        title="Fig. 4. Validation (top) and training loss (bottom)",
        note=describe_columns(columns),
        panels=tuple(Panel(column.title, _in_words(column), partial(_draw_column, column)) for column in columns),
        size=(3.6, 5.0),
        legend=lambda: model_handles(list(models)),
        per_row=len(columns),
        axes_per_panel=2,
    )


def build_columns(results: Sequence[CellResult], points: Mapping[Path, Mapping[str, Points]]) -> list[Column]:
    """One column a row of Table 1."""
    return [_build_column(row, points) for row in group_rows(results, "table1")]


def _build_column(row: Sequence[CellResult], points: Mapping[Path, Mapping[str, Points]]) -> Column:
    curves: dict[str, dict[str, Curve]] = {name: {} for name in METRICS}
    for result in row:
        for name, by_model in curves.items():
            curve = mean_curve([points[run.path][name] for run in result.runs])
            if curve is not None:
                by_model[result.cell.model] = curve
    dataset = row[0].cell.dataset
    absent = {r.cell.model: f"{r.status}: {r.reason}" for r in row if not r.n}
    return Column(DATASET_LABELS.get(dataset, dataset), curves, absent)


def describe_columns(columns: Sequence[Column]) -> str:
    """What is drawn: averaging, band, smoothing, cropping."""
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
        count = f"{windows[0]}" if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"
        parts.append(f"Bottom: moving average over {count} logged steps.")
    panels = [column.curves[name] for column in columns for name in (SAMPLED, TRAIN)]
    if any(_is_cropped(list(by_model.values())) for by_model in panels):
        parts.append(f"Losses of the first {100 * CROPPED:.0f} % of steps leave the frame at the top.")
    return " ".join(parts)


def _in_words(column: Column) -> str:
    ends = [f"{model_label(model)} ends at {curve.mean[-1]:.4f}" for model, curve in column.curves[FULL].items()]
    return f"{column.title}, validation loss above, training loss below: {', '.join(ends) or 'no complete run'}."


def _draw_column(column: Column, axes: Sequence[Axes], first: bool) -> None:
    if first:
        for axis, panel in zip(axes, PANELS, strict=True):
            axis.set_ylabel(f"{panel} loss (nats per token)")
    if not any(column.curves.values()):
        status = ", ".join(dict.fromkeys(text.partition(":")[0] for text in column.absent.values()))
        draw_absence(axes, ["; ".join(dict.fromkeys(column.absent.values())), status])
        return
    axes[0].sharex(axes[1])
    axes[0].tick_params(labelbottom=False)
    axes[1].set_xlabel("step (optimiser updates)")
    for axis, name in zip(axes, (SAMPLED, TRAIN), strict=True):
        for model, curve in column.curves[name].items():
            _draw_curve(axis, model, curve, window=window_of(curve) if name == TRAIN else 1)
        axis.margins(x=0.03)
    for model, curve in column.curves[FULL].items():
        shape, size = marker(model)
        line = axes[0].plot(curve.step, curve.mean, shape, color=LIGHT.model_colour(model), markersize=size, zorder=4)
        line[0].set(markeredgecolor=LIGHT.background, markeredgewidth=0.6)
    axes[0].set_ylim(*_limits([*column.curves[SAMPLED].values(), *column.curves[FULL].values()]))
    axes[1].set_ylim(*_limits(list(column.curves[TRAIN].values())))
    if column.absent:
        absent = {model_label(model): why.partition(":")[0] for model, why in column.absent.items()}
        text = ", ".join(f"{label} {status}" for label, status in absent.items())
        axes[0].text(0.98, 0.96, text, transform=axes[0].transAxes, ha="right", va="top", color=LIGHT.muted)


def _draw_curve(axis: Axes, model: str, curve: Curve, *, window: int) -> None:
    colour = LIGHT.model_colour(model)
    if curve.n > 1:
        low, high = moving_average(curve.low, window), moving_average(curve.high, window)
        axis.fill_between(curve.step, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.plot(curve.step, moving_average(curve.mean, window), color=colour, linestyle=line_style(model), linewidth=1.4)


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
