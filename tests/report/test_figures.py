"""What the figures draw, read from their axes; and that they are drawn to the same bytes."""

from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from matplotlib.axes import Axes

from crope.report import figures
from crope.report.evidence import MARGIN, Training, find_places
from tests.report.frames import make_frame, make_row, make_runs
from tests.report.records import write_run

STEPS = np.arange(0, 101, 10)


def drawn(axis: Axes, gid: str) -> list[tuple[list[float], list[float]]]:
    """x and y of the lines of one kind."""
    lines = [line for line in axis.get_lines() if line.get_gid() == gid]
    return [
        (list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))) for line in lines
    ]


@pytest.fixture
def curves() -> pd.DataFrame:
    """Two seeds of two models on two datasets; validation losses are 3 above training losses, seed
    1 lacks step 100.
    """
    parts = []
    for dataset, level in {"pg19": 6.0, "ptb": 4.0}.items():
        for model, extra in {"rope": 0.0, "crope": 0.5}.items():
            for seed in (0, 1):
                train = level + extra + 0.2 * seed + np.exp(-STEPS / 20)
                parts.append(pd.DataFrame({
                    "dataset": dataset, "row": "base", "model": model, "seed": seed, "step": STEPS,
                    "train/loss_nats": train, "val/loss_nats": train + 3,
                    "val_full/loss_nats": np.where(STEPS == 50, level + extra + 7, np.nan),
                }).iloc[: len(STEPS) - seed])  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def test_fig4_has_validation_on_top_and_training_below_for_each_dataset(
    curves: pd.DataFrame,
) -> None:
    figure = figures.fig4(curves, ["pg19", "ptb"])
    top, bottom = figure.axes[:2], figure.axes[2:]
    assert ["validation" in top[0].get_ylabel(), "training" in bottom[0].get_ylabel()] == [
        True,
        True,
    ]
    assert [axis.get_title(loc="left") for axis in top] == ["PG-19", "Penn Treebank"]
    for column, level in enumerate((6.0, 4.0)):
        for axis, extra in ((top[column], 3.0), (bottom[column], 0.0)):
            by_label = {line.get_label(): line for line in axis.get_lines()}
            for model, offset in {"rope": 0.0, "crope": 0.5}.items():
                expected = (
                    level + extra + offset + 0.1 + np.exp(-STEPS[:-1] / 20)
                )  # mean of seeds, at common steps
                assert by_label[model].get_xdata() == pytest.approx(STEPS[:-1])
                assert by_label[model].get_ydata() == pytest.approx(expected)
    full = drawn(top[0], "full")
    assert full == [([50.0], [13.0]), ([50.0], [13.5])]


LOSSES = {0: 5.0, 1: 5.1, 2: 5.7}  # by seed: mean, middle and median differ


def band(axis: Axes) -> list[float]:
    """Lower and upper end of the filled area of a level curve."""
    box = axis.collections[0].get_paths()[0].get_extents()
    return [box.y0, box.y1]


def error_bars(axis: Axes) -> list[list[float]]:
    """Lower and upper end of each error bar."""
    (container,) = axis.containers
    return [segment[:, 1].tolist() for segment in container.lines[2][0].get_segments()]


def test_fig4_fills_the_range_over_seeds_and_marks_the_mean_full_loss() -> None:
    parts = [
        pd.DataFrame({
            "dataset": "ptb", "row": "base", "model": "rope", "seed": seed, "step": STEPS, "train/loss_nats": loss - 1,
            "val/loss_nats": loss, "val_full/loss_nats": np.where(STEPS == 50, loss + 1, np.nan),
        })
        for seed, loss in LOSSES.items()
    ]  # fmt: skip
    validation, training = figures.fig4(pd.concat(parts), ["ptb"]).axes
    assert band(validation) == pytest.approx([5.0, 5.7])
    assert band(training) == pytest.approx([4.0, 4.7])
    assert drawn(validation, "full") == [([50.0], [pytest.approx(6.2666667)])]


def test_differences_against_tokens_are_drawn_with_their_interval_and_every_seed() -> None:
    """No interval before all planned seeds are there."""
    by_phase = pd.DataFrame([dict.fromkeys((0.5e6, 1.5e6), loss) for loss in LOSSES.values()])
    place = Training("base", "Penn Treebank", by_phase, by_phase.mean(), len(LOSSES), (1e6, -0.5))
    axis = figures.training([place]).axes[0]
    low, high = scipy.stats.ttest_1samp(list(LOSSES.values()), 0).confidence_interval(0.95)
    assert band(axis) == pytest.approx([low, high])
    single = [line.get_ydata()[0] for line in axis.get_lines() if line.get_linewidth() == 0.5]
    assert single == list(LOSSES.values())
    assert drawn(axis, "mean") == [([0.5, 1.5], [pytest.approx(5.2666667)] * 2)]
    assert drawn(axis, "paper") == [([1.0], [-0.5])]
    incomplete = figures.training([replace(place, planned=4)]).axes[0]
    assert not incomplete.collections and "3 of 4 seeds" in incomplete.get_title("left")


def test_a_training_curve_is_smoothed_and_a_dataset_without_runs_says_so(
    curves: pd.DataFrame,
) -> None:
    many = pd.DataFrame(
        {"step": range(400), "train/loss_nats": [5.0, 6.0] * 200, "val/loss_nats": [5.0, 6.0] * 200}
    )
    many = many.assign(
        dataset="ptb", row="base", model="rope", seed=0, **{"val_full/loss_nats": np.nan}
    )
    figure = figures.fig4(many, ["ptb", "pg19"])
    validation, training = (
        next(line for line in figure.axes[i].get_lines() if line.get_label() == "rope")
        for i in (0, 2)
    )
    assert np.ptp(validation.get_ydata()) == 1.0
    assert np.ptp(training.get_ydata()[20:-20]) < 0.2
    assert "no complete run" in [text.get_text() for text in figure.axes[1].texts]


