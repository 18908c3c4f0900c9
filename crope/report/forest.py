"""Paired differences as a forest plot: a line a table row, a panel a pair of models, the declared margin shaded."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from crope import paper
from crope.report.comparison_tables import format_nats, format_range
from crope.report.comparisons import COMPARED_AT, REFERENCE, Comparison, pair_label
from crope.report.figures import Panel, Plot
from crope.report.frame import DATASET_LABELS
from crope.report.stats import MIN_SEEDS, Difference
from crope.report.style import LIGHT, marker

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

APART = 0.17  # final above the middle of its line, best below, in lines
NOTE = (
    "Filled: loss after the last step; open: at its lowest. Bars: 95 % t intervals of the mean over paired seeds;"
    f" where there is none, fewer than {MIN_SEEDS} seeds. Dots: each seed.",
    "Shaded: within the equivalence margin of ±{margin:g} nats.",
)
CROSSES = "Crosses: difference of the means that the paper prints."


@dataclass(frozen=True)
class ForestRow:
    """One line: a difference at each measure of COMPARED_AT (None: there is none, for `reason`), and the paper's."""

    label: str
    differences: tuple[Difference | None, ...]
    printed_nats: float | None = None
    reason: str = ""

    @property
    def text(self) -> str:
        parts = [
            f"{at} {format_nats(found.mean_nats)}"
            + (f" (95 % {format_range(found.low_nats, found.high_nats)})" if found.low_nats is not None else "")
            for at, found in zip(COMPARED_AT, self.differences, strict=True)
            if found is not None
        ]
        return f"{' '.join(self.label.split())}: {', '.join(parts) or self.reason}"


@dataclass(frozen=True)
class ForestPanel:
    """`model` gives colour and shape, `axis` names the difference."""

    title: str
    axis: str
    model: str
    rows: Sequence[ForestRow]


def build_forest(comparisons: Sequence[Comparison]) -> Plot:
    """Every pair with the reference model, at the final and at the best loss."""
    pairs = dict.fromkeys((one.first, one.second) for one in comparisons if one.second == REFERENCE)
    panels = [pair_panel(pair, _pair_rows(comparisons, pair)) for pair in pairs]
    return plot_forest("forest", "Paired differences", panels, margin=comparisons[0].margin_nats)


def pair_panel(pair: tuple[str, str], rows: Sequence[ForestRow]) -> ForestPanel:
    """The panel of a pair of models (first - second)."""
    return ForestPanel(pair_label(*pair), pair_label(*pair), pair[0], rows)


def plot_forest(name: str, title: str, panels: Sequence[ForestPanel], *, margin: float) -> Plot:
    most = max(len(panel.rows) for panel in panels)
    printed = any(row.printed_nats is not None for panel in panels for row in panel.rows)
    drawn = tuple(
        Panel(
            panel.title,
            f"{panel.title}, nats per token. {'; '.join(row.text for row in panel.rows)}.",
            partial(_draw_rows, panel, margin),
        )
        for panel in panels
    )
    note = " ".join([*NOTE[:-1], *([CROSSES] if printed else []), NOTE[-1].format(margin=margin)])
    size = (4.6, 1.0 + 0.42 * most)
    return Plot(name, title, note, drawn, size, partial(_legend, printed=printed), per_row=2)


def _pair_rows(comparisons: Sequence[Comparison], pair: tuple[str, str]) -> list[ForestRow]:
    found: dict[tuple[str, str], dict[str, Comparison]] = {}
    for one in comparisons:
        if (one.first, one.second) == pair:
            found.setdefault((one.dataset, one.row), {})[one.at] = one
    return [
        ForestRow(
            label=forest_label(*key),
            differences=tuple(by_measure[at].difference for at in COMPARED_AT),
            printed_nats=by_measure["final"].printed_nats,
            reason=by_measure["final"].reason,
        )
        for key, by_measure in found.items()
    ]


def forest_label(dataset: str, row: str) -> str:
    """Two lines for a row of Table 2."""
    label = DATASET_LABELS.get(dataset, dataset)
    return label if row == "base" else textwrap.fill(f"{label}, {paper.row_label(row)}", 28)


def _draw_rows(panel: ForestPanel, margin: float, axes: Sequence[Axes], first: bool) -> None:
    axis, rows = axes[0], panel.rows
    colour, (shape, _) = LIGHT.model_colour(panel.model), marker(panel.model)
    axis.axvspan(-margin, margin, color=LIGHT.margin, linewidth=0, zorder=0)
    axis.axvline(0.0, color=LIGHT.muted, linewidth=0.8, zorder=1)
    for index, row in enumerate(rows):
        for found, place, filled in zip(row.differences, (-APART, APART), (True, False), strict=True):
            y = index + place
            if found is None:
                continue
            if found.low_nats is not None and found.high_nats is not None:
                axis.plot([found.low_nats, found.high_nats], [y, y], color=colour, linewidth=1.4, zorder=3)
            axis.plot(found.values_nats, [y] * found.n, ".", color=LIGHT.text, markersize=2.8, zorder=5)
            face = colour if filled else LIGHT.background
            axis.plot([found.mean_nats], [y], shape, color=colour, markerfacecolor=face, markersize=5.5, zorder=4)
        if row.printed_nats is not None:
            axis.plot([row.printed_nats], [index], "x", color=LIGHT.text, markersize=5, zorder=6)
        if not any(row.differences):
            axis.text(0.98, index + 0.3, row.reason, transform=axis.get_yaxis_transform(), ha="right", va="center",
                      color=LIGHT.muted, fontsize=7.5)  # fmt: skip
    axis.set(yticks=range(len(rows)), ylim=(len(rows) - 0.5, -0.5))
    axis.set_yticklabels([row.label for row in rows] if first else [])
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")
    axis.locator_params(axis="x", nbins=6)  # more would run into each other where the numbers have three digits
    axis.set_xlabel(f"{panel.axis} (nats per token)")


def _legend(*, printed: bool) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    common: dict[str, Any] = {"linestyle": "none", "color": LIGHT.text}
    cross = [Line2D([], [], marker="x", markersize=5, label="paper", **common)]
    return [
        Line2D([], [], marker="o", markersize=5.5, label="final", **common),
        Line2D([], [], marker="o", markersize=5.5, markerfacecolor=LIGHT.background, label="best", **common),
        Line2D([], [], marker=".", markersize=4, label="a seed", **common),
        *(cross if printed else []),
        Patch(facecolor=LIGHT.margin, label="margin"),
    ]
