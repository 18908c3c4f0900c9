"""A figure is a grid of panels: files that hold all of them, and one picture a panel for the page.

What is drawn and said comes from the modules that build a Plot; how it looks is in style.py. The same plot gives the
same bytes.
"""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from crope.report.comparisons import model_label
from crope.report.style import LIGHT, darken, line_style, marker, rc_params

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("svg", "png")
LETTER = 0.085  # inches of an average letter of a title


@dataclass(frozen=True)
class Panel:
    """`draw` fills its axes, given from the top down, and is told whether it stands at the left of the grid.

    `text` says what it shows to those who cannot see it.
    """

    title: str
    text: str
    draw: Callable[[Sequence[Axes], bool], None]


@dataclass(frozen=True)
class Plot:
    """`size` is that of a panel in inches; `legend` makes its entries; `note` says what is drawn."""

    name: str
    title: str
    note: str
    panels: tuple[Panel, ...]
    size: tuple[float, float]
    legend: Callable[[], Sequence[Artist]]
    per_row: int = 3
    axes_per_panel: int = 1


@dataclass(frozen=True)
class Picture:
    """One panel as data URIs of the two themes."""

    text: str
    light: str
    dark: str


def render_files(plot: Plot, *, scale: str, kinds: Sequence[str] = KINDS) -> dict[str, bytes]:
    """File name -> bytes; every file says the scale."""
    with _settings():
        figure = _draw(plot, heading=f"{plot.title}. Scale: {scale}.")
        return {f"{plot.name}.{kind}": _save(figure, kind) for kind in kinds}


def render_pictures(plot: Plot) -> list[Picture]:
    """The panels one by one, without title and note, which the page has as text."""
    with _settings():
        svgs = [_save(_draw(replace(plot, panels=(panel,)), heading=""), "svg") for panel in plot.panels]
    return [
        Picture(panel.text, data_uri(svg), data_uri(darken(svg))) for panel, svg in zip(plot.panels, svgs, strict=True)
    ]


@contextmanager
def _settings() -> Iterator[None]:
    import matplotlib

    settings: Any = rc_params(LIGHT)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield


def _draw(plot: Plot, *, heading: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(plot.per_row, len(plot.panels))
    rows = -(-len(plot.panels) // columns)
    width = max(plot.size[0] * columns, LETTER * len(heading) + 1.5 if heading else 0.0)  # a legend beside the title
    # Title and note take what they need beside the panels.
    note = textwrap.fill(plot.note, int(16 * width)) if heading else ""
    height = plot.size[1] * rows + (0.5 + 0.14 * note.count("\n") if heading else 0.0)
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows * plot.axes_per_panel, columns, squeeze=False)
    for index, panel in enumerate(plot.panels):
        row, column = divmod(index, columns)
        axes = list(grid[row * plot.axes_per_panel : (row + 1) * plot.axes_per_panel, column])
        axes[0].set_title(panel.title)
        panel.draw(axes, column == 0)
    for index in range(len(plot.panels), rows * columns):
        for axis in grid[(rows - 1) * plot.axes_per_panel :, index % columns]:
            axis.remove()
    handles = list(plot.legend())
    if handles:
        columns = _legend_columns([str(handle.get_label()) for handle in handles], width, heading)
        figure.legend(handles=handles, loc="outside upper right", ncols=columns, handlelength=2.4)
    if heading:
        figure.suptitle(heading, x=0.01, ha="left", fontsize=11)
        figure.supxlabel(note, x=0.01, ha="left", fontsize=7.5, color=LIGHT.muted)
    return figure


def _legend_columns(labels: Sequence[str], width: float, heading: str) -> int:
    """How many entries stand beside each other: what fits beside the heading, in lines of about equal length."""
    most = max(1, int(width / (0.5 + 0.065 * max(map(len, labels)))))
    lines = math.ceil(sum(0.5 + 0.075 * len(label) for label in labels) / max(1.0, width - LETTER * len(heading)))
    return min(most, math.ceil(len(labels) / lines))


def _save(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # Date and program version would make the bytes depend on the day and the installation.
    metadata: dict[str, Any] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[kind]
    figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    figure.set_layout_engine("none")  # the next format keeps the places that were worked out for the first
    return _shorten(buffer.getvalue()) if kind == "svg" else buffer.getvalue()


def _shorten(svg: bytes) -> bytes:
    """Paths to a hundredth of a point instead of a millionth: half the size for curves of a thousand steps."""
    return re.sub(rb' d="[^"]*"', lambda path: re.sub(rb"(\.\d\d)\d+", rb"\1", path[0]), svg)


def data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")


def model_handles(models: Sequence[str], *, lines: bool = True) -> list[Artist]:
    """Legend entries: colour, marker and, where curves are drawn, line style."""
    from matplotlib.lines import Line2D

    handles: list[Artist] = []
    for model in models:
        shape, size = marker(model)
        style: Any = line_style(model) if lines else "none"
        line = Line2D([], [], color=LIGHT.model_colour(model), linestyle=style, linewidth=1.8, label=model_label(model))
        line.set(marker=shape, markersize=size, markeredgecolor=LIGHT.background, markeredgewidth=0.6)
        handles.append(line)
    return handles


def draw_absence(axes: Sequence[Axes], texts: Sequence[str]) -> None:
    """Empty frames, each with a text that says why."""
    for axis, text in zip(axes, texts, strict=True):
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set_color(LIGHT.grid)
            spine.set_visible(True)
        shown = textwrap.fill(textwrap.shorten(text, 300), 36)
        axis.text(0.5, 0.5, shown, transform=axis.transAxes, ha="center", va="center", color=LIGHT.muted, fontsize=8)
