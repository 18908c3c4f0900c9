"""What the figures draw, read from their axes; and that they are drawn to the same bytes."""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from matplotlib.axes import Axes

from crope.report import claims, figures
from tests.report.frames import make_frame, make_runs
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


def test_differences_against_the_step_are_drawn_with_their_interval_and_every_seed() -> None:
    by_phase = pd.DataFrame([[loss] * figures.PHASES for loss in LOSSES.values()])
    (axis,) = figures.gaps({"CRoPE − RoPE": {"Penn Treebank": by_phase}}).axes
    low, high = scipy.stats.ttest_1samp(list(LOSSES.values()), 0).confidence_interval(0.95)
    assert band(axis) == pytest.approx([low, high])
    single = [line.get_ydata()[0] for line in axis.get_lines() if line.get_linewidth() == 0.5]
    assert single == list(LOSSES.values())


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


def test_the_forest_draws_95_percent_intervals_means_seeds_and_the_papers_difference() -> None:
    crope, rope = {0: 5.0, 1: 5.3, 2: 5.1}, {0: 4.9, 1: 5.0, 2: 5.1}
    values = [0.1, 0.3, 0.0]
    frame = make_frame(
        make_runs("crope", crope), make_runs("rope", rope), make_runs("xpos", {0: 6.0})
    )
    lines = claims.compare(frame, [("ptb", "base"), ("pg19", "base")])
    left, right = figures.comparisons(lines).axes
    assert [left.get_title(loc="left"), right.get_title(loc="left")] == [
        "CRoPE − RoPE",
        "XPOS − RoPE",
    ]
    low, high = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    ((x, y), (missing, _)) = drawn(left, "interval")
    assert x == pytest.approx([low, high])
    assert y == [0, 0]
    assert np.isnan(missing).all()
    assert drawn(left, "mean")[0][0] == pytest.approx([np.mean(values)])
    assert drawn(left, "seeds")[0][0] == pytest.approx(values)
    assert drawn(left, "paper")[0][0] == pytest.approx([4.0158 - 4.0212])
    assert np.isnan(drawn(right, "interval")[0][0]).all()  # one seed: no interval
    assert drawn(right, "mean")[0][0] == pytest.approx([1.1])
    assert [label.get_text() for label in left.get_yticklabels()] == ["Penn Treebank", "PG-19"]
    shaded = left.patches[0].get_extents().transformed(left.transData.inverted())
    assert [shaded.x0, shaded.x1] == pytest.approx([-claims.MARGIN, claims.MARGIN])


def test_length_draws_loss_by_length_and_by_position() -> None:
    lines = []
    for seed, loss in LOSSES.items():
        for length in (256, 512):
            own = {
                "seq_len": length,
                "final": loss + length / 1000,
                "positions": ((128.0, 5.5), (384.0, 5.1 + loss)),
            }
            lines += [line | own for line in make_runs("rope", {seed: loss})]
    left, right = figures.study(make_frame(lines).assign(width=128), pd.DataFrame()).axes  # type: ignore[union-attr]
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
        line | {"width": width, "seq_len": 256, "final": line["val_full.final_nats"]}
        for width in (64, 256)
        for line in make_runs(
            "rope", {seed: loss - width / 256 for seed, loss in LOSSES.items()}, width=width
        )
    ]
    answers = pd.DataFrame([
        {"dataset": "ptb", "where": f"D = {width}", "width": width, "first": "crope", "second": "rope", "at": "final",
         "t_low_nats": -0.1, "t_high_nats": 0.3, "mean_nats": 0.1, "values": (0.0, 0.05, 0.25)}
        for width in (64, 256)
    ])  # fmt: skip
    left, right = figures.study(make_frame(runs), answers).axes  # type: ignore[union-attr]
    assert left.get_lines()[0].get_xdata() == pytest.approx([64_000, 256_000])
    mean, std = np.mean([*LOSSES.values()]), np.std([*LOSSES.values()], ddof=1)
    means = np.array([mean - 0.25, mean - 1])
    assert left.get_lines()[0].get_ydata() == pytest.approx(means)
    ends = np.stack([means - std, means + std], axis=1)
    assert np.array(error_bars(left)) == pytest.approx(ends)
    dots = [line for line in right.get_lines() if line.get_marker() == "."]
    assert [list(line.get_ydata()) for line in dots] == [[0.0, 0.05, 0.25]] * 2
    assert drawn(right, "interval") == [([6, 6], [-0.1, 0.3]), ([8, 8], [-0.1, 0.3])]


def test_a_study_of_one_width_and_length_is_a_forest_of_its_answers() -> None:
    runs = make_frame(make_runs("rope", {0: 5.0})).assign(width=128, seq_len=256)
    assert figures.study(runs, pd.DataFrame()) is None
    answers = pd.DataFrame([
        {"title": "Penn Treebank", "label": "Q/K only − RoPE", "first": "complex_qk", "at": "final", "t_low_nats": 0.1,
         "t_high_nats": 0.3, "mean_nats": 0.2, "values": (0.15, 0.25)}
    ])  # fmt: skip
    figure = figures.study(runs, answers)
    assert figure is not None
    assert drawn(figure.axes[0], "interval") == [([0.1, 0.3], [0, 0])]


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
