"""The theory section's curves, drawn from the JSON of `make theory`: kernel, decay, pointer task, complex shares.

Each draw_* function takes a figure, the data of one file of results/theory and a theme; `render_theory` makes bytes of
it, the same for the same data.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from crope import paper
from crope.report.style import LINE_STYLES, MARKERS, Theme, rc_params

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Data = Mapping[str, Any]
Draw = Callable[["Figure", Data, Theme], None]

SHARE_TITLES = {
    "layer": "Q, K and V, best J of a layer",
    "queries_keys": "Q and K, best J of a layer",
    "values": "V, under the J of Q and K",
}
STYLES: tuple[tuple[Any, str], ...] = (("-", "o"), ((0, (4, 1.6)), "s"), ((0, (1, 1.2)), "^"), ((0, (5, 1, 1, 1)), "D"))


def render_theory(draw: Draw, data: Data, *, size: tuple[float, float], file_format: str, theme: Theme) -> bytes:
    """The figure's file, svg or png, `size` in inches. Whatever matplotlib was set to before changes nothing."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = rc_params(theme)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, data, theme)
        buffer = io.BytesIO()
        metadata: dict[str, Any] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[file_format]
        figure.savefig(buffer, format=file_format, dpi=200, metadata=metadata)
    return buffer.getvalue()


def draw_pointer_task(figure: Figure, data: Data, theme: Theme) -> None:
    """Accuracy and weight against the length of the text: mean over seeds, band from lowest to highest."""
    lengths = data["task"]["lengths"]
    for axis, (measure, label) in zip(
        figure.subplots(1, 2, sharey=True),
        {"accuracy": "accuracy", "weight": "weight on the target"}.items(),
        strict=True,
    ):
        axis.set_title(label)
        for model in dict.fromkeys(run["model"] for run in data["runs"]):
            values = np.array(
                [[run["by_length"][str(n)][measure] for n in lengths] for run in data["runs"] if run["model"] == model]
            )
            colour, (marker, size) = theme.model_colour(model), MARKERS[model]
            axis.fill_between(lengths, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
            line = axis.plot(lengths, values.mean(0), color=colour, linestyle=LINE_STYLES[model], marker=marker)[0]
            line.set(markersize=size, label=paper.MODEL_LABELS[model])
        _mark_training(axis, data["task"]["seq_len"], theme)
        _log_ticks(axis, 2, lengths)
        axis.set(xlabel="tokens in the text", ylim=(-0.03, 1.05))
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, handlelength=3)


def draw_kernel(figure: Figure, data: Data, theme: Theme) -> None:
    """What Eqs. 21, 23 and 28 call a delta function, and the weight that misses the target by width and by gain."""
    axes = figure.subplots(1, 3)
    kernel, (by_width, by_gain) = data["kernel"], (data["missed_by_width"], data["missed_by_gain"])
    curves = [(f"D = {width}", values) for width, values in sorted(kernel["by_width"].items(), key=_as_number)]
    curves += [("D → ∞", kernel["limit"]), ("δ, as printed", [1.0] + [0.0] * (len(kernel["limit"]) - 1))]
    _draw_lines(axes[0], [(label, kernel["distance"], values) for label, values in curves], theme, markers=False)
    axes[0].set(title="score over its peak", xlabel="distance from the target (tokens)")
    _draw_lines(axes[1], [(label, by_width["widths"], by_width[label]) for label in ("scores", "scores / √D")], theme)
    _log_ticks(axes[1], 2, by_width["widths"][::2])
    axes[1].set(title="missed weight by width", xlabel="D")
    _draw_lines(axes[2], [(f"scores / √D, D = {by_gain['width']}", by_gain["gains"], by_gain["scores / √D"])], theme)
    _log_ticks(axes[2], 10, [1, 10, 100, 1000])
    axes[2].set(title="missed weight by gain", xlabel="gain of the queries")
    axes[0].legend(loc="lower right", bbox_to_anchor=(1.02, 0.04), ncols=2, columnspacing=1)
    axes[1].legend(loc="lower left")
    axes[2].legend(loc="upper right")
    for axis in axes:
        axis.set_ylim(-0.03, 1.05)


