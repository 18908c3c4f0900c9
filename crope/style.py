"""The look of all figures: each main model has one colour, marker and line style; bytes depend on
the figure only.
"""

import io
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

TEXT, MUTED = "#1c2128", "#66707c"
COLOURS = {
    "xpos": "#3fa796",
    "rope": "#123f7c",
    "crope": "#c44c10",
    "learned": "#8a6bb1",
    "relative_bias": "#a3195b",
    "alibi": "#6b7a1c",
    "nope": "#2f8fc4",
}
MARKERS = {"xpos": "^", "rope": "o", "crope": "D", "relative_bias": "v", "alibi": "s", "nope": "P"}
# Line style as well as colour: RoPE and CRoPE nearly coincide, and the dashes let the line below
# show through.
LINES: dict[str, Any] = {
    "xpos": (0, (1, 1.2)),
    "crope": (0, (4, 1.6)),
    "relative_bias": (0, (3, 1, 1, 1)),
}
STYLE = Path(__file__).with_name("style.mplstyle")


def new_figure(width: float, height: float, **style: Any) -> Figure:
    """Makes an empty figure (inches) in this style and `style`; ignores the user's matplotlibrc."""
    # "default" first: STYLE does not set everything that a matplotlibrc can.
    matplotlib.style.use(["default", STYLE, style])
    return Figure(figsize=(width, height), layout="constrained")


def render(figure: Figure, kind: str = "svg") -> bytes:
    """Returns SVG or PNG without a date: the same figure gives the same bytes."""
    out = io.BytesIO()
    # The canvas itself, because `savefig` would draw every figure twice.
    if kind == "svg":
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    else:
        figure.set_dpi(120)
        FigureCanvasAgg(figure).print_png(out, metadata={"Software": None})
    figure.set_layout_engine("none")  # the next format has the same layout
    return out.getvalue()
