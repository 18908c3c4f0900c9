"""Figs. 1 to 3 as matplotlib Figures.

Each function draws data of its module and computes nothing: crope.theory.complex_maps (Figs. 1 and
2), constructions (Fig. 3).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from numpy.typing import NDArray

from crope.paper import MODEL_LABELS
from crope.style import COLOURS, MUTED, TEXT, new_figure
from crope.theory.complex_maps import GLYPH, MARKED, SIGMA, complex_fraction, plane_maps
from crope.theory.constructions import EXAMPLE

Data = Mapping[str, Any]

FRAME = COLOURS["learned"]  # what CRoPE cannot do, and targets of pointers
# Of Fig. 1. A number and its negative look nearly alike, because they are one free number.
SHADES = {"w": 0.15, "a": 0.15, "b": 0.4, "−b": 0.6}


def draw_entries(entries: Mapping[str, NDArray[np.str_]]) -> Figure:
    """Draws Fig. 1: the free numbers of a weight. Cells with the same letter and index are one
    number.
    """
    figure = new_figure(6.6, 3.3, **{"axes.grid": False})
    for axis, (model, names) in zip(figure.subplots(1, 2), entries.items(), strict=True):
        shades = np.zeros(names.shape)
        for (y, x), name in np.ndenumerate(names):
            shades[y, x] = SHADES[name[:-2]]  # without row and column
            axis.text(x + 0.5, y + 0.5, name, ha="center", va="center", fontsize=8)
        colours = LinearSegmentedColormap.from_list(model, ["white", COLOURS[model]])
        axis.pcolormesh(shades, cmap=colours, vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
        width = len(names)
        edges = range(0, width + 1, 2)  # of the 2x2 blocks of Eq. 30
        axis.hlines(edges, 0, width, color=MUTED, linewidth=0.8)
        axis.vlines(edges, 0, width, color=MUTED, linewidth=0.8)
        free = len(np.unique(np.char.lstrip(names, "−")))
        axis.set(title=f"{MODEL_LABELS[model]}: {free} free numbers", aspect="equal")
        axis.invert_yaxis()  # the first row on top, as a matrix is written
        axis.set_axis_off()
    return figure


def draw_function_space() -> Figure:
    """Draws Fig. 2: (a) a letter under the four bases; (b) what complex maps can do to it, and what
    they cannot. The dot is one corner of it.
    """
    figure = new_figure(7.6, 4.2, **{"hatch.linewidth": 0.6, "axes.titlesize": 8.5})
    axes = figure.subplots(2, 4, height_ratios=[2.3, 1.35])
    for axis, (name, matrix) in zip(axes.flat, (SIGMA | plane_maps()).items(), strict=True):
        kept = complex_fraction(matrix)
        corners = GLYPH @ matrix.T
        before = Polygon(GLYPH, fill=False, edgecolor=MUTED, linestyle=":")
        after = Polygon(corners, facecolor=COLOURS["crope"], edgecolor=TEXT, alpha=0.75)
        if kept < 0.999:  # it has a part that no complex map has
            after.set(facecolor=FRAME, hatch="////")
        axis.add_patch(before)
        axis.add_patch(after)
        axis.plot(*corners[MARKED], "o", color=TEXT, markersize=4)
        axis.set(title=name, xlabel=f"CRoPE keeps {100 * kept:.0f} %")
        # The maps of (b) leave the lower half empty.
        bottom = -1.15 if name in SIGMA else -0.15
        axis.set(xlim=(-1.15, 1.15), ylim=(bottom, 1.2), aspect="equal")
        # One line of the grid each way: it marks the origin.
        axis.set(xticks=[0], yticks=[0], xticklabels=[""], yticklabels=[""])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    return figure


def draw_attention(by_hand: Data) -> Figure:
    """Draws Fig. 3: attention of the pointers of EXAMPLE, ideal and set by hand; frames mark the
    targets.
    """
    pointers = {0: "next", 1: "nexnext"}
    rows = [row for row, token in enumerate(EXAMPLE) if token in pointers]
    targets = [row + EXAMPLE[row] + 1 for row in rows]
    panels = {"ideal": np.eye(len(EXAMPLE))[targets]}
    for name, weights in by_hand.items():
        panels[f"{name}, by hand"] = np.array(weights)[rows]
    names = [pointers.get(token, f"word {token - 1}") for token in EXAMPLE]
    shades = LinearSegmentedColormap.from_list("shades", ["white", TEXT])
    # Open squares around the targets; at the edge they reach out of the panel.
    frames = {"color": FRAME, "fillstyle": "none", "markersize": 13, "clip_on": False}
    figure = new_figure(9.0, 2.4, **{"axes.grid": False})
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    for axis, (title, weights) in zip(axes.flat, panels.items(), strict=True):
        image = axis.imshow(weights, cmap=shades, vmin=0, vmax=1)
        axis.plot(targets, range(len(rows)), "s", **frames)
        axis.set_title(title)
        axis.set_xticks(range(len(names)), names, rotation=90)
        axis.set_yticks(range(len(rows)), [f"{names[row]} ({row})" for row in rows])
    figure.colorbar(image, ax=axes, shrink=0.7, label="attention weight")
    return figure