def draw_decay(figure: Figure, data: Data, theme: Theme) -> None:
    """RoFormer's Fig. 2 and, beside it, the score of equal queries and keys, which the bound is about."""
    left, right = figure.subplots(1, 2)
    _draw_lines(left, [("", data["distance"], data["bound"])], theme, markers=False)
    curves = [(f"D = {data['width']}", data["distance"], data["kernel"]), ("D → ∞", data["distance"], data["limit"])]
    _draw_lines(right, curves, theme, markers=False)
    left.set(title=f"relative upper bound, D = {data['width']}", ylim=(0, None))
    right.set(title="score of equal queries and keys", ylabel="share of its peak", ylim=(0, 1.05))
    right.legend(loc="upper right")
    for axis in (left, right):
        axis.set_xlabel("relative distance (tokens)")


def draw_complex_share(figure: Figure, data: Data, theme: Theme) -> None:
    """Shares of trained maps against their own random turns; CRoPE's own, 1 by construction, are left to the table."""
    runs = [run for run in data["runs"] if run["model"] != "crope"]
    groups = sorted({(run["model"], run["dataset"]) for run in runs}, key=paper_order)
    for axis, (measure, title) in zip(figure.subplots(1, 3), SHARE_TITLES.items(), strict=True):
        axis.set_title(title, fontsize=9)
        gaussian = data["gaussian"]["shares"][measure]
        axis.axhspan(gaussian["low"], gaussian["high"], color=theme.grid, label="Gaussian maps (range)", zorder=0)
        for x, group in enumerate(groups):
            chosen = [run for run in runs if (run["model"], run["dataset"]) == group]
            colour, (marker, size) = theme.model_colour(group[0]), MARKERS[group[0]]
            for shift, run in zip(
                np.linspace(-0.2, 0.2, len(chosen)) if len(chosen) > 1 else [0.0], chosen, strict=True
            ):
                null = run["turned"][measure]
                axis.plot([x + shift] * 2, [null["low"], null["high"]], color=theme.muted, linewidth=4, alpha=0.6)
                axis.plot(
                    x + shift, run["before"][measure], marker=marker, color=colour, markersize=size, fillstyle="none"
                )
                axis.plot(x + shift, run["after"][measure], marker=marker, color=colour, markersize=size)
        axis.set_xticks(range(len(groups)), [_group_label(group) for group in groups], fontsize=6.5)
        axis.margins(x=0.08, y=0.1)
    figure.axes[0].set_ylabel("complex share of the energy")
    _share_legend(figure, theme)


def _mark_training(axis: Axes, seq_len: int, theme: Theme) -> None:
    axis.axvline(seq_len, color=theme.muted, linewidth=0.9, linestyle=(0, (2, 2)))
    axis.text(seq_len * 1.05, 0.02, f"trained at {seq_len}", color=theme.muted, fontsize=7.5)


def _draw_lines(axis: Axes, curves: Sequence[tuple[str, Any, Any]], theme: Theme, *, markers: bool = True) -> None:
    """(label, x, y) each in a shade and line style of its own, none a model's."""
    shades = (theme.text, theme.muted, theme.other, theme.text)
    for (label, x, y), colour, (style, marker) in zip(curves, shades, STYLES, strict=False):
        line = axis.plot(x, y, color=colour, linestyle=style, linewidth=1.3, label=label)[0]
        line.set(marker=marker if markers else "none", markersize=3.5)


def _as_number(item: tuple[str, Any]) -> int:
    return int(item[0])


def _log_ticks(axis: Axes, base: int, ticks: Sequence[int]) -> None:
    axis.set_xscale("log", base=base)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()


def paper_order(group: tuple[str, str]) -> tuple[int, int]:
    """Models and datasets as in Table 1, others after them."""
    orders = (list(paper.MODEL_LABELS), list(paper.DATASET_LABELS))
    model, dataset = (
        order.index(name) if name in order else len(order) for name, order in zip(group, orders, strict=True)
    )
    return model, dataset


def _group_label(group: tuple[str, str]) -> str:
    dataset = {"ptb": "PTB"}.get(group[1], paper.DATASET_LABELS.get(group[1], group[1]))
    return f"{paper.MODEL_LABELS.get(group[0], group[0])}\n{dataset}"


def _share_legend(figure: Figure, theme: Theme) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Line2D([], [], color=theme.text, marker="o", linestyle="none", fillstyle="none", label="before training"),
        Line2D([], [], color=theme.text, marker="o", linestyle="none", label="after"),
        Line2D([], [], color=theme.muted, linewidth=4, alpha=0.6, label="after, heads turned at random (range)"),
        Patch(color=theme.grid, label="Gaussian maps (range)"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=4)
