"""What the figures show: which curve, picture or panel stands below which name."""

import numpy as np
import pytest

from crope.theory.complex_maps import GLYPH, tied_entries
from crope.theory.figures import (
    draw_attention,
    draw_decay,
    draw_entries,
    draw_function_space,
)


def axis_of(figure, title):
    (found,) = [axis for axis in figure.axes if axis.get_title("left") == title]
    return found


def line_of(axis, label):
    (found,) = [line for line in axis.lines if line.get_label() == label]
    return found


@pytest.mark.parametrize(
    ("title", "block"),
    [
        ("RoPE: 36 free numbers", ["w11", "w12", "w21", "w22"]),
        ("CRoPE: 18 free numbers", ["a11", "b11", "−b11", "a11"]),
    ],
)
def test_fig_1_names_equal_numbers_alike(title, block):
    """In the first 2x2 block (Eq. 30)."""
    axis = axis_of(draw_entries(tied_entries(6)), title)
    names = [text.get_text() for text in axis.texts]
    assert names[:2] + names[6:8] == block


X, Y = GLYPH.T


@pytest.mark.parametrize(
    ("title", "image", "kept"),
    [
        ("σ0: identity", (X, Y), 100),
        ("σ1: reflection about 45°", (Y, X), 0),
        ("σ2: rotation by 90°", (-Y, X), 100),
        ("σ3: reflection about x", (X, -Y), 0),
    ],
)
def test_fig_2_names_each_basis_below_what_it_does(title, image, kept):
    axis = axis_of(draw_function_space(), title)
    _, drawn = axis.patches
    assert drawn.get_xy()[:-1] == pytest.approx(np.stack(image, axis=1))
    assert axis.get_xlabel() == f"CRoPE keeps {kept} %"


@pytest.fixture(scope="module")
def panels():
    """Axes of Fig. 3; each has one weight everywhere."""
    constant = np.ones((12, 12))
    figure = draw_attention({"rotary": 0.1 * constant, "absolute": 0.2 * constant})
    return figure.axes[:3]


def test_fig_3_shows_weights_below_their_names(panels):
    shown = {axis.get_title("left"): axis.images[0].get_array().min() for axis in panels}
    assert shown == {
        "ideal": 0.0,
        "rotary, by hand": 0.1,
        "absolute, by hand": 0.2,
    }


def test_fig_3_frames_the_targets_of_its_pointers(panels):
    targets = [2, 5, 6, 8, 11, 11]
    assert panels[0].images[0].get_array().argmax(axis=1).tolist() == targets
    for axis in panels:
        assert axis.lines[0].get_xdata().tolist() == targets


def test_fig_3_names_tokens(panels):
    """Rows by kind and position."""
    rows = [tick.get_text() for tick in panels[0].get_yticklabels()]
    columns = [tick.get_text() for tick in panels[-1].get_xticklabels()]
    assert rows[:2] == ["next (1)", "nexnext (3)"]
    assert columns[:4] == ["word 1", "next", "word 2", "nexnext"]


def test_the_decay_figure_names_its_curves():
    data = {
        "width": 8,
        "distance": [0, 1],
        "bound": [10.0, 9.0],
        "kernel": [1.0, 0.5],
        "limit": [1.0, 0.7],
    }
    figure = draw_decay(data)
    bound = axis_of(figure, "relative upper bound, D = 8")
    score = axis_of(figure, "score of equal queries and keys")
    assert line_of(bound, "D = 8").get_ydata()[1] == 9.0
    assert line_of(score, "D = 8").get_ydata()[1] == 0.5
    assert line_of(score, "D → ∞").get_ydata()[1] == 0.7
