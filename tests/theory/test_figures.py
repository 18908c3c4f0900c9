"""What the figures show: which curve, picture or panel stands below which name."""

import numpy as np
import pytest

from crope.theory.complex_maps import GLYPH, tied_entries
from crope.theory.figures import (
    draw_entries,
    draw_function_space,
)


def axis_of(figure, title):
    (found,) = [axis for axis in figure.axes if axis.get_title("left") == title]
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
