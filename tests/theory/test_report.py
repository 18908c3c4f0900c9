"""`make theory`: its files, equal bytes twice, and what theory.md states."""

import matplotlib
import pytest

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
    assert text.count(".svg)") == 3
    assert "0.974 of the peak at distance 1" in text
