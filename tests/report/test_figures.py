"""What is drawn: frames, labels, colours and order; not each coordinate."""

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from crope.report import figures
from crope.report.page import TEMPLATE
from crope.style import COLOURS, render
from tests.report.frames import runs

SCHEDULE = {
    "config.train.max_steps": 10,
    "config.train.lr_step_size": 4,
    "config.train.lr": 0.002,
}
TABLE1 = runs(crope=[5.1, 5.3], rope=[5.0, 5.2]).assign(**SCHEDULE)
LINE = {
    "dataset": "ptb",
    "by_seed": [0.0, 0.5],
    "mean": 0.25,
    "low": -0.5,
    "high": 1.0,
    "setting": "train.lr=0.002",
}


def curves():
    """Steps 0, 5 and 10 of four runs. Seed 1 has no full loss at step 5."""
    later = pd.DataFrame({"step": [0, 5, 10], "more": [4.0, 1.0, 0.0]})
    every = TABLE1.merge(later, how="cross")
    every["val/loss_nats"] = every["train/loss_nats"] = every["loss"] + every["more"]
    measured = (every["step"] != 5) | (every["seed"] != 1)
    every["val_full/loss_nats"] = every["val/loss_nats"].where(measured)
    return every


def fig4():
    return figures.fig4(curves(), TABLE1)


def rates():
    return figures.rates(TABLE1, pd.DataFrame([LINE, LINE]))


def drawn(figure, panel, gid):
    """The points of each line of this kind."""
    lines = [line for line in figure.axes[panel].lines if line.get_gid() == gid]
    return [line.get_xydata().tolist() for line in lines]


def test_mean_lowest_and_highest_seed_at_the_steps_that_every_seed_has():
    of_rope = curves().query("model == 'rope'")
    sampled = figures.over_seeds(of_rope, "val/loss_nats")
    assert sampled.loc[10, ["mean", "min", "max"]].tolist() == [5.1, 5.0, 5.2]
    assert list(figures.over_seeds(of_rope, "val_full/loss_nats").index) == [0, 10]


def test_full_losses_and_rate_drops_are_marked():
    """CRoPE is drawn last, over RoPE."""
    figure = fig4()
    rope, crope = drawn(figure, 0, "full")
    assert rope == [[0, pytest.approx(9.1)], [10, pytest.approx(5.1)]]
    assert crope[1] == [10, pytest.approx(5.2)]
    for panel in (0, 1):
        assert [line[0][0] for line in drawn(figure, panel, "drop")] == [4, 8]


@pytest.mark.parametrize("figure", [fig4, rates])
def test_the_legend_has_each_models_own_colour(figure):
    (legend,) = figure().legends
    handles = zip(legend.get_texts(), legend.get_lines(), strict=True)
    colours = {text.get_text(): to_hex(line.get_color()) for text, line in handles}
    assert colours == {"RoPE": COLOURS["rope"], "CRoPE": COLOURS["crope"]}


def test_the_caption_names_the_panels_of_the_axes():
    assert "Validation (top) and training loss (bottom)" in TEMPLATE.read_text()
    labels = [axis.get_ylabel().split()[0] for axis in fig4().axes]
    assert labels == ["validation", "training"]


def test_an_interval_and_its_seeds_are_drawn_at_their_rate_or_beside_it():
    figure = rates()
    assert drawn(figure, 0, "seeds")[0] == [[0.002, 0.0], [0.002, 0.5]]
    first, second = drawn(figure, 0, "interval")
    assert first == [[0.002, -0.5], [0.002, 1.0]]
    assert second == [[pytest.approx(0.0023), -0.5], [pytest.approx(0.0023), 1.0]]


def test_the_lowest_model_is_on_top():
    lines = pd.DataFrame([LINE, LINE]).assign(model=["mqa", "thin_ffn"], mean=[0.5, -0.25])
    figure = figures.models(lines, "title")
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["thin FFN", "multi-query"]
    assert drawn(figure, 0, "mean") == [[[-0.25, 0]], [[0.5, 1]]]
    assert axis.yaxis_inverted()


def test_a_figure_has_the_same_bytes_twice():
    assert render(fig4()) == render(fig4())
