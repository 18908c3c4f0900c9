"""How every figure looks: one colour and one line style a model, a light and a dark theme, bytes that do not vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Line style as well as colour: rope and crope nearly coincide, and the dashes let the line below show through.
LINE_STYLES: dict[str, Any] = {"xpos": (0, (1, 1.2)), "rope": "-", "crope": (0, (4, 1.6))}
OTHER_LINE_STYLE: Any = (0, (3, 1, 1, 1))

# Shape and size in points: a small diamond lies visibly on a larger disc where two models end at the same loss.
MARKERS: dict[str, tuple[str, float]] = {"xpos": ("^", 5.5), "rope": ("o", 6.0), "crope": ("D", 3.6)}
OTHER_MARKER = ("s", 4.0)


@dataclass(frozen=True)
class Theme:
    """Colours of one background. The model colours keep their hue across themes; their lightness differs enough in
    greyscale and under red-green blindness (blue against orange, and a pale third)."""

    name: str
    background: str
    text: str
    muted: str
    grid: str
    models: dict[str, str]
    other: str

    def model_colour(self, model: str) -> str:
        return self.models.get(model, self.other)


LIGHT = Theme(
    name="light",
    background="#ffffff",
    text="#1c2128",
    muted="#66707c",
    grid="#e4e7eb",
    models={"xpos": "#3fa796", "rope": "#123f7c", "crope": "#c44c10"},
    other="#8a6bb1",
)
DARK = Theme(
    name="dark",
    background="#171b21",
    text="#e6e9ed",
    muted="#9aa4b0",
    grid="#2c333c",
    models={"xpos": "#2f7d70", "rope": "#9cc7ff", "crope": "#f08a4b"},
    other="#b79be0",
)


def rc_params(theme: Theme) -> dict[str, Any]:
    """Settings on top of matplotlib's defaults, so that a user's own matplotlibrc changes nothing."""
    return {
        "svg.hashsalt": "crope",  # element ids would be random otherwise
        "svg.fonttype": "path",  # the same picture where the font is not installed
        "font.family": "DejaVu Sans",  # ships with matplotlib
        "font.size": 8.5,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 8.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.8,
        "axes.edgecolor": theme.muted,
        "axes.labelcolor": theme.text,
        "axes.titlecolor": theme.text,
        "axes.facecolor": theme.background,
        "figure.facecolor": theme.background,
        "savefig.facecolor": theme.background,
        "text.color": theme.text,
        "text.parse_math": False,  # a `$` in a reason is a dollar sign
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.labelcolor": theme.text,
        "ytick.labelcolor": theme.text,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "axes.grid": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.7,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "path.simplify": True,
    }
