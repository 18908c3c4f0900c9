"""What the figures show: which curve, picture or panel stands below which name."""

import numpy as np
import pandas as pd
import pytest

from crope.style import COLOURS
from crope.theory.complex_maps import GLYPH, tied_entries
from crope.theory.figures import (
    draw_attention,
    draw_decay,
    draw_entries,
    draw_function_space,
    draw_recall,
)
from crope.theory.recall import Plan


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
    figure = draw_attention(
        {"rotary": 0.1 * constant, "absolute": 0.2 * constant},
        {"xpos": 0.3 * constant, "rope": 0.4 * constant, "crope": 0.5 * constant},
    )
    return figure.axes[:6]


def test_fig_3_shows_weights_below_their_models_names(panels):
    shown = {axis.get_title("left"): axis.images[0].get_array().min() for axis in panels}
    assert shown == {
        "ideal": 0.0,
        "rotary, by hand": 0.1,
        "absolute, by hand": 0.2,
        "XPOS, learned": 0.3,
        "RoPE, learned": 0.4,
        "CRoPE, learned": 0.5,
    }


def test_fig_3_frames_the_targets_of_its_pointers(panels):
    targets = [2, 5, 6, 8, 11, 11]
    assert panels[0].images[0].get_array().argmax(axis=1).tolist() == targets
    for axis in panels:
        assert axis.lines[0].get_xdata().tolist() == targets


def test_fig_3_names_tokens(panels):
    """Rows by kind and position; the columns stand below the lower panels."""
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


# Three seeds each, whose mean is not their median.
ACCURACIES = {
    "rope": (0.1, 0.2, 0.6),
    "crope": (0.2, 0.3, 0.7),
    "conjugate": (0.3, 0.4, 0.8),
    "halved": (0.0, 0.0, 0.0),
    "lowrank": (0.4, 0.5, 0.9),
}


@pytest.fixture(scope="module")
def recall():
    """Of 4 and 32 pairs, at head widths 14 and 16."""
    runs = pd.DataFrame(ACCURACIES).melt(var_name="model", value_name="accuracy_32")
    wide = runs.assign(width=16, accuracy_32=1.0)
    runs = pd.concat([runs.assign(width=14), wide]).assign(accuracy_4=0.0)
    return axis_of(draw_recall(runs, Plan(pairs=(4, 32))), "accuracy at 32 pairs")


@pytest.mark.parametrize(
    ("label", "mean", "look"),
    [
        ("RoPE", 0.3, "rope"),
        ("CRoPE", 0.4, "crope"),
        ("conjugate Q", 0.5, "relative_bias"),
        ("halved", 0.0, "nope"),
        ("low rank", 0.6, "alibi"),
    ],
)
def test_recall_shows_mean_accuracies_at_the_most_pairs(label, mean, look, recall):
    line = line_of(recall, label)
    assert dict(line.get_xydata()) == pytest.approx({14: mean, 16: 1.0})
    assert line.get_color() == COLOURS[look]


def test_the_band_of_recall_spans_all_seeds(recall):
    corners = recall.collections[0].get_paths()[0].vertices
    assert set(corners[corners[:, 0] == 14, 1]) == {0.1, 0.6}


def test_the_dashed_line_of_recall_is_the_level_of_its_plan(recall):
    assert recall.lines[-1].get_ydata() == [0.9, 0.9]
