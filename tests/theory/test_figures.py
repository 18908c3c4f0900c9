"""What the figures show: which curve, picture or panel stands below which name."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crope.style import COLOURS
from crope.theory.complex_maps import GLYPH, function_space, tied_entries
from crope.theory.figures import (
    draw_attention,
    draw_decay,
    draw_entries,
    draw_function_space,
    draw_recall,
)


def axis_of(figure: Figure, title: str) -> Axes:
    (found,) = [axis for axis in figure.axes if axis.get_title("left") == title]
    return found


def line_of(axis: Axes, label: str) -> dict[float, float]:
    """y by x."""
    (found,) = [line for line in axis.lines if line.get_label() == label]
    return dict(zip(*found.get_data(), strict=True))


@pytest.mark.parametrize(
    ("title", "block"),
    [
        ("RoPE: 36 free numbers", ["w11", "w12", "w21", "w22"]),
        ("CRoPE: 18 free numbers", ["a11", "b11", "−b11", "a11"]),
    ],
)
def test_fig_1_names_equal_numbers_alike(title: str, block: list[str]) -> None:
    """In the first 2x2 block (Eq. 30)."""
    names = [text.get_text() for text in axis_of(draw_entries(tied_entries(6)), title).texts]
    assert [names[0], names[1], names[6], names[7]] == block


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
def test_fig_2_names_each_basis_below_what_it_does(
    title: str, image: tuple[np.ndarray, np.ndarray], kept: int
) -> None:
    axis = axis_of(draw_function_space(function_space()), title)
    _, drawn = axis.patches
    assert drawn.get_xy()[:-1] == pytest.approx(np.stack(image, axis=1))
    assert axis.get_xlabel() == f"CRoPE keeps {kept} %"


def test_fig_3_shows_weights_below_their_models_names_and_frames_the_targets() -> None:
    """Of the 6 pointers among EXAMPLE's tokens."""
    of_model = {"xpos": 0.2, "rope": 0.3, "crope": 0.4}
    learned = {model: np.full((12, 12), weight) for model, weight in of_model.items()}
    by_hand = {"rotary": np.full((12, 12), 0.1)}
    by_hand["absolute"] = np.zeros((12, 12))
    shown = {}
    for axis in draw_attention(by_hand, learned).axes[:6]:
        shown[axis.get_title("left")] = np.array(axis.images[0].get_array())
        assert list(axis.lines[0].get_xdata()) == [2, 5, 6, 8, 11, 11]
    assert shown["ideal"].argmax(axis=1).tolist() == [2, 5, 6, 8, 11, 11]
    assert shown["rotary, by hand"][0, 0] == 0.1
    assert shown["XPOS, learned"][0, 0] == 0.2
    assert shown["RoPE, learned"][0, 0] == 0.3
    assert shown["CRoPE, learned"][0, 0] == 0.4


def test_the_decay_figure_names_its_curves() -> None:
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
    assert line_of(bound, "D = 8") == {0: 10.0, 1: 9.0}
    assert line_of(score, "D = 8") == {0: 1.0, 1: 0.5}
    assert line_of(score, "D → ∞") == {0: 1.0, 1: 0.7}


# Of the models, at both widths: three seeds whose mean is not their median.
ACCURACIES = {
    "rope": (0.1, 0.2, 0.6),
    "crope": (0.2, 0.3, 0.7),
    "conjugate": (0.3, 0.4, 0.8),
    "halved": (0.0, 0.0, 0.0),
    "lowrank": (0.4, 0.5, 0.9),
}


@pytest.fixture(scope="module")
def recall_figure() -> Figure:
    rows = []
    for model, accuracies in ACCURACIES.items():
        for accuracy in accuracies:
            rows += [(model, 14, accuracy), (model, 16, accuracy)]
    runs = pd.DataFrame(rows, columns=["model", "width", "accuracy_32"])
    few = pd.DataFrame({model: [5.0, 6.0, 10.0] for model in ACCURACIES})
    many = pd.DataFrame({model: [7.0, 8.0, np.inf] for model in ACCURACIES})
    many["rope"] = [0.0, 9.0, 9.5]
    return draw_recall(runs, {4: few, 32: many}, level=0.9)


def test_recall_shows_mean_accuracies_at_the_most_pairs(recall_figure: Figure) -> None:
    left = axis_of(recall_figure, "accuracy at 32 pairs")
    assert line_of(left, "RoPE") == pytest.approx({14: 0.3, 16: 0.3})
    assert line_of(left, "CRoPE")[14] == pytest.approx(0.4)
    assert line_of(left, "conjugate Q")[14] == pytest.approx(0.5)
    assert line_of(left, "halved")[14] == 0
    assert line_of(left, "low rank")[14] == pytest.approx(0.6)


def test_recall_shows_median_widths_inside_the_grid(recall_figure: Figure) -> None:
    right = axis_of(recall_figure, "head width for 90 %")
    lines = [dict(zip(*line.get_data(), strict=True)) for line in right.lines]
    assert lines[0] == {4: 6.0, 32: 9.25}  # RoPE: one seed lies below the grid
    assert lines[1] == {4: 6.0, 32: 7.5}  # CRoPE: one lies above


def test_one_legend_serves_both_panels(recall_figure: Figure) -> None:
    (legend,) = recall_figure.legends
    colours = [line.get_color() for line in legend.get_lines()]
    assert [text.get_text() for text in legend.get_texts()][:2] == ["RoPE", "CRoPE"]
    assert colours[:2] == [COLOURS["rope"], COLOURS["crope"]]
    assert len(colours) == 5


def test_crope_does_not_hide_rope(recall_figure: Figure) -> None:
    rope, crope = axis_of(recall_figure, "accuracy at 32 pairs").lines[:2]
    assert rope.get_linewidth() > 2 * crope.get_linewidth()
    assert crope.is_dashed()


def test_labels_of_ticks_do_not_touch(recall_figure: Figure) -> None:
    left = axis_of(recall_figure, "accuracy at 32 pairs")
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["14"]
