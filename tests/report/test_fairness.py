"""Each model at its own best rate: choice, pairing and held-out loss against numbers worked out by hand."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from crope.fairness import Comparison, choose, compare_at_own_best, render_csv, render_markdown
from crope.record import Record, read_record
from crope.study import study_axes

RATES = (3e-4, 1e-3, 3e-3)
# By model and rate the losses of seeds 0 and 1. XPOS is best at the low edge, the others in the middle.
GRID = {
    "xpos": ((5.0, 5.25), (5.5, 5.5), (6.0, 6.0)),
    "rope": ((4.75, 4.75), (4.5, 4.25), (4.4375, 4.5)),
    "crope": ((4.75, 4.75), (4.5, 4.5), (4.625, 4.625)),
}
Make = Callable[..., Record]


@pytest.fixture
def make(write_run: Callable[..., Path], runs_dir: Path) -> Make:
    """A run at a learning rate, which the synthetic configurations leave out."""

    def make(model: str, lr: float, seed: int, final: float, dataset: str = "ptb", **settings: object) -> Record:
        record = read_record(write_run(model, dataset, seed=seed, final=final, folder=runs_dir / f"{lr}", **settings))
        return replace(record, config={**record.config, "train": {**record.config["train"], "lr": lr}})

    return make


@pytest.fixture
def grid(make: Make) -> list[Record]:
    return [
        make(model, lr, seed, loss)
        for model, rows in GRID.items()
        for lr, losses in zip(RATES, rows, strict=True)
        for seed, loss in enumerate(losses)
    ]


def only(comparisons: list[Comparison]) -> Comparison:
    (comparison,) = comparisons
    return comparison


def test_each_model_has_its_own_best_rate(grid: list[Record]) -> None:
    found = only(compare_at_own_best(grid))
    assert (found.rates, found.seeds, found.left_out) == (RATES, (0, 1), 0)
    assert [(one.model, one.best_lr, one.on_edge) for one in found.models] == [
        ("xpos", 3e-4, True),
        ("rope", 1e-3, False),
        ("crope", 1e-3, False),
    ]


def test_differences_are_paired_by_seed_at_own_best_rates(grid: list[Record]) -> None:
    found = only(compare_at_own_best(grid))
    crope, xpos = found.difference("crope"), found.difference("xpos")
    assert crope is not None and xpos is not None
    assert (crope.mean_nats, crope.n) == (0.125, 2)  # of 0 and 0.25
    assert crope.high_nats is None  # two seeds give no interval
    assert xpos.mean_nats == pytest.approx((0.5 + 1.0) / 2)
    assert found.difference("rope") is None


def test_held_out_loss_is_chosen_by_the_other_seed(grid: list[Record]) -> None:
    """RoPE: seed 1 chooses 1e-3, where seed 0 has 4.5; seed 0 chooses 3e-3, where seed 1 has 4.5."""
    found = only(compare_at_own_best(grid))
    rope = next(one for one in found.models if one.model == "rope")
    assert rope.held_out == {0: 4.5, 1: 4.5}
    assert sum(rope.best.values()) / 2 == 4.375 < 4.5  # the bias that the held-out loss is free of
    held_out = found.difference("crope", held_out=True)
    assert held_out is not None and held_out.mean_nats == 0.0


def test_a_rate_that_diverges_is_judged_by_it_and_other_failures_are_missing(grid: list[Record]) -> None:
    index = next(
        i for i, run in enumerate(grid) if run.summary["model"] == "rope" and run.config["train"]["lr"] == 1e-3
    )
    for kind, seeds, best in (("NonFiniteLoss", (0, 1), 3e-3), ("OutOfMemoryError", (1,), 1e-3)):
        error = {"type": kind, "message": "x", "step": 3, "traceback": ""}
        broken = replace(grid[index], summary={**grid[index].summary, "status": "failed", "error": error})
        found = only(compare_at_own_best([*grid[:index], broken, *grid[index + 1 :]]))
        rope = next(one for one in found.models if one.model == "rope")
        assert (found.seeds, rope.best_lr) == (seeds, best)
    assert found.left_out == 8  # the other rates and models of the seed that is missing one


def test_what_differs_in_anything_else_is_another_comparison(grid: list[Record], make: Make) -> None:
    other = [make(model, lr, 0, 4.0, dataset="wikitext2") for model in ("rope", "crope") for lr in RATES[:2]]
    found = compare_at_own_best([*grid, *other])
    assert [(one.dataset, one.rates) for one in found] == [("wikitext2", RATES[:2]), ("ptb", RATES)]
    assert compare_at_own_best([run for run in grid if run.config["train"]["lr"] == 1e-3]) == []
    assert compare_at_own_best([run for run in grid if run.summary["model"] == "rope"]) == []
    stale = replace(grid[0], summary={**grid[0].summary, "numerics_version": 0})
    assert only(compare_at_own_best([stale, *grid[1:]])).seeds == (1,)


def test_equal_means_choose_the_lower_rate_and_all_diverged_none() -> None:
    assert choose({2e-3: {0: 1.0}, 1e-3: {0: 1.0}}, [0]) == 1e-3
    assert choose({1e-3: {0: math.inf}}, [0]) is None


def test_markdown_says_best_edge_differences_and_the_bias(grid: list[Record]) -> None:
    text = render_markdown(compare_at_own_best(grid))
    lines = text.splitlines()
    assert lines[0] == (
        "**Each model at its own best learning rate. Penn Treebank, row base. Scale: quick. n = 2 seeds.**"
    )
    assert lines[2] == "| Model | 0.0003 | 0.001 | 0.003 | own best | held out | - RoPE, own best |"
    assert lines[4].startswith("| XPOS | 5.1250 ± 0.1768 (best) | 5.5000 ± 0.0000 |")
    assert "| 0.0003 (edge) |" in lines[4]
    assert lines[6].endswith("| 0.001 | 4.5000 | +0.1250 |")
    assert "Selection bias: the best of 3 rates is chosen on the losses it is judged by" in text
    assert "XPOS: the best rate is at the edge of the grid" in text
    assert "CRoPE - RoPE held out: +0.0000" in text
    assert render_markdown([]) == ""


def test_csv_holds_every_rate_and_the_differences_once(grid: list[Record]) -> None:
    rows = list(csv.DictReader(io.StringIO(render_csv(compare_at_own_best(grid)))))
    assert len(rows) == 9
    best = {row["model"]: row for row in rows if row["own_best"] == "True"}
    assert {model: float(row["lr"]) for model, row in best.items()} == {"xpos": 3e-4, "rope": 1e-3, "crope": 1e-3}
    assert float(best["crope"]["minus_rope_nats"]) == 0.125
    assert {row["minus_rope_nats"] for row in rows if row["own_best"] == "False"} == {""}


def test_one_seed_has_no_interval_and_no_held_out_loss(grid: list[Record]) -> None:
    text = render_markdown(compare_at_own_best([run for run in grid if run.summary["seed"] == 0]))
    # At seed 0 RoPE is best at 3e-3: 4.5 - 4.4375.
    assert "| CRoPE | 4.7500 | 4.5000 (best) | 4.6250 | 0.001 | - | +0.0625 |" in text
    assert "it needs two seeds" in text


def test_the_study_is_such_a_grid_with_seeds_outermost() -> None:
    axes = study_axes("fair_lr")
    assert next(iter(axes)) == "seed"
    assert [float(lr) for lr in axes["train.lr"]] == list(RATES)
    assert axes["model"] == ["xpos", "rope", "crope"]


def test_the_report_shows_it_where_there_is_a_grid(grid: list[Record], build, no_pictures, monkeypatch) -> None:
    plain = build()
    assert 'id="fairness"' not in (plain / "index.html").read_text() and not (plain / "fairness.md").exists()
    monkeypatch.setattr("crope.report.findings.compare_at_own_best", lambda _: compare_at_own_best(grid))
    shown = build()
    page = (shown / "index.html").read_text()
    assert page.index('id="fairness"') < page.index('id="comparisons"')
    assert "5.1250 ± 0.1768 (best)" in page
    assert (shown / "fairness.md").read_text() == render_markdown(compare_at_own_best(grid))
    assert len((shown / "fairness.csv").read_text().splitlines()) == 10
