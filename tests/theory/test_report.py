"""`make theory`: its files, equal bytes twice, and what theory.md states."""

import json

import matplotlib
import pytest

from crope.style import render
from crope.theory.complex_maps import tied_entries
from crope.theory.figures import draw_entries, draw_function_space
from crope.theory.report import make_theory
from tests.conftest import contents


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of `make theory`."""
    folder = tmp_path_factory.mktemp("theory")
    make_theory(folder)
    return folder


def test_files_are_the_same_twice_whatever_matplotlib_was_set_to(folder, tmp_path):
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.grid": False}):
        make_theory(tmp_path)
    assert contents(folder) == contents(tmp_path)


def test_theory_md_shows_every_figure_and_states_its_numbers(folder):
    text = (folder / "theory.md").read_text(encoding="utf-8")
    for picture in folder.glob("*.svg"):
        assert f"({picture.name})" in text
    assert text.count(".svg)") == 4
    assert "0.974 of the peak at distance 1" in text


def test_pictures_and_data_stand_under_their_names(folder):
    """RoFormer's Fig. 2 has width 128 and 256 distances."""
    assert (folder / "fig1.svg").read_bytes() == render(draw_entries(tied_entries(6)))
    assert (folder / "fig2.svg").read_bytes() == render(draw_function_space())
    decay = json.loads((folder / "decay.json").read_text())
    assert decay["width"] == 128
    assert len(decay["distance"]) == 256
