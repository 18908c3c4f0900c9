"""Pairs of models, row by row: against the formulas applied by hand to the same losses."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from crope.config import cell_key
from crope.errors import ConfigError
from crope.report.comparison_tables import comparisons_sheet, render_comparisons_csv
from crope.report.comparisons import build_comparisons, load_margin
from crope.report.markdown import render_sheet
from crope.report.stats import holm, p_equivalent, p_outside
from tests.report.conftest import make_config
from tests.report.studies import losses, make_results

MARGIN = 0.02


def only(comparisons, dataset="ptb", row="base", pair="CRoPE − RoPE", at="final"):
    (found,) = [c for c in comparisons if (c.dataset, c.row, c.pair, c.at) == (dataset, row, pair, at)]
    return found


def test_one_comparison_a_row_pair_and_measure(cells) -> None:
    comparisons = build_comparisons(make_results(cells, losses(xpos=0.3)), MARGIN)
    # Three datasets and three more rows of Table 2 (the base row stands in both), three pairs, two measures.
    assert len({(c.dataset, c.row, c.pair, c.at) for c in comparisons}) == len(comparisons) == 6 * 3 * 2
    assert [c.at for c in comparisons] == ["final"] * 18 + ["best"] * 18


def test_difference_and_p_values_by_hand(cells) -> None:
    def final(cell, seed):
        return [4.0, 4.5, 4.25][seed] + (cell.model == "crope") * 0.01 * seed

    def lowest(cell, seed):
        return 4.0 - (cell.model == "crope") * (0.1 + 0.01 * seed)

    comparisons = build_comparisons(make_results(cells, final, best=lowest, seeds=range(3)), MARGIN)
    found = only(comparisons)
    assert found.difference.values_nats == pytest.approx((0.0, 0.01, 0.02), abs=1e-12)
    # Mean 0.01, s = 0.01: t = 3^0.5 both against 0 and against 0.02; two-sided p at 2 degrees is 0.225.
    assert (found.p_different, found.p_equivalent) == pytest.approx((0.225403, 0.225403 / 2), rel=1e-5)
    assert found.conclusion == "cannot tell"
    best = only(comparisons, at="best")
    assert best.difference.mean_nats == pytest.approx(-0.11)
    assert best.p_different == pytest.approx(float(p_outside([-0.1, -0.11, -0.12], 0)), rel=1e-6)


def test_holm_runs_over_the_rows_of_one_pair_and_one_measure(cells) -> None:
    def final(cell, seed):
        strength = 1 + len(cell.dataset + cell.row)  # a different p in every row
        return (cell.model != "rope") * (0.001 * strength + 0.003 * (seed % 3) * strength**0.5)

    comparisons = build_comparisons(make_results(cells, final), MARGIN)
    for pair in ("CRoPE − RoPE", "XPOS − RoPE"):
        family = [c for c in comparisons if (c.pair, c.at) == (pair, "final")]
        values = [c.difference.values_nats for c in family]
        assert len(family) == 6 and len({c.p_different for c in family}) > 3
        assert [c.p_different_holm for c in family] == pytest.approx(list(holm(p_outside(values, 0.0))))
        assert [c.p_equivalent_holm for c in family] == pytest.approx(list(holm(p_equivalent(values, MARGIN))))


def test_a_missing_row_counts_in_the_family(cells) -> None:
    whole = build_comparisons(make_results(cells, losses(crope=0.001)), MARGIN)
    less = build_comparisons(make_results(cells, losses(crope=0.001), without=lambda c: c.dataset == "ptb"), MARGIN)
    smallest = min(c.p_equivalent for c in less if c.p_equivalent is not None and c.pair == "CRoPE − RoPE")
    kept = [c for c in less if (c.pair, c.at) == ("CRoPE − RoPE", "final") and c.dataset != "ptb"]
    assert min(c.p_equivalent_holm for c in kept) == pytest.approx(6 * smallest)
    assert only(less).conclusion == "CRoPE missing, RoPE missing" and only(less).n == 0
    assert only(whole).conclusion == "equivalent"


@pytest.mark.parametrize(
    ("crope", "spread", "conclusion"),
    [(0.001, 0.003, "equivalent"), (0.012, 0.003, "equivalent"), (0.1, 0.003, "higher"), (-0.1, 0.003, "lower"),
     (0.1, 0.3, "cannot tell"), (0.001, 0.3, "cannot tell")],
)  # fmt: skip
def test_conclusions(cells, crope: float, spread: float, conclusion: str) -> None:
    found = only(build_comparisons(make_results(cells, losses(crope=crope, spread=spread)), MARGIN))
    assert found.conclusion == conclusion
    assert found.equivalent == (conclusion == "equivalent")


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_seeds_have_a_mean_only_and_say_so(cells, n: int) -> None:
    results = make_results(cells, losses(crope=0.5, spread=0.0), seeds=range(n))
    found = only(build_comparisons(results, MARGIN))
    assert found.difference.mean_nats == pytest.approx(0.5)
    assert (found.difference.low_nats, found.p_different, found.p_equivalent_holm) == (None, None, None)
    assert found.conclusion == f"needs at least 3 seeds, has {n}"
    text = render_sheet(comparisons_sheet([found], results, scale="quick"))
    assert f"| {n} | −0.0054 | +0.5000 |  | needs at least 3 seeds, has {n} |  |  |  |  |  |  |" in text


def test_a_model_of_ones_own_is_compared_with_rope(cells) -> None:
    own = [
        replace(cell, model="mine", key=cell_key(make_config("mine", cell.dataset, cell.row)))
        for cell in cells
        if cell.model == "rope"
    ]
    comparisons = build_comparisons(make_results([*cells, *own], losses(mine=0.25)), MARGIN)
    assert only(comparisons, pair="mine − RoPE").difference.mean_nats == pytest.approx(0.25)
    assert len(comparisons) == 6 * 4 * 2


def test_csv_holds_every_number(cells) -> None:
    comparisons = build_comparisons(make_results(cells, losses(crope=0.001)), MARGIN)
    rows = list(csv.DictReader(io.StringIO(render_comparisons_csv(comparisons))))
    assert len(rows) == len(comparisons)
    found, row = comparisons[2], rows[2]
    assert (row["dataset"], row["first"], row["second"], row["at"], row["n"]) == ("ptb", "crope", "rope", "final", "5")
    assert float(row["mean_nats"]) == pytest.approx(0.001, abs=1e-6)
    assert float(row["std_over_seeds_nats"]) == pytest.approx(0.003, abs=1e-6)
    interval = (found.difference.low_nats, found.difference.high_nats)
    assert (float(row["t_low_nats"]), float(row["t_high_nats"])) == pytest.approx(interval, abs=1e-6)
    assert float(row["bootstrap_low_nats"]) == pytest.approx(found.difference.boot_low_nats, abs=1e-6)
    assert float(row["p_equivalent_holm"]) == pytest.approx(found.p_equivalent_holm, abs=1e-6)
    assert (row["margin_nats"], row["conclusion"]) == ("0.020000", "equivalent")


def test_markdown_has_a_line_a_comparison_and_says_what_each_spread_is(cells) -> None:
    results = make_results(cells, losses(crope=0.001))
    comparisons = build_comparisons(results, MARGIN)
    text = render_sheet(comparisons_sheet(comparisons, results, scale="quick"))
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {16} and text.count("\n|") == len(comparisons) + 2
    assert "Scale: quick. n = 5 seeds per cell." in text
    assert "±: sample standard deviation of the differences over seeds" in text
    assert "against ±0.02 nats per token (conf/evidence.yaml)" in text


def test_the_declared_margin() -> None:
    assert load_margin() == 0.02


@pytest.mark.parametrize(
    ("text", "says"),
    [("equivalence_margin_nats: wide", "finite number above 0"), ("equivalence_margin_nats: -0.1", "above 0"),
     ("equivalence_margin_nats: .inf", "finite"), ("equivalence_margin_nats: true", "finite number"),
     ("margin: 0.1", "keys found: margin"), ("", "keys found: none"), ("a: [", "cannot be read")],
)  # fmt: skip
def test_a_malformed_margin_is_one_line(tmp_path, text: str, says: str) -> None:
    path = tmp_path / "evidence.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=says) as caught:
        load_margin(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(ConfigError, match="equivalence_margin_nats"):
        load_margin(path)


def test_the_papers_difference_is_of_its_printed_means_and_of_the_final_loss(cells) -> None:
    comparisons = build_comparisons(make_results(cells, losses()), MARGIN)
    assert only(comparisons).printed_nats == pytest.approx(4.0158 - 4.0212)
    assert only(comparisons, at="best").printed_nats is None
    other = only(comparisons, dataset="pg19", row="b2_l512_d64", pair="XPOS − RoPE")
    assert other.printed_nats == pytest.approx(6.907 - 6.699)
    row = next(csv.DictReader(io.StringIO(render_comparisons_csv([other]))))
    assert row["paper_nats"] == "0.208000"


def test_every_row_of_the_sheet_names_the_cells_it_is_worked_out_from(cells) -> None:
    results = make_results(cells, losses())
    comparisons = build_comparisons(results, MARGIN)
    sheet = comparisons_sheet(comparisons, results, scale="quick")
    keys = {cell.key: (cell.dataset, cell.row, cell.model) for cell in cells}
    for one, row, found in zip(comparisons, sheet.rows, sheet.keys, strict=True):
        assert [keys[key] for key in found] == [(one.dataset, one.row, m) for m in (one.first, one.second)]
        assert row[sheet.link_column] == one.pair
