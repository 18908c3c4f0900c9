"""Every seed of every cell as a dot: what the means and their ± leave out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from crope.report.comparisons import model_label, read_losses, rows_by_model
from crope.report.figures import Panel, Plot, draw_absence, model_handles
from crope.report.forest import forest_label
from crope.report.frame import CellResult
from crope.report.style import LIGHT, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = "Full validation loss after the last step. Grey lines join runs of equal seed; bars are means over seeds."


def build_seeds_figure(results: Sequence[CellResult]) -> Plot:
    """A panel a table row, a column a model."""
    rows = rows_by_model(results)
    models = dict.fromkeys(model for row in rows.values() for model, result in row.items() if result.n)
    panels = []
    for key, row in rows.items():
        losses = {model: read_losses(result, "final") for model, result in row.items()}
        panels.append(Panel(forest_label(*key), _in_words(forest_label(*key), losses), partial(_draw_row, row, losses)))
    return Plot(
        name="seeds",
        title="Every seed",
        note=NOTE,
        panels=tuple(panels),
        size=(3.6, 2.9),
        legend=lambda: model_handles(list(models), lines=False),
    )


def _in_words(label: str, losses: dict[str, dict[int, float]]) -> str:
    cells = [
        f"{model_label(model)}: {', '.join(f'{loss:.4f}' for loss in by_seed.values()) or 'no run'}"
        for model, by_seed in losses.items()
    ]
    return f"{' '.join(label.split())}, final loss of each seed in nats per token. {'; '.join(cells)}."


def _draw_row(
    row: dict[str, CellResult], losses: dict[str, dict[int, float]], axes: Sequence[Axes], first: bool
) -> None:
    axis = axes[0]
    if not any(losses.values()):
        draw_absence(axes, ["; ".join(dict.fromkeys(f"{found.status}: {found.reason}" for found in row.values()))])
        return
    places = dict(zip(losses, range(len(losses)), strict=True))
    for seed in sorted({seed for by_seed in losses.values() for seed in by_seed}):
        points = [(places[model], by_seed[seed]) for model, by_seed in losses.items() if seed in by_seed]
        axis.plot(*zip(*points, strict=True), color=LIGHT.muted, linewidth=0.6, alpha=0.6, zorder=1)
    for model, by_seed in losses.items():
        colour, (shape, size) = LIGHT.model_colour(model), marker(model)
        values = list(by_seed.values())
        axis.plot([places[model]] * len(values), values, shape, color=colour, markersize=size, alpha=0.8, zorder=3)
        if values:
            axis.hlines(fmean(values), places[model] - 0.22, places[model] + 0.22, color=colour, linewidth=2, zorder=2)
        else:
            axis.text(places[model], 0.5, row[model].status, transform=axis.get_xaxis_transform(), ha="center",
                      color=LIGHT.muted, fontsize=7.5)  # fmt: skip
    axis.set(xticks=list(places.values()), xticklabels=[model_label(model) for model in places])
    axis.set_xlim(-0.5, len(places) - 0.5)
    axis.grid(False, axis="x")
    if first:
        axis.set_ylabel("final loss (nats per token)")
