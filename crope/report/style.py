"""How every figure looks: one colour, line and marker a model, a light and a dark theme, bytes that do not vary."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, fields
from typing import Any

# Line style as well as colour: rope and crope nearly coincide, and the dashes let the line below show through.
LINE_STYLES: dict[str, Any] = {"xpos": (0, (1, 1.2)), "rope": "-", "crope": (0, (4, 1.6))}
OTHER_LINE_STYLES: tuple[Any, ...] = ((0, (3, 1, 1, 1)), (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1)), "-")

# The nearest that plotly draws, for the curves on the page.
DASHES = {"xpos": "dot", "rope": "solid", "crope": "dash"}
OTHER_DASHES = ("dashdot", "longdash", "longdashdot", "solid")

# Shape and size in points: a small diamond lies visibly on a larger disc where two models end at the same loss.
MARKERS: dict[str, tuple[str, float]] = {"xpos": ("^", 5.5), "rope": ("o", 6.0), "crope": ("D", 3.6)}
OTHER_MARKERS = (("s", 4.0), ("v", 5.0), ("P", 5.0), ("X", 5.0), ("h", 5.0))

# Where a model that is not the paper's stands among the others, so that the schemes of one figure look different.
OTHER_PLACES = {"learned": 0, "relative_bias": 1, "alibi": 2, "nope": 3, "complex_wide": 1}

HATCHES = {"output_projection": "////"}  # it stands between two colours of like lightness


@dataclass(frozen=True)
class Theme:
    """Colours of one background. The model colours keep their hue across themes; their lightness differs enough in
    greyscale and under red-green blindness (blue against orange, and a pale third). No colour stands for two things,
    so that a picture of one theme becomes one of the other by exchanging them.
    """

    name: str
    background: str
    text: str
    muted: str
    grid: str
    margin: str  # the band of differences that are held to be none
    models: dict[str, str]
    others: tuple[str, ...]  # models that are not the paper's
    parts: dict[str, str]  # of a model's parameters

    @property
    def other(self) -> str:
        return self.others[0]

    def model_colour(self, model: str) -> str:
        return self.models.get(model) or _pick(self.others, model)

    @property
    def colours(self) -> list[str]:
        """All of them, in an order that is the same for every theme."""
        found: list[str] = []
        for value in (getattr(self, field.name) for field in fields(self) if field.name != "name"):
            found += value.values() if isinstance(value, dict) else [value] if isinstance(value, str) else value
        return found


LIGHT = Theme(
    name="light",
    background="#ffffff",
    text="#1c2128",
    muted="#66707c",
    grid="#e4e7eb",
    margin="#f3e9cf",
    models={"xpos": "#3fa796", "rope": "#123f7c", "crope": "#c44c10"},
    others=("#8a6bb1", "#a3195b", "#6b7a1c", "#2f8fc4", "#8c6239", "#3d3d3d"),
    parts={
        "qkv": "#6a3d9a", "output_projection": "#c9b3dc", "ffn": "#56686e", "norms": "#8fa6ad", "embeddings": "#e6dcc3",
    },
)  # fmt: skip
DARK = Theme(
    name="dark",
    background="#171b21",
    text="#e6e9ed",
    muted="#9aa4b0",
    grid="#2c333c",
    margin="#3b3524",
    models={"xpos": "#359584", "rope": "#9cc7ff", "crope": "#f08a4b"},
    others=("#b79be0", "#e0699f", "#a9b84a", "#5fb3e3", "#c99b6b", "#c9ced4"),
    parts={
        "qkv": "#b48ae0", "output_projection": "#6d5688", "ffn": "#8ea3aa", "norms": "#66787e", "embeddings": "#4f492f",
    },
)  # fmt: skip


def line_style(model: str) -> Any:
    return LINE_STYLES.get(model) or _pick(OTHER_LINE_STYLES, model)


def marker(model: str) -> tuple[str, float]:
    return MARKERS.get(model) or _pick(OTHER_MARKERS, model)


def dash(model: str) -> str:
    return DASHES.get(model) or _pick(OTHER_DASHES, model)


def _pick(choices: tuple[Any, ...], model: str) -> Any:
    """By the name alone: a model looks the same whichever others stand beside it."""
    return choices[OTHER_PLACES.get(model, zlib.crc32(model.encode())) % len(choices)]


def darken(svg: bytes) -> bytes:
    """A picture drawn in LIGHT with the colours of DARK."""
    exchanged = dict(zip(LIGHT.colours, DARK.colours, strict=True))
    text = re.sub(r"#[0-9a-f]{6}\b", lambda found: exchanged.get(found[0], found[0]), svg.decode("utf-8"))
    return text.encode("utf-8")


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
        "hatch.linewidth": 0.6,
        "path.simplify": True,
    }
