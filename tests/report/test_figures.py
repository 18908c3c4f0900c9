"""What is drawn: frames, labels, colours and order; not each coordinate."""

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex

from crope.report import figures
from crope.report.page import TEMPLATE
from crope.style import COLOURS
from tests.report.frames import runs

SCHEDULE = {
    "config.train.max_steps": 10,
    "config.train.lr_step_size": 4,
}
TABLE1 = runs(crope=[5.1, 5.3, 5.8], rope=[5.0, 5.2, 5.7]).assign(**SCHEDULE)
LINE = {
    "dataset": "ptb",
    "by_seed": [0.0, 0.5],
    "mean": 0.25,
    "low": -0.5,
    "high": 1.0,
    "rate": 0.002,
    "n": 2,
}


def curves():
    """Steps 0, 5 and 10 of six runs, which end with the losses of TABLE1 in validation, with 1 nat
    less in training, with 0.5 more over the full split. Seed 1 has no full loss at step 5.
    """
    later = pd.DataFrame({"step": [0, 5, 10], "more": [4.0, 1.0, 0.0]})
    every = TABLE1.merge(later, how="cross")
    every["val/loss_nats"] = every["loss"] + every["more"]
    every["train/loss_nats"] = every["val/loss_nats"] - 1
    measured = (every["step"] != 5) | (every["seed"] != 1)
    every["val_full/loss_nats"] = (every["val/loss_nats"] + 0.5).where(measured)
    return every


def fig4():
    return figures.fig4(curves(), TABLE1)


def rates():
    """Two corpora at one rate."""
    other = LINE | {"dataset": "wikitext2", "mean": 0.5}
    return figures.rates(pd.DataFrame([LINE, other]))


def drawn(figure, panel, name):
    """The points of each line of this kind or of this model."""
    lines = figure.axes[panel].lines
    chosen = [line for line in lines if name in (line.get_gid(), line.get_label())]
    return [line.get_xydata().round(9).tolist() for line in chosen]


def test_mean_lowest_and_highest_seed_at_the_steps_that_every_seed_has():
    of_rope = curves().query("model == 'rope'")
    full = figures.over_seeds(of_rope, "val_full/loss_nats")
    assert full.loc[10, ["mean", "min", "max"]].round(9).tolist() == [5.8, 5.5, 6.2]
    assert list(full.index) == [0, 10]


def test_each_panel_of_fig_4_has_the_means_of_its_own_losses():
    """And the steps at which the rate drops. CRoPE is drawn last, over RoPE."""
    figure = fig4()
    assert drawn(figure, 0, "rope") == [[[0, 9.3], [5, 6.3], [10, 5.3]]]
    assert drawn(figure, 0, "crope") == [[[0, 9.4], [5, 6.4], [10, 5.4]]]
    assert drawn(figure, 1, "rope") == [[[0, 8.3], [5, 5.3], [10, 4.3]]]
    assert drawn(figure, 0, "full") == [[[0, 9.8], [10, 5.8]], [[0, 9.9], [10, 5.9]]]
    for panel in (0, 1):
        assert [line[0][0] for line in drawn(figure, panel, "drop")] == [4, 8]


def test_the_legend_has_each_models_own_colour():
    (legend,) = fig4().legends
    handles = zip(legend.get_texts(), legend.get_lines(), strict=True)
    colours = {text.get_text(): to_hex(line.get_color()) for text, line in handles}
    assert colours == {"RoPE": COLOURS["rope"], "CRoPE": COLOURS["crope"]}


def test_the_caption_names_the_panels_of_the_axes():
    assert "Validation (top) and training loss (bottom)" in TEMPLATE.read_text()
    labels = [axis.get_ylabel().split()[0] for axis in fig4().axes]
    assert labels == ["validation", "training"]


def test_rates_have_an_interval_each_and_their_seeds_in_the_legend():
    figure = rates()
    first, second = drawn(figure, 0, "interval")
    assert first == [[0.002, -0.5], [0.002, 1.0]]
    assert second == [[0.00216, -0.5], [0.00216, 1.0]]
    legend = figure.axes[0].get_legend().get_texts()
    assert [text.get_text() for text in legend] == [
        "Penn Treebank (seeds: 2)",
        "Wikitext-2 (seeds: 2)",
    ]


