"""What the panels of the forest, the seeds and the parameters show, in the words that stand for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from crope.report.budget import build_budget_figure, build_budgets
from crope.report.comparisons import build_comparisons
from crope.report.forest import build_forest
from crope.report.seeds_figure import build_seeds_figure
from crope.report.style import LIGHT
from tests.report.conftest import make_parameters
from tests.report.studies import losses, make_results

MARGIN = 0.02


def draw(panel):
    axis = Figure().subplots()
    panel.draw([axis], True)
    return axis


def forest(cells, final, **options):
    return build_forest(build_comparisons(make_results(cells, final, **options), MARGIN))


def test_forest_has_a_panel_a_pair_with_rope_and_a_line_a_row(cells) -> None:
    plot = forest(cells, losses(xpos=0.3, crope=0.1, spread=0.001))
    assert [panel.title for panel in plot.panels] == ["CRoPE − RoPE", "XPOS − RoPE"]
    # Five seeds with standard deviation 0.001 around 0.1: half width 2.776 * 0.001 / sqrt(5) = 0.0012.
    assert "PG-19: final +0.1000 (95 % +0.0988 to +0.1012), best +0.1000" in plot.panels[0].text
    assert plot.panels[1].text.count("final +0.3000") == 6
    axis = draw(plot.panels[0])
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels[:3] == ["PG-19", "Wikitext-2", "Penn Treebank"] and len(labels) == 6
    (band,) = [patch for patch in axis.patches if patch.get_facecolor()[:3] == pytest.approx(rgb(LIGHT.margin))]
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((-MARGIN, MARGIN))
    assert "±0.02 nats" in plot.note


def rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


def segments(axis) -> list[tuple[float, ...]]:
    """The intervals: lines of two points, in the colour of a model."""
    lines = [line for line in axis.lines if line.get_color() == LIGHT.models["crope"] and line.get_linestyle() == "-"]
    return [tuple(line.get_xdata()) for line in lines if len(line.get_xdata()) == 2]


@pytest.mark.parametrize(("seeds", "intervals"), [(2, 0), (3, 12)])
def test_intervals_are_drawn_from_three_seeds_on(cells, seeds: int, intervals: int) -> None:
    plot = forest(cells, losses(crope=0.1, spread=0.001), seeds=range(seeds))
    axis = draw(plot.panels[0])
    assert len(segments(axis)) == intervals  # final and best of six rows
    assert ("(95 %" in plot.panels[0].text) == bool(intervals)
    dots = [line for line in axis.lines if line.get_marker() == "."]
    assert [len(line.get_xdata()) for line in dots] == [seeds] * 12
    crosses = [float(line.get_xdata()[0]) for line in axis.lines if line.get_marker() == "x"]
    assert crosses == pytest.approx([0.0027, 0.0086, -0.0054, -0.031, -0.023, 0.001])  # of the printed means


def test_a_missing_row_says_why(cells) -> None:
    plot = forest(cells, losses(), without=lambda cell: cell.dataset == "ptb")
    assert "Penn Treebank: CRoPE missing, RoPE missing" in plot.panels[0].text
    assert "CRoPE missing, RoPE missing" in [text.get_text() for text in draw(plot.panels[0]).texts]


def test_every_seed_is_a_dot_over_its_model(cells) -> None:
    plot = build_seeds_figure(make_results(cells, losses(xpos=0.5, crope=0.25, spread=0.0), seeds=range(3)))
    assert len(plot.panels) == 6
    assert "XPOS: 5.5000, 5.6000, 5.7000; RoPE: 5.0000, 5.1000, 5.2000; CRoPE: 5.2500" in plot.panels[2].text
    axis = draw(plot.panels[2])
    dots = [line.get_xydata().tolist() for line in axis.lines if line.get_marker() != "None"]
    for x, (offset, points) in enumerate(zip((0.5, 0, 0.25), dots, strict=True)):
        assert [point[0] for point in points] == [x] * 3
        assert [point[1] for point in points] == pytest.approx([5 + offset + 0.1 * seed for seed in range(3)])


def test_budgets_are_the_runs_own_counts(cells) -> None:
    results = make_results(cells, losses())
    budgets = build_budgets(results)
    assert [(budget.width, budget.vocabulary, *budget.models) for budget in budgets] == [
        (128, 4096, "xpos", "rope", "crope"), (64, 4096, "xpos", "rope", "crope"),
    ]  # fmt: skip
    for budget in budgets:
        assert budget.models["crope"].total == make_parameters("crope", budget.width)["total"]
    plot = build_budget_figure(results)
    assert [panel.title for panel in plot.panels] == [
        "D = 128: 4 layers", "D = 128: with 4,096 embeddings", "D = 64: 4 layers", "D = 64: with 4,096 embeddings",
    ]  # fmt: skip
    full, lean = (make_parameters(model, 128)["total"] for model in ("rope", "crope"))
    texts = [text.get_text() for text in draw(plot.panels[1]).texts]
    assert texts == [f"{full:,}", f"{full:,}", f"{lean:,} (−{100 * (full - lean) / full:.1f} %)"]
    widths = sum(patch.get_width() for patch in draw(plot.panels[1]).patches if patch.get_fill())
    assert widths == pytest.approx((2 * full + lean) / 1e3)


def test_another_vocabulary_is_a_budget_of_its_own(cells) -> None:
    results = make_results(cells, losses())
    other = {"tokenizer": {"name": "gpt2", "vocab_size": 50257}}
    runs = tuple(replace(run, config=run.config | other) for run in results[0].runs)
    results[0] = replace(results[0], runs=runs)
    assert [budget.vocabulary for budget in build_budgets(results)] == [50257, 4096, 4096]
