"""What is drawn: frames, labels, colours and order; not each coordinate."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from crope.report import figures
from crope.report.page import TEMPLATE
from crope.style import COLOURS, render
from tests.report.frames import runs

SCHEDULE = {"config.train.max_steps": 10, "config.train.lr_step_size": 4}
TABLE1 = runs(crope=[5.1, 5.3], rope=[5.0, 5.2], columns=SCHEDULE)


def curves() -> pd.DataFrame:
    """Steps 0, 5 and 10 of four runs; seed 1 has no full loss at step 5."""
    lines = []
    for run in TABLE1.to_dict("records"):
        for step, loss in ((0, 9.0), (5, run["loss"] + 1), (10, run["loss"])):
            full = np.nan if step == 0 or (step, run["seed"]) == (5, 1) else loss
            line = {"step": step, "val/loss_nats": loss, "train/loss_nats": loss - 1}
            names = {name: run[name] for name in ("model", "dataset", "row", "seed")}
            lines.append(line | names | {"val_full/loss_nats": full})
    return pd.DataFrame(lines)


LINE = {"by_seed": [0.0, 0.5], "mean": 0.25, "low": -0.5, "high": 1.0, "setting": "train.lr=0.002"}


def fig4() -> Figure:
    return figures.fig4(curves(), TABLE1)


def rates() -> Figure:
    at_rate = TABLE1.assign(**{"config.train.lr": 0.002})
    return figures.rates(at_rate, pd.DataFrame([LINE]))


def models() -> Figure:
    lines = [LINE | {"model": "mqa", "mean": 0.5}, LINE | {"model": "thin_ffn", "mean": -0.25}]
    return figures.models(pd.DataFrame(lines), "title")


def drawn(axis: Axes, gid: str) -> list:
    return [line for line in axis.lines if line.get_gid() == gid]


def test_mean_lowest_and_highest_seed_where_every_seed_was_logged() -> None:
    of_rope = curves().query("model == 'rope'")
    sampled = figures.over_seeds(of_rope, "val/loss_nats")
    assert sampled.loc[10, ["mean", "min", "max"]].tolist() == [5.1, 5.0, 5.2]
    assert figures.over_seeds(of_rope, "val_full/loss_nats").index.tolist() == [10]


def test_crope_is_drawn_over_rope() -> None:
    top = fig4().axes[0]
    labels = [line.get_label() for line in top.lines if not str(line.get_label()).startswith("_")]
    assert labels == ["rope", "crope"]


def test_the_full_losses_are_marked() -> None:
    crope = drawn(fig4().axes[0], "full")[1]
    assert crope.get_xydata().tolist() == [[10, pytest.approx(5.2)]]


def test_the_rate_drops_are_marked() -> None:
    for axis in fig4().axes:
        assert [line.get_xdata()[0] for line in drawn(axis, "drop")] == [4, 8]


@pytest.mark.parametrize("figure", [fig4, rates])
def test_the_legend_has_each_models_own_colour(figure) -> None:
    (legend,) = figure().legends
    texts = [text.get_text() for text in legend.get_texts()]
    colours = [to_hex(line.get_color()) for line in legend.get_lines()]
    assert dict(zip(texts, colours, strict=True)) == {
        "RoPE": COLOURS["rope"],
        "CRoPE": COLOURS["crope"],
    }


def test_the_caption_names_the_panels_of_the_axes() -> None:
    words = "Validation (top) and training loss (bottom)"
    assert words in TEMPLATE.read_text()
    top, bottom = (axis.get_ylabel() for axis in fig4().axes)
    assert (top.split()[0], bottom.split()[0]) == ("validation", "training")


def test_a_dataset_without_curves_says_so() -> None:
    (top, *_) = figures.fig4(curves().query("dataset == 'pg19'"), TABLE1).axes
    assert [text.get_text() for text in top.texts] == ["no complete run"]


def test_an_interval_lies_above_its_seeds() -> None:
    axis = rates().axes[0]
    (seeds,), (interval,) = drawn(axis, "seeds"), drawn(axis, "interval")
    assert interval.get_zorder() > seeds.get_zorder()
    assert list(interval.get_ydata()) == [-0.5, 1.0]
    assert list(seeds.get_ydata()) == [0.0, 0.5]
    assert set(interval.get_xdata()) == {0.002}


def test_the_lowest_model_is_on_top() -> None:
    (axis,) = models().axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["thin FFN", "multi-query"]
    assert [line.get_xdata()[0] for line in drawn(axis, "mean")] == [-0.25, 0.5]
    assert axis.get_ylim()[0] > axis.get_ylim()[1]


@pytest.mark.parametrize("figure", [fig4, rates, models])
def test_a_figure_has_the_same_bytes_twice(figure) -> None:
    assert render(figure()) == render(figure())