def forest():
    unit = {"group": "long", "n": 3, "mean": 0.01, "low": 0.0, "high": 0.02, "of_paper": np.nan}
    of_paper = {"label": "PG-19", "n": 1, "low": np.nan, "high": np.nan, "of_paper": -0.03}
    units = pd.DataFrame([unit | {"label": "ptb"}, unit | of_paper])
    pool = {"title": "long", "n": 4, "units": 2, "mean": 0.01, "low": 0.005, "high": 0.015}
    pool |= {"complete": True}
    best = pool | {"dataset": "", "n": 20, "mean": -0.001}
    best = pd.DataFrame([best, best | {"dataset": "ptb"}])
    widths = pd.DataFrame([unit | {"label": "D 64", "mean": -0.02}])
    return figures.forest(units, pd.DataFrame([pool, pool]), best, widths)


def test_a_forest_plot_has_units_pools_and_the_papers_differences_by_line():
    (axis,) = forest().axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "long: 4 pairs",
        "ptb (3)",
        "PG-19 (1)",
        "+0.010 (+0.005 to +0.015)",
        "All 2 settings: 4 pairs",
        "+0.010 (+0.005 to +0.015)",
        "Each model at its best rate: 20 seeds",
        "Penn Treebank, 3,200 steps, warm-up",
        "−0.001 (+0.005 to +0.015)",
        "Other widths, mean of two corpora",
        "D 64 (3)",
    ]
    assert drawn(forest(), 0, "unit") == [[[0.01, 1]], [[0.01, 2]], [[-0.001, 7]], [[-0.02, 10]]]
    assert drawn(forest(), 0, "paper")[1] == [[-0.03, 2]]
    diamonds = [shape.get_xy().tolist() for shape in axis.patches if shape.get_gid() == "pool"]
    assert diamonds[0][:3] == [[0.005, 3.0], [0.01, 2.6], [0.015, 3.0]]


def test_a_unit_without_an_interval_is_hollow():
    dots = [line for line in forest().axes[0].lines if line.get_gid() == "unit"]
    assert [dot.get_markerfacecolor() == "white" for dot in dots] == [False, True, False, False]


def test_own_curves_have_a_line_of_sampled_and_markers_of_full_losses_for_each_run():
    figure = figures.own_curves(curves(), TABLE1)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["crope-ptb-base", "rope-ptb-base"]
    assert drawn(figure, 0, labels[0])[0] == [[0, 9.6], [5, 6.6], [10, 5.6]]
    assert figure.axes[0].lines[0].get_xydata().round(9).tolist() == [[0, 9.1], [5, 6.1], [10, 5.1]]
    assert to_hex(figure.axes[0].lines[0].get_color()) == COLOURS["crope"]


def test_own_curves_of_two_sets_are_two_lines_and_every_name_is_in_the_legend():
    """Both sets have the run; matplotlib leaves out labels that begin with a line."""
    names = {"run_id": "_mine-ptb-base-s0-0", "model": "_mine", "dataset": "ptb"}
    names |= {"settings": [[], []]}
    both = pd.DataFrame(names | {"folder": ["a", "b"]})
    steps = pd.DataFrame({"step": [0, 5], "val/loss_nats": [9.0, 6.0], "val_full/loss_nats": 6.5})
    figure = figures.own_curves(both.merge(steps, how="cross"), both)
    lines = [line.get_xdata().tolist() for line in figure.axes[0].lines]
    assert lines == [[0, 5]] * 4
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["_mine-ptb-base"]


def test_the_lowest_model_is_on_top():
    lines = pd.DataFrame([LINE, LINE]).assign(model=["mqa", "thin_ffn"], mean=[0.5, -0.25])
    figure = figures.models(lines, "title")
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["thin FFN", "multi-query"]
    assert drawn(figure, 0, "mean") == [[[-0.25, 0]], [[0.5, 1]]]
    assert axis.yaxis_inverted()
