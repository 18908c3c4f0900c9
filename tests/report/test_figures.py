"""Curves against slow references; the picture's bytes, colours and words."""

from __future__ import annotations

import io
import itertools
import xml.etree.ElementTree as ElementTree

import matplotlib
import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest

from crope.report import style
from crope.report.figures import (
    FULL,
    SAMPLED,
    TRAIN,
    build_columns,
    describe_figure,
    mean_curve,
    moving_average,
    render_figure,
    window_of,
)
from crope.report.frame import resolve_cells


@pytest.fixture
def columns(read_sound, cells):
    return lambda unavailable=None: build_columns(resolve_cells(read_sound(), cells, unavailable=unavailable or {}))


def pixels(png: bytes) -> set[str]:
    image = (matplotlib.image.imread(io.BytesIO(png)) * 255).round().astype(int)
    return {f"#{value:06x}" for value in np.unique(image[..., 0] << 16 | image[..., 1] << 8 | image[..., 2])}


def test_mean_curve_by_hand() -> None:
    first = [{"step": 0, "x": 3.0}, {"step": 10, "y": 9.0}, {"step": 20, "x": 1.0}]
    second = [{"step": 0, "x": 5.0}, {"step": 20, "x": 2.0}, {"step": 40, "x": 7.0}]
    curve = mean_curve([first, second], "x")
    assert curve.step.tolist() == [0, 20]  # step 40 is not in both
    assert (curve.mean.tolist(), curve.low.tolist(), curve.high.tolist()) == ([4.0, 1.5], [3.0, 1.0], [5.0, 2.0])
    assert curve.n == 2
    assert mean_curve([first, second], "y") is None
    assert mean_curve([], "x") is None


@pytest.mark.parametrize("window", [1, 3, 7])
def test_moving_average_against_a_loop(window: int) -> None:
    values = np.array([5.0, 1.0, 4.0, 2.0, 8.0, 3.0, 9.0, 0.0])
    half = window // 2
    slow = [values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))]
    assert moving_average(values, window) == pytest.approx(slow)


def test_only_a_long_training_curve_is_smoothed_and_that_is_said(write_run, columns) -> None:
    write_run("crope", "ptb")
    short = columns()
    assert window_of(short[2].curves[TRAIN]["crope"]) == 1
    assert "moving average" not in describe_figure(short)
    long = mean_curve([[{"step": s, "x": 1.0} for s in range(1000)]], "x")
    assert window_of(long) == 21
    short[2].curves[TRAIN]["crope"] = long
    assert "moving average over 21 logged steps" in describe_figure(short)


def test_columns_are_the_datasets_and_hold_the_metrics(write_run, columns) -> None:
    write_run("crope", "ptb", seed=0, final=4.0, std=None)
    write_run("crope", "ptb", seed=1, final=4.5, std=None)
    found = columns({"pg19": "no network"})
    assert [column.title for column in found] == ["PG-19", "Wikitext-2", "Penn Treebank"]
    curves = found[2].curves
    assert curves[FULL]["crope"].mean.tolist() == [4.125, 4.25]  # at step 80, an eighth lower, and at the end
    assert curves[SAMPLED]["crope"].mean[[0, -1]].tolist() == [8.0, 4.25]
    assert curves[TRAIN]["crope"].mean[-1] == 4.0
    assert set(found[2].absent) == {"xpos", "rope"}
    assert found[0].absent["rope"] == "missing: PG-19: no network"
    assert "Mean over 2 seeds" in describe_figure(found)


def test_same_bytes_twice_whatever_matplotlib_was_set_to(whole_study, columns) -> None:
    for file_format in ("svg", "png"):
        first = render_figure(columns(), scale="quick", file_format=file_format)
        with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.grid": False}):
            assert render_figure(columns(), scale="quick", file_format=file_format) == first


def test_svg_names_scale_and_datasets_and_no_date(whole_study, columns) -> None:
    text = render_figure(columns(), scale="quick", file_format="svg").decode("utf-8")
    ElementTree.fromstring(text)
    for words in (
        "scale: quick",
        "PG-19",
        "Wikitext-2",
        "Penn Treebank",
        "nats per token",
        "band: lowest to highest seed",
    ):
        assert words in text, words  # matplotlib keeps the words of outlined text as comments
    assert "dc:date" not in text and "matplotlib.org" not in text


def test_png_shows_each_models_colour_and_no_other(write_run, columns) -> None:
    write_run("crope", "ptb")
    write_run("rope", "ptb", final=4.5)
    png = render_figure(columns(), scale="quick", file_format="png")
    assert png.startswith(b"\x89PNG") and b"tEXt" not in png
    found = pixels(png)
    assert {style.LIGHT.models["crope"], style.LIGHT.models["rope"]} <= found
    assert style.LIGHT.models["xpos"] not in found


@pytest.mark.parametrize("reason", ["costs $5_000 and $6", "x" * 2000, "<script>"])
def test_a_reason_of_any_kind_is_drawn(columns, reason: str) -> None:
    text = render_figure(columns({"ptb": reason}), scale="quick", file_format="svg").decode("utf-8")
    ElementTree.fromstring(text)
    assert "missing" in text


def lightness(colour: str) -> float:
    """CIE L* of an sRGB colour (IEC 61966-2-1), 0 black to 100 white: what a greyscale print keeps."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in matplotlib.colors.to_rgb(colour)]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


@pytest.mark.parametrize("theme", [style.LIGHT, style.DARK], ids=lambda theme: theme.name)
def test_models_can_be_told_apart_in_greyscale_and_on_their_background(theme: style.Theme) -> None:
    shades = [lightness(colour) for colour in theme.models.values()]
    assert min(abs(a - b) for a, b in itertools.combinations(shades, 2)) > 10
    assert min(abs(shade - lightness(theme.background)) for shade in shades) > 35
    for choices in (style.LINE_STYLES, style.MARKERS):
        assert len({str(choices[model]) for model in theme.models}) == 3