def line_of(model: str, mean: float, **changes: object) -> dict[str, object]:
    values = (mean - 0.01, mean + 0.005, mean + 0.005)
    low, high = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    line = {"title": "800 steps", "first": model, "mean_nats": mean, "values": values}
    return line | {"low_nats": low, "high_nats": high} | changes


def test_the_forest_draws_intervals_means_and_seeds_and_names_what_is_beyond() -> None:
    lines = [
        line_of("crope", 0.01),
        line_of("nope", 0.045),
        line_of("xpos", 0.325),
        line_of("crope", -0.03, title="3,200 steps"),
    ]
    left, right = figures.forest(pd.DataFrame(lines)).axes
    assert [axis.get_title(loc="left") for axis in (left, right)] == ["800 steps", "3,200 steps"]
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == ["CRoPE", "NoPE", "XPOS"]
    for axis, mean, y in ((left, 0.01, 0), (right, -0.03, 0)):
        low, high = scipy.stats.ttest_1samp(
            [mean - 0.01, mean + 0.005, mean + 0.005], 0
        ).confidence_interval(0.95)
        assert drawn(axis, "interval")[0] == ([pytest.approx(low), pytest.approx(high)], [y, y])
        assert drawn(axis, "mean")[0] == ([pytest.approx(mean)], [y])
        assert len(drawn(axis, "seeds")[0][0]) == 3
    assert drawn(left, "mean")[1][0] == pytest.approx([0.045])
    assert len(drawn(left, "mean")) == 2
    assert [text.get_text() for text in left.texts] == ["+0.33 →"]
    shaded = left.patches[0].get_extents().transformed(left.transData.inverted())
    assert [shaded.x0, shaded.x1] == pytest.approx([-MARGIN, MARGIN])


def test_length_draws_loss_by_length_and_by_position() -> None:
    runs = [
        run
        | {
            "lengths": [(256, loss + 0.256), (512, loss + 0.512)],
            "positions": [(128.0, 5.5), (384.0, 5.1 + loss)],
        }
        for seed, loss in LOSSES.items()
        for run in make_runs("rope", {seed: loss})
    ]
    places = find_places(make_frame(runs), [make_row("length", ["rope"])])
    left, right = figures.length(places).axes
    (line, *_) = left.get_lines()
    assert line.get_xdata() == pytest.approx([256, 512])
    assert line.get_ydata() == pytest.approx([5.5226667, 5.7786667])
    mean, std = np.mean([*LOSSES.values()]), np.std([*LOSSES.values()], ddof=1)
    ends = [[mean + extra - std, mean + extra + std] for extra in (0.256, 0.512)]
    assert np.array(error_bars(left)) == pytest.approx(np.array(ends))
    assert right.get_lines()[0].get_ydata() == pytest.approx([5.5, 5.1 + mean])
    assert right.get_lines()[1].get_xdata()[0] == 256


def test_scaling_draws_loss_by_parameters_and_differences_by_width() -> None:
    runs = [
        make_runs("rope", {seed: loss - width / 256 for seed, loss in LOSSES.items()}, width=width)
        for width in (64, 256)
    ]
    rows = [make_row("scaling", ["rope"], width=width) for width in (64, 256)]
    lines = pd.DataFrame([
        {"width": width, "first": "crope", "low_nats": -0.1, "high_nats": 0.3, "mean_nats": 0.1,
         "values": (0.0, 0.05, 0.25)}
        for width in (64, 256)
    ])  # fmt: skip
    left, right = figures.scaling(find_places(make_frame(*runs), rows), lines).axes
    assert left.get_lines()[0].get_xdata() == pytest.approx([64_000, 256_000])
    mean, std = np.mean([*LOSSES.values()]), np.std([*LOSSES.values()], ddof=1)
    means = np.array([mean - 0.25, mean - 1])
    assert left.get_lines()[0].get_ydata() == pytest.approx(means)
    ends = np.stack([means - std, means + std], axis=1)
    assert np.array(error_bars(left)) == pytest.approx(ends)
    dots = [line for line in right.get_lines() if line.get_marker() == "."]
    assert [list(line.get_ydata()) for line in dots] == [[0.0, 0.05, 0.25]] * 2
    assert drawn(right, "interval") == [([6, 6], [-0.1, 0.3]), ([8, 8], [-0.1, 0.3])]


def test_curves_are_read_from_the_records(tmp_path: Path) -> None:
    path = write_run(tmp_path, "rope", seed=3, final=5.25)
    found = figures.read_curves(
        make_frame(make_runs("rope", {3: 5.25}, path=str(path))).assign(path=str(path))
    )
    last = found[found["step"] == 100].iloc[0]
    assert [last["model"], last["seed"], last["val_full/loss_nats"]] == ["rope", 3, 5.25]
    assert figures.read_curves(make_frame().reindex(columns=["path"])).empty


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_settings(
    curves: pd.DataFrame,
) -> None:
    first = [figures.render(figures.fig4(curves, ["ptb"]), kind) for kind in ("svg", "png")]
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "svg.hashsalt": "other"}):
        second = [figures.render(figures.fig4(curves, ["ptb"]), kind) for kind in ("svg", "png")]
    assert first == second
    assert b"<dc:date>" not in first[0]
