"""Every figure's bytes, colours and words."""

from __future__ import annotations

import io
import itertools
import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest

from crope.report import build_plots, style
from crope.report.figures import render_files, render_pictures
from crope.report.findings import find
from tests.report.conftest import make_run, read_source
from tests.report.page import decode

NAMES = ("fig4", "forest", "seeds", "parameters")


@pytest.fixture
def plots(runs_dir, cells):
    def plots(**unavailable: str) -> dict:
        found = find(read_source(runs_dir), cells, unavailable=unavailable, margin=0.02)
        return {plot.name: plot for plot in build_plots(found)}

    return plots


def pixels(png: bytes) -> set[str]:
    image = (matplotlib.image.imread(io.BytesIO(png)) * 255).round().astype(int)
    return {f"#{value:06x}" for value in np.unique(image[..., 0] << 16 | image[..., 1] << 8 | image[..., 2])}


def colours(svg: bytes) -> set[str]:
    return set(re.findall(rb"#[0-9a-f]{6}\b", svg))


def test_same_bytes_twice_whatever_matplotlib_was_set_to(whole_study, plots) -> None:
    first, second = plots(), plots()
    assert tuple(first) == NAMES
    for name in NAMES:
        files = render_files(first[name], scale="quick")
        assert set(files) == {f"{name}.svg", f"{name}.png"}
        with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.grid": False}):
            assert render_files(second[name], scale="quick") == files


@pytest.mark.parametrize("name", NAMES)
def test_files_are_sound_say_the_scale_and_hold_no_date(whole_study, plots, name: str) -> None:
    plot = plots()[name]
    files = render_files(plot, scale="quick")
    svg = files[f"{name}.svg"].decode("utf-8")
    ElementTree.fromstring(svg)
    for words in ("Scale: quick.", *(panel.title.split("\n")[0] for panel in plot.panels)):
        assert words in svg, words  # matplotlib keeps the words of outlined text as comments
    assert "dc:date" not in svg and "matplotlib.org" not in svg
    png = files[f"{name}.png"]
    assert png.startswith(b"\x89PNG") and b"tEXt" not in png and b"tIME" not in png


@pytest.mark.parametrize("name", ["fig4", "forest", "seeds"])
def test_a_model_has_its_colour_where_it_was_run_and_nowhere_else(runs_dir, plots, name: str) -> None:
    make_run(runs_dir, "crope", "ptb")
    make_run(runs_dir, "rope", "ptb", final=4.5)
    found = pixels(render_files(plots()[name], scale="quick", kinds=["png"])[f"{name}.png"])
    crope, rope, xpos = (style.LIGHT.models[model] for model in ("crope", "rope", "xpos"))
    assert crope in found and xpos not in found
    assert (rope in found) == (name != "forest")  # what is drawn there is a difference to RoPE


@pytest.mark.parametrize("reason", ["costs $5_000 and $6", "x" * 2000, "<script>"])
def test_a_reason_of_any_kind_is_drawn(plots, reason: str) -> None:
    for plot in plots(ptb=reason).values():
        svg = render_files(plot, scale="quick", kinds=["svg"])[f"{plot.name}.svg"].decode("utf-8")
        ElementTree.fromstring(svg)
        assert "missing" in svg or "no complete run" in svg


def test_pictures_are_the_panels_in_both_themes(whole_study, plots) -> None:
    for plot in plots().values():
        pictures = render_pictures(plot)
        assert [picture.text for picture in pictures] == [panel.text for panel in plot.panels]
        for picture in pictures:
            light, dark = decode(picture.light), decode(picture.dark)
            ElementTree.fromstring(dark)
            assert colours(light) <= {colour.encode() for colour in style.LIGHT.colours}
            assert colours(dark) <= {colour.encode() for colour in style.DARK.colours}
            assert style.DARK.background.encode() in dark and style.LIGHT.background.encode() not in dark


def lightness(colour: str) -> float:
    """CIE L* of an sRGB colour (IEC 61966-2-1), 0 black to 100 white: what a greyscale print keeps."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in matplotlib.colors.to_rgb(colour)]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


@pytest.mark.parametrize("theme", [style.LIGHT, style.DARK], ids=lambda theme: theme.name)
def test_models_and_parts_can_be_told_apart_in_greyscale_and_on_their_background(theme: style.Theme) -> None:
    shades = [lightness(colour) for colour in theme.models.values()]
    assert min(abs(a - b) for a, b in itertools.combinations(shades, 2)) > 10
    assert min(abs(shade - lightness(theme.background)) for shade in (*shades, *map(lightness, theme.others))) > 30
    parts = [lightness(colour) for colour in theme.parts.values()]
    assert min(abs(a - b) for a, b in itertools.pairwise(parts)) > 15  # neighbours in a bar
    for choices in (style.LINE_STYLES, style.MARKERS, style.DASHES):
        assert len({str(choices[model]) for model in theme.models}) == 3
    assert len(set(theme.colours)) == len(theme.colours)  # else no exchange of themes


def test_a_model_of_ones_own_looks_the_same_wherever_it_stands() -> None:
    assert style.LIGHT.model_colour("mine") == style.LIGHT.model_colour("mine") in style.LIGHT.others
    index = style.LIGHT.others.index(style.LIGHT.model_colour("mine"))
    assert style.DARK.model_colour("mine") == style.DARK.others[index]
    assert style.marker("mine") in style.OTHER_MARKERS and style.dash("mine") in style.OTHER_DASHES
