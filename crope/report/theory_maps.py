"""Figs. 1 to 3 of the paper, drawn from the JSON of `make theory`: tied weights, maps of the plane, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crope import paper
from crope.report.style import Theme
from crope.report.theory_figures import Data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASE_NAMES = ("identity", "reflection about 45°", "turn by 90°", "reflection about x")
KEPT_BASES = (0, 2)
MAP_NAMES = {
    "complex": "a complex map",
    "mirrored": "a reflection",
    "mixed": "a real map",
    "kept": "its complex part",
}
TOKEN_NAMES = ("next", "nexnext")


def draw_entries(figure: Figure, data: Data, theme: Theme) -> None:
    """Fig. 1: the free numbers of a weight. One letter and index a number; equal cells are one number."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    for axis, model in zip(figure.subplots(1, 2), ("rope", "crope"), strict=True):
        rows = data["entries"][model]
        width = len(rows)
        free = len({abs(entry) for row in rows for entry in row})
        axis.set_title(f"{paper.MODEL_LABELS[model]}: {free} free numbers")
        colour, ground = np.array(to_rgb(theme.model_colour(model))), np.array(to_rgb(theme.background))
        for y, row in enumerate(rows):
            for x, entry in enumerate(row):
                second = model == "crope" and abs(entry) > free // 2
                mix = 0.42 if second else 0.15
                cell = Rectangle((x, y), 1, 1, facecolor=tuple(mix * colour + (1 - mix) * ground))
                cell.set(edgecolor=theme.background, linewidth=1.5, hatch="////" if entry < 0 else None)
                axis.add_patch(cell)
                name = (
                    _entry_name("b" if second else "a", (x // 2, y // 2))
                    if model == "crope"
                    else _entry_name("w", (x, y))
                )
                label = axis.text(x + 0.5, y + 0.5, f"−{name}" if entry < 0 else name, ha="center", va="center")
                label.set(fontsize=8, color=theme.text)
        for edge in range(0, width + 1, 2):
            axis.plot([0, width], [edge, edge], [edge, edge], [0, width], color=theme.muted, linewidth=0.8)
        axis.set(xlim=(0, width), ylim=(width, 0), aspect="equal")
        axis.set_axis_off()


def draw_function_space(figure: Figure, data: Data, theme: Theme) -> None:
    """Fig. 2: (a) a letter under the four bases; (b) what complex maps can do to it, and what they cannot."""
    axes = figure.subplots(2, 4, gridspec_kw={"height_ratios": [2.3, 1.35]})
    for index, (axis, picture) in enumerate(zip(axes[0], data["bases"], strict=True)):
        kept = index in KEPT_BASES
        axis.set_title(f"{picture['name']}: {BASE_NAMES[index]}", fontsize=8.5)
        _draw_glyph(axis, data, picture, theme, kept=kept, bottom=-1.15)
        axis.set_xlabel("kept by CRoPE" if kept else "lost")
    for axis, picture in zip(axes[1], data["maps"], strict=True):
        axis.set_title(MAP_NAMES[picture["name"]], fontsize=8.5)
        marked = picture["name"] in ("complex", "mirrored")
        _draw_glyph(axis, data, picture, theme, kept=picture["share"] > 0.999, bottom=-0.15, marked=marked)
        axis.set_xlabel(f"complex share {picture['share']:.2f}")


def draw_attention(figure: Figure, data: Data, theme: Theme) -> None:
    """Fig. 3: attention of one sequence's pointers, a panel of `data["panels"]` each; a frame marks the target."""
    from matplotlib.colors import LinearSegmentedColormap

    tokens = data["tokens"]
    names = [TOKEN_NAMES[token] if token < 2 else f"word {token - 1}" for token in tokens]
    rows = [m for m, token in enumerate(tokens) if token < 2 and m + token + 1 < len(tokens)]
    shades = LinearSegmentedColormap.from_list("shades", [theme.background, theme.text])
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    image = None
    for axis, (title, weights) in zip(axes.flat, data["panels"].items(), strict=True):
        axis.set_title(title, fontsize=9)
        image = axis.imshow(np.array(weights)[rows], cmap=shades, vmin=0, vmax=1, aspect="equal")
        for y, m in enumerate(rows):
            x = m + tokens[m] + 1
            axis.plot(np.array([-1, 1, 1, -1, -1]) * 0.46 + x, np.array([-1, -1, 1, 1, -1]) * 0.46 + y,
                      color=theme.other, linewidth=1.3)  # fmt: skip
        axis.set_xticks(range(len(tokens)), names, rotation=90)
        axis.set_yticks(range(len(rows)), [f"{names[m]} ({m})" for m in rows])
        axis.grid(False)
    assert image is not None
    figure.colorbar(image, ax=axes, shrink=0.7, label="attention weight")


def _draw_glyph(
    axis: Axes, data: Data, picture: Data, theme: Theme, *, kept: bool, bottom: float, marked: bool = False
) -> None:
    from matplotlib.patches import Polygon

    colour = theme.models["crope"] if kept else theme.other
    axis.add_patch(Polygon(data["glyph"], closed=True, fill=False, edgecolor=theme.muted, linestyle=(0, (2, 1.5))))
    image = Polygon(picture["image"], closed=True, facecolor=colour, edgecolor=theme.text, alpha=0.75)
    if not kept:
        image.set_hatch("////")
    axis.add_patch(image)
    if marked:
        x, y = picture["image"][data["marked"]]
        axis.plot(x, y, "o", color=theme.text, markersize=5)
    axis.set(xlim=(-1.15, 1.15), ylim=(bottom, 1.2), aspect="equal", xticks=[], yticks=[])
    axis.axhline(0, color=theme.grid, linewidth=0.8, zorder=0)
    axis.axvline(0, color=theme.grid, linewidth=0.8, zorder=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _entry_name(letter: str, at: tuple[int, int]) -> str:
    return f"{letter}{at[1] + 1}{at[0] + 1}"
