"""The studies as pictures: differences as forests, loss against length and position, loss against parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from crope.report.comparison_tables import format_nats, format_range
from crope.report.comparisons import COMPARED_AT, model_label, pair_label, paired
from crope.report.details import stored_parameters
from crope.report.figures import Panel, Plot, model_handles
from crope.report.forest import ForestPanel, ForestRow, plot_forest
from crope.report.models import SCHEMES
from crope.report.questions import MATCHED, PARITY, WIDE
from crope.report.stats import Difference, Spread, spread_over_seeds
from crope.report.studies import Row, Study
from crope.report.style import LIGHT, line_style, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONTROL_PAIRS = (
    *(("crope", model) for model in MATCHED), ("complex_misaligned", "crope"), PARITY, ("complex_qk", "rope"),
    ("complex_v", "rope"), WIDE,
)  # fmt: skip
LENGTH_NOTE = (
    "Left: the same tokens read in pieces of each length; right: by position in the longest pieces, from the trained"
    " length (dashed) on beyond what training has shown. Mean over seeds; bars: ± sample standard deviation over seeds."
)
SCALING_NOTE = (
    "Left: loss after the last step against all stored parameters, ± sample standard deviation over seeds. Right:"
    " difference to RoPE at equal width and seed with its 95 % t interval; dots: each seed; shaded: within the"
    " equivalence margin of ±{margin:g} nats."
)


def build_study_figures(studies: Sequence[Study], margin: float) -> list[Plot]:
    """One a study that was begun."""
    makers: dict[str, Callable[[Study, float], Plot]] = {
        "controls": _controls, "schemes": _schemes, "length": _length, "scaling": _scaling,
    }  # fmt: skip
    return [makers[study.name](study, margin) for study in studies if study.rows]


def _controls(study: Study, margin: float) -> Plot:
    panels = [_panel(row, {pair_label(*pair): pair for pair in CONTROL_PAIRS}) for row in study.rows]
    return plot_forest("controls", "Controls: complex structure, or half the weights", panels, margin=margin)


def _schemes(study: Study, margin: float) -> Plot:
    panels = [_panel(row, SCHEMES) for row in study.rows]
    return plot_forest("schemes", "Complex less real Q, K and V under every scheme", panels, margin=margin)


def _panel(row: Row, pairs: dict[str, tuple[str, str]]) -> ForestPanel:
    rows = []
    for label, (first, second) in pairs.items():
        found = [paired(row.results.get(first), row.results.get(second), at) for at in COMPARED_AT]
        rows.append(ForestRow(label, tuple(difference for difference, _ in found), reason=found[0][1]))
    return ForestPanel(row.label, "difference", "crope", rows)


def _length(study: Study, margin: float) -> Plot:
    """Two panels a text: by length, and by position."""
    panels = []
    for row in study.rows:
        by_length = "; ".join(
            f"{model_label(model)} "
            + ", ".join(f"{length}: {spread.mean_nats:.4f}" for length, spread in _spreads(row, model).items())
            for model in row.lengths
        )
        panels += [
            Panel(f"{row.label}: by length", f"{row.label}, loss by length. {by_length}.", partial(_draw_lengths, row)),
            Panel(
                f"{row.label}: by position",
                f"{row.label}, loss by position in the longest pieces, {', '.join(map(model_label, row.lengths))}.",
                partial(_draw_positions, row),
            ),
        ]
    models = [model for model in study.models if any(model in row.lengths for row in study.rows)]
    legend = partial(model_handles, models)
    return Plot("length", "Beyond the trained length", LENGTH_NOTE, tuple(panels), (4.6, 3.2), legend, per_row=2)


def _spreads(row: Row, model: str) -> dict[int, Spread]:
    found = row.lengths[model].losses
    return {length: spread_over_seeds(list(by_seed.values())) for length, by_seed in sorted(found.items())}


def _draw_lengths(row: Row, axes: Sequence[Axes], first: bool) -> None:
    axis = axes[0]
    for model in row.lengths:
        _draw_line(axis, model, {float(length): spread for length, spread in _spreads(row, model).items()})
    lengths = sorted({length for one in row.lengths.values() for length in one.lengths})
    axis.set_xscale("log", base=2)
    axis.set(xticks=lengths, xticklabels=[f"{length:,}" for length in lengths])
    axis.set_xlabel("length (tokens)")
    axis.set_ylabel("loss (nats per token)")


def _draw_positions(row: Row, axes: Sequence[Axes], first: bool) -> None:
    axis = axes[0]
    for model, one in row.lengths.items():
        shape, size = marker(model)
        axis.plot(list(one.positions), list(one.positions.values()), marker=shape, markersize=0.7 * size,
                  color=LIGHT.model_colour(model), linestyle=line_style(model), linewidth=1.3)  # fmt: skip
    for trained in {one.trained for one in row.lengths.values()}:
        axis.axvline(trained, color=LIGHT.muted, linewidth=0.9, linestyle="--", zorder=0)
    ends = [0, *sorted({length for one in row.lengths.values() for length in one.lengths})]
    axis.set(xticks=ends, xticklabels=[f"{end:,}" for end in ends])
    axis.set_xlabel("position (tokens)")
    axis.set_ylabel("loss (nats per token)")


def _draw_line(axis: Axes, model: str, points: dict[float, Spread]) -> None:
    """Means joined by a line, with a bar for each standard deviation."""
    colour, (shape, size) = LIGHT.model_colour(model), marker(model)
    means = [spread.mean_nats for spread in points.values()]
    axis.errorbar(list(points), means, yerr=[spread.std_nats or 0.0 for spread in points.values()], color=colour,
                  linestyle=line_style(model), linewidth=1.5, marker=shape, markersize=size, capsize=2,
                  elinewidth=0.9, markeredgecolor=LIGHT.background, markeredgewidth=0.5)  # fmt: skip


def _scaling(study: Study, margin: float) -> Plot:
    """Two panels a text: loss against parameters, and the differences to RoPE against width."""
    panels = []
    for name in dict.fromkeys(row.label for row in study.rows):
        rows = [row for row in study.rows if row.label == name]
        losses = {model: _by_parameters(rows, model) for model in study.models}
        found = {pair: _by_width(rows, pair) for pair in (PARITY, WIDE)}
        panels += [
            Panel(f"{name}: loss by size", _losses_in_words(name, losses), partial(_draw_losses, losses)),
            Panel(f"{name}: difference to RoPE", _gaps_in_words(name, found), partial(_draw_gaps, found, margin)),
        ]
    note = SCALING_NOTE.format(margin=margin)
    legend = partial(model_handles, study.models)
    return Plot("scaling", "Growing width at equal tokens", note, tuple(panels), (4.6, 3.2), legend, per_row=2)


def _by_parameters(rows: Sequence[Row], model: str) -> dict[float, Spread]:
    found = [row.results[model] for row in rows if model in row.results]
    return {float(stored_parameters(one.runs[0].summary).total): one.full for one in found if one.full}


def _by_width(rows: Sequence[Row], pair: tuple[str, str]) -> dict[int, Difference]:
    found = {row.width: paired(row.results.get(pair[0]), row.results.get(pair[1]), "final")[0] for row in rows}
    return {width: one for width, one in found.items() if one is not None}


def _draw_losses(losses: dict[str, dict[float, Spread]], axes: Sequence[Axes], first: bool) -> None:
    axis = axes[0]
    for model, points in losses.items():
        _draw_line(axis, model, points)
    axis.set_xscale("log")
    counts = list(losses.get("rope") or next(iter(losses.values())))
    axis.set_xticks(counts, [f"{count / 1e6:.2g}" for count in counts])
    axis.set_xticks([], minor=True)
    axis.set_xlabel("parameters (millions; marked at RoPE's)")
    axis.set_ylabel("loss (nats per token)")


def _draw_gaps(
    found: dict[tuple[str, str], dict[int, Difference]], margin: float, axes: Sequence[Axes], first: bool
) -> None:
    """Pairs stand a little apart at each width."""
    axis = axes[0]
    axis.axhspan(-margin, margin, color=LIGHT.margin, linewidth=0, zorder=0)
    axis.axhline(0.0, color=LIGHT.muted, linewidth=0.8, zorder=1)
    widths = sorted({width for by_width in found.values() for width in by_width})
    for index, (pair, by_width) in enumerate(found.items()):
        colour, (shape, size) = LIGHT.model_colour(pair[0]), marker(pair[0])
        for width, one in by_width.items():
            x = math.log2(width) + 0.12 * (index - 0.5)
            if one.low_nats is not None and one.high_nats is not None:
                axis.plot([x, x], [one.low_nats, one.high_nats], color=colour, linewidth=1.4, zorder=3)
            axis.plot([x] * one.n, one.values_nats, ".", color=LIGHT.text, markersize=2.8, zorder=5)
            axis.plot([x], [one.mean_nats], shape, color=colour, markersize=1.2 * size, zorder=4)
    axis.set(xticks=[math.log2(width) for width in widths], xticklabels=[str(width) for width in widths])
    axis.margins(x=0.12)
    axis.set_xlabel("width D")
    axis.set_ylabel("difference to RoPE (nats per token)")


def _losses_in_words(name: str, losses: dict[str, dict[float, Spread]]) -> str:
    cells = [
        f"{model_label(model)} " + (", ".join(f"{int(n):,}: {s.mean_nats:.4f}" for n, s in points.items()) or "no run")
        for model, points in losses.items()
    ]
    return f"{name}, loss by parameters. {'; '.join(cells)}."


def _gaps_in_words(name: str, found: dict[tuple[str, str], dict[int, Difference]]) -> str:
    cells = [
        f"{pair_label(*pair)} at D = {width} {format_nats(one.mean_nats)} {format_range(one.low_nats, one.high_nats)}"
        for pair, by_width in found.items()
        for width, one in by_width.items()
    ]
    return f"{name}, difference to RoPE by width. {'; '.join(cells) or 'no pair'}."
