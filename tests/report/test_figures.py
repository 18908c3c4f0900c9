"""What the figures draw, read from their axes; and that they are drawn to the same bytes."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from matplotlib.axes import Axes

from crope.report import figures
from crope.report.evidence import MARGIN, Training, find_comparisons
from crope.report.frame import load_frame
from tests.report.frames import make_frame, make_row, make_runs
from tests.report.records import write_run

STEPS = np.arange(0, 101, 10)
LOSSES = {0: 5.0, 1: 5.1, 2: 5.7}  # by seed: mean, middle and median differ
MEAN, STD = np.mean([*LOSSES.values()]), np.std([*LOSSES.values()], ddof=1)


def drawn(axis: Axes, gid: str) -> list[tuple[list[float], list[float]]]:
    """x and y of the lines of one kind."""
    lines = [line for line in axis.get_lines() if line.get_gid() == gid]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]


def band(axis: Axes) -> list[float]:
    """Lower and upper end of the first filled area."""
    box = axis.collections[0].get_paths()[0].get_extents()
    return [box.y0, box.y1]


def check_means(axis: Axes, x: list[float], means: np.ndarray) -> None:
    """The first line has these means, with bars of one standard deviation."""
    line, (container,) = axis.get_lines()[0], axis.containers
    bars = [segment[:, 1] for segment in container.lines[2][0].get_segments()]
    assert line.get_xdata() == pytest.approx(x)
    assert line.get_ydata() == pytest.approx(means)
    assert np.array(bars) == pytest.approx(np.stack([means - STD, means + STD], axis=1))


def interval(values: Iterable[float]) -> list[float]:
    return list(scipy.stats.ttest_1samp([*values], 0).confidence_interval(0.95))


@pytest.fixture
def curves() -> pd.DataFrame:
    """Three seeds of two models on two datasets; validation losses are 3 above training losses,
    seed 1 lacks step 100.
    """
    parts = []
    for dataset, level in {"pg19": 1.0, "ptb": -1.0}.items():
        for model, extra in {"rope": 0.0, "crope": 0.5}.items():
            for seed, loss in LOSSES.items():
                train = level + extra + loss + np.exp(-STEPS / 20)
                parts.append(pd.DataFrame({
                    "dataset": dataset, "row": "base", "model": model, "seed": seed, "step": STEPS,
                    "train/loss_nats": train, "val/loss_nats": train + 3,
                    "val_full/loss_nats": np.where(STEPS == 50, level + extra + loss + 7, np.nan),
                }).iloc[: len(STEPS) - (seed == 1)])  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def test_fig4_has_validation_on_top_and_training_below_for_each_dataset(
    curves: pd.DataFrame,
) -> None:
    figure = figures.fig4(curves, ["pg19", "ptb"])
    top, bottom = figure.axes[:2], figure.axes[2:]
    assert "validation" in top[0].get_ylabel() and "training" in bottom[0].get_ylabel()
    assert [axis.get_title(loc="left") for axis in top] == ["PG-19", "Penn Treebank"]
    common = STEPS[:-1]  # of all seeds
    for column, level in enumerate((1.0, -1.0)):
        for axis, extra in ((top[column], 3.0), (bottom[column], 0.0)):
            by_label = {line.get_label(): line for line in axis.get_lines()}
            for model, offset in {"rope": 0.0, "crope": 0.5}.items():
                expected = level + extra + offset + MEAN + np.exp(-common / 20)
                assert by_label[model].get_xdata() == pytest.approx(common)
                assert by_label[model].get_ydata() == pytest.approx(expected)
            ends = [5.0 + np.exp(-90 / 20), 5.7 + 1.0]  # of the lowest and the highest seed of RoPE
            assert band(axis) == pytest.approx([level + extra + end for end in ends])
    for (x, y), offset in zip(drawn(top[0], "full"), (0.0, 0.5), strict=True):
        assert (x, y) == ([50.0], [pytest.approx(8.0 + offset + MEAN)])


def test_differences_against_tokens_are_drawn_with_their_interval_and_every_seed() -> None:
    """No interval before all planned seeds are there."""
    by_phase = pd.DataFrame([dict.fromkeys((0.5e6, 1.5e6), loss) for loss in LOSSES.values()])
    comparison = Training(
        "base", "Penn Treebank", by_phase, by_phase.mean() + 1, len(LOSSES), (1e6, -0.5, 6.6)
    )
    axis = figures.training([comparison]).axes[0]
    (top,) = axis.child_axes
    assert [label.get_text() for label in top.get_xticklabels()] == [f"{MEAN + 1:.2f}"]
    assert band(axis) == pytest.approx(interval(LOSSES.values()))
    single = [line.get_ydata()[0] for line in axis.get_lines() if line.get_linewidth() == 0.5]
    assert single == list(LOSSES.values())
    assert drawn(axis, "mean") == [([0.5, 1.5], [pytest.approx(MEAN)] * 2)]
    assert drawn(axis, "paper") == [([1.0], [-0.5])]
    assert len(figures.training([comparison] * 5).axes) == 5
    incomplete = figures.training([replace(comparison, planned=4)]).axes[0]
    assert not incomplete.collections and "3 of 4 seeds" in incomplete.get_title("left")


def test_a_training_curve_is_smoothed_and_a_dataset_without_runs_says_so() -> None:
    losses = [5.0, 6.0] * 200
    many = pd.DataFrame({"step": range(400), "train/loss_nats": losses, "val/loss_nats": losses})
    many = many.assign(dataset="ptb", row="base", model="rope", seed=0)
    many["val_full/loss_nats"] = np.nan
    figure = figures.fig4(many, ["ptb", "pg19"])
    validation, training = (figure.axes[i].get_lines()[0].get_ydata() for i in (0, 2))
    assert np.ptp(validation) == 1.0
    assert np.ptp(training[20:-20]) < 0.2
    assert "no complete run" in [text.get_text() for text in figure.axes[1].texts]
    unlogged = figures.fig4(many.assign(**{"train/loss_nats": np.nan}), ["ptb"])
    assert "no complete run" in [text.get_text() for text in unlogged.axes[1].texts]


def line_of(model: str, mean: float, **changes: object) -> dict[str, object]:
    values = (mean - 0.01, mean + 0.005, mean + 0.005)
    low, high = interval(values)
    line = {"title": "800 steps", "first": model, "mean_nats": mean, "values": values}
    return line | {"low_nats": low, "high_nats": high} | changes


def test_the_forest_draws_intervals_means_and_seeds_and_names_what_is_beyond() -> None:
    later = line_of("crope", -0.03, title="3,200 steps")
    lines = [line_of("crope", 0.01), line_of("nope", 0.045), line_of("xpos", 0.325), later]
    left, right = figures.forest(pd.DataFrame(lines)).axes
    assert [axis.get_title(loc="left") for axis in (left, right)] == ["800 steps", "3,200 steps"]
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == ["CRoPE", "NoPE", "XPOS"]
    for axis, line, y in ((left, lines[0], 0), (left, lines[1], 1), (right, later, 0)):
        ends = [line["low_nats"], line["high_nats"]]
        assert drawn(axis, "interval")[y] == (pytest.approx(ends), [y, y])
        assert drawn(axis, "mean")[y] == ([pytest.approx(line["mean_nats"])], [y])
        assert drawn(axis, "seeds")[y] == (list(line["values"]), [y] * 3)
    assert len(drawn(left, "mean")) == 2
    assert [text.get_text() for text in left.texts] == ["+0.33 →"]
    shaded = left.patches[0].get_extents().transformed(left.transData.inverted())
    assert [shaded.x0, shaded.x1] == pytest.approx([-MARGIN, MARGIN])


def test_length_draws_loss_by_length_and_by_position() -> None:
    runs = make_runs("rope", LOSSES)
    for run, loss in zip(runs, LOSSES.values(), strict=True):
        run["lengths"] = [(256, loss + 0.256), (512, loss + 0.512)]
        run["positions"] = [(128.0, 5.5), (384.0, 5.1 + loss)]
    comparisons = find_comparisons(make_frame(runs), [make_row("length", ["rope"])])
    left, right = figures.length(comparisons).axes
    check_means(left, [256, 512], MEAN + np.array([0.256, 0.512]))
    assert right.get_lines()[0].get_ydata() == pytest.approx([5.5, 5.1 + MEAN])
    assert right.get_lines()[1].get_xdata()[0] == 256


def test_scaling_draws_loss_by_parameters_and_differences_by_width() -> None:
    widths = (64, 256)
    runs = [
        make_runs("rope", {seed: loss - width / 256 for seed, loss in LOSSES.items()}, width=width)
        for width in widths
    ]
    rows = [make_row("scaling", ["rope"], width=width) for width in widths]
    lines = pd.DataFrame([line_of("crope", 0.1, width=width) for width in widths])
    comparison, _ = find_comparisons(make_frame(*runs), rows)
    left, right = figures.scaling(comparison, lines).axes
    check_means(left, [64_000, 256_000], MEAN - np.array([0.25, 1]))
    assert [label.get_text() for label in left.get_xticklabels()] == ["0.064", "0.26"]
    ends = [lines["low_nats"][0], lines["high_nats"][0]]
    assert drawn(right, "interval") == [([6, 6], ends), ([8, 8], ends)]
    assert [values for _, values in drawn(right, "seeds")] == [list(lines["values"][0])] * 2


def test_curves_are_read_from_the_records(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", seed=3, final=5.25)
    runs, _ = load_frame([tmp_path])
    last = figures.read_curves(runs).query("step == 100").iloc[0]
    assert [last["model"], last["seed"], last["val_full/loss_nats"]] == ["rope", 3, 5.25]
    assert figures.read_curves(runs[:0]).empty


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_settings(
    curves: pd.DataFrame,
) -> None:
    def render() -> list[bytes]:
        return [figures.render(figures.fig4(curves, ["ptb"]), kind) for kind in ("svg", "png")]

    first = render()
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "svg.hashsalt": "other"}):
        assert render() == first
    assert b"<dc:date>" not in first[0]
