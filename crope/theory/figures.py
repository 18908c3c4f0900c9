"""Figs. 1 to 3, RoFormer's decay and the recall experiment as matplotlib Figures.

Each function draws data of its module and computes nothing: crope.theory.complex_maps (Figs. 1 and
2), constructions and pointer_task (Fig. 3), rotary (decay), recall.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from numpy.typing import ArrayLike

from crope.paper import MODEL_LABELS
from crope.style import COLOURS, LINES, MARKERS, MUTED, TEXT, new_figure
from crope.theory.pointer_task import EXAMPLE, targets
from crope.theory.recall import LABELS

Data = Mapping[str, Any]

FRAME = COLOURS["learned"]  # what CRoPE cannot do, and targets of pointers
# Models of the recall experiment that no other figure has look like one of another figure.
LOOKS = {
    "rope": "rope",
    "crope": "crope",
    "conjugate": "relative_bias",
    "halved": "nope",
    "lowrank": "alibi",
}


def draw_entries(entries: Data) -> Figure:
    """Fig. 1: the free numbers of a weight. Cells with the same letter and index are one number."""
    figure = new_figure(6.6, 3.3, **{"axes.grid": False})
    for axis, model in zip(figure.subplots(1, 2), ("rope", "crope"), strict=True):
        weight = np.array(entries[model])
        free, width = len(np.unique(np.abs(weight))), len(weight)
        letters = "w" if model == "rope" else "ab"
        block = len(letters)  # side of the square of entries with one index
        shades = np.full(weight.shape, 0.15)
        for (y, x), entry in np.ndenumerate(weight):
            letter = letters[(abs(entry) - 1) * len(letters) // free]
            if letter == "b":
                shades[y, x] = 0.4 if entry > 0 else 0.6
            sign = "−" if entry < 0 else ""
            label = f"{sign}{letter}{y // block + 1}{x // block + 1}"
            axis.text(x + 0.5, y + 0.5, label, ha="center", va="center", fontsize=8)
        colours = LinearSegmentedColormap.from_list(model, ["white", COLOURS[model]])
        axis.pcolormesh(shades, cmap=colours, vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
        edges = range(0, width + 1, 2)  # of the 2x2 blocks of Eq. 30
        axis.hlines(edges, 0, width, color=MUTED, linewidth=0.8)
        axis.vlines(edges, 0, width, color=MUTED, linewidth=0.8)
        axis.set(title=f"{MODEL_LABELS[model]}: {free} free numbers", aspect="equal")
        axis.invert_yaxis()  # the first row on top, as a matrix is written
        axis.set_axis_off()
    return figure


def draw_function_space(data: Data) -> Figure:
    """Fig. 2: (a) a letter under the four bases; (b) what complex maps can do to it, and what they
    cannot. The dot is one corner of it.
    """
    figure = new_figure(7.6, 4.2, **{"hatch.linewidth": 0.6, "axes.titlesize": 8.5})
    axes = figure.subplots(2, 4, height_ratios=[2.3, 1.35])
    pictures = data["bases"] | data["maps"]
    for axis, (name, picture) in zip(axes.flat, pictures.items(), strict=True):
        image = Polygon(picture["image"], facecolor=COLOURS["crope"], edgecolor=TEXT, alpha=0.75)
        if picture["fraction"] < 0.999:  # it has a part that no complex map has
            image.set(facecolor=FRAME, hatch="////")
        axis.add_patch(Polygon(data["glyph"], fill=False, edgecolor=MUTED, linestyle=":"))
        axis.add_patch(image)
        axis.plot(*picture["marked"], "o", color=TEXT, markersize=4)
        axis.set(title=name, xlabel=f"CRoPE keeps {100 * picture['fraction']:.0f} %")
        axis.set(xlim=(-1.15, 1.15), xticks=[0], yticks=[0], xticklabels=[], yticklabels=[])
        axis.set(ylim=(-1.15 if name in data["bases"] else -0.15, 1.2), aspect="equal")
        axis.tick_params(length=0)  # the grid marks the origin
        axis.spines[:].set_visible(False)
    return figure


def draw_attention(by_hand: Data, learned: Data) -> Figure:
    """Fig. 3: attention of the pointers of EXAMPLE, ideal, set by hand and learned (six panels);
    frames mark the targets.
    """
    target_BT, asked_BT = targets(torch.tensor([EXAMPLE]))
    rows = asked_BT[0].nonzero().flatten()
    panels: dict[str, ArrayLike] = {"ideal": np.eye(len(EXAMPLE))[target_BT[0]]}
    for name, weights in by_hand.items():
        panels[f"{name}, by hand"] = weights
    for model, label in MODEL_LABELS.items():
        panels[f"{label}, learned"] = learned[model]
    words = ["next", "nexnext", *(f"word {number}" for number in range(1, max(EXAMPLE)))]
    names = [words[token] for token in EXAMPLE]
    shades = LinearSegmentedColormap.from_list("shades", ["white", TEXT])
    figure = new_figure(9.0, 4.3, **{"axes.grid": False})
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for axis, (title, weights) in zip(axes.flat, panels.items(), strict=True):
        image = axis.imshow(np.array(weights)[rows], cmap=shades, vmin=0, vmax=1, aspect="equal")
        frames = {"color": FRAME, "fillstyle": "none", "markersize": 13, "clip_on": False}
        axis.plot(target_BT[0, rows], range(len(rows)), "s", **frames)
        axis.set_title(title)
        axis.set_xticks(range(len(names)), names, rotation=90)
        axis.set_yticks(range(len(rows)), [f"{names[row]} ({row})" for row in rows])
    figure.colorbar(image, ax=axes, shrink=0.7, label="attention weight")
    return figure


def draw_decay(data: Data) -> Figure:
    """RoFormer's Fig. 2 (left) and the score of equal queries and keys, which the bound is about
    (right).
    """
    figure = new_figure(7.6, 2.9)
    left, right = figure.subplots(1, 2)
    width = f"D = {data['width']}"
    left.plot(data["distance"], data["bound"], color=TEXT, label=width)
    right.plot(data["distance"], data["kernel"], color=TEXT, label=width)
    right.plot(data["distance"], data["limit"], color=MUTED, linestyle="--", label="D → ∞")
    left.set(title=f"relative upper bound, {width}", ylim=(0, None))
    right.set(title="score of equal queries and keys", ylim=(0, 1.05))
    right.set_ylabel("fraction of its peak")
    right.legend(loc="upper right")
    for axis in (left, right):
        axis.set_xlabel("relative distance (tokens)")
    return figure


def draw_recall(
    runs: pd.DataFrame, by_pairs: Mapping[int, pd.DataFrame], *, level: float
) -> Figure:
    """Accuracy at the most pairs by head width (mean, band from lowest to highest seed), and the
    head width for `level` by the number of pairs (median, lowest to highest).
    """
    figure = new_figure(7.6, 3.6)
    left, right = figure.subplots(1, 2)
    most = max(by_pairs)
    for model, look in LOOKS.items():
        colour = COLOURS[look]
        # CRoPE's dashes and open markers show RoPE's wide line below them.
        style: dict[str, Any] = {"linestyle": LINES.get(look, "-"), "marker": MARKERS[look]}
        style |= {"linewidth": 4, "alpha": 0.4} if model == "rope" else {}
        style |= {"color": colour, "markersize": 5, "markerfacecolor": "none"}
        of_model = runs[runs["model"] == model].groupby("width")[f"accuracy_{most}"]
        seeds = of_model.agg(["mean", "min", "max"])
        left.plot(seeds.index, seeds["mean"], label=LABELS[model], **style)
        left.fill_between(seeds.index, seeds["min"], seeds["max"], color=colour, alpha=0.15)
        widths = pd.DataFrame({pairs: table[model] for pairs, table in by_pairs.items()})
        inside = widths.where(np.isfinite(widths) & (widths > 0))  # others lie outside the grid
        right.plot(inside.columns, inside.median(), **style)
        right.vlines(inside.columns, inside.min(), inside.max(), color=colour)
    left.axhline(level, color=MUTED, linewidth=0.8, linestyle="--")
    left.set(title=f"accuracy at {most} pairs", xlabel="head width", ylim=(0, 1.02))
    right.set(title=f"head width for {100 * level:.0f} %", xlabel="pairs stored")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    _log_ticks(left, sorted(runs["width"].unique()))
    _log_ticks(right, by_pairs)
    return figure


def _log_ticks(axis: Axes, values: Iterable[int]) -> None:
    """Ticks at the values, but for those whose labels would touch the one before."""
    ticks: list[int] = []
    for value in values:
        if not ticks or value >= 1.2 * ticks[-1]:
            ticks.append(value)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xticks([], minor=True)
