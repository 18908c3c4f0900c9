"""Differences, conclusions and verdicts against closed forms and scipy."""

import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from crope import paper
from crope.report import claims
from crope.report.claims import CLAIMS, MARGIN, compare, conclude, describe, judge, verdict
from crope.report.tables import render
from tests.report.frames import make_cell, make_frame, make_runs

PLACES = list(dict.fromkeys(place for claim in CLAIMS for place in claim.rows))
NOISE = {
    0: -0.001,
    1: 0.0,
    2: 0.001,
    3: -0.001,
    4: 0.001,
}  # differences of mean 0 and standard deviation 0.001


def shifted(loss: float) -> dict[int, float]:
    return {seed: loss + 0.1 * seed for seed in NOISE}


def noisy(loss: float) -> dict[int, float]:
    return {seed: loss + 0.1 * seed + NOISE[seed] for seed in NOISE}


def table_runs(
    xpos: float = 0.4,
    crope: float = 0.0,
    cells: Mapping[tuple[str, str], dict[int, float]] | None = None,
    balanced: float | None = 0.5,
) -> pd.DataFrame:
    """Every cell of both tables at RoPE's losses plus a difference; `cells` replaces the losses of
    CRoPE in some.
    """
    lines = []
    for dataset, row in PLACES:
        crope_losses = (cells or {}).get((dataset, row), noisy(5.0 + crope))
        for model, final in {
            "rope": shifted(5.0),
            "xpos": noisy(5.0 + xpos),
            "crope": crope_losses,
        }.items():
            lines.append(make_runs(model, final, dataset=dataset, row=row))
        if balanced is not None:
            lines.append(
                make_runs("xpos_balanced", noisy(5.0 + balanced), dataset=dataset, row=row)
            )
    return make_frame(*lines)


def verdict_of(checks: pd.DataFrame, claim: str) -> str:
    (found,) = checks.loc[checks["claim"] == claim, "verdict"].unique()
    return str(found)


def test_collect_takes_the_complete_runs_of_each_configuration_once() -> None:
    frame = make_frame(
        make_runs("rope", {1: 5.0, 0: 4.0}), make_runs("crope", {0: 4.5}, status="failed")
    )
    cells = [make_cell("rope", "ptb"), make_cell("rope", "ptb"), make_cell("crope", "ptb")]
    assert claims.collect(frame, cells)[["model", "seed"]].to_numpy().tolist() == [
        ["rope", 0],
        ["rope", 1],
    ]


def test_a_difference_pairs_equal_seeds_and_has_scipys_interval_and_p_values() -> None:
    first = pd.Series({0: 5.10, 2: 5.25, 3: 5.31, 7: 9.0})
    second = pd.Series({0: 5.00, 1: 1.00, 2: 5.20, 3: 5.22})
    found = claims.difference({"crope": first, "rope": second})
    test = scipy.stats.ttest_rel([5.10, 5.25, 5.31], [5.00, 5.20, 5.22])
    low, high = test.confidence_interval()
    assert found["values"] == pytest.approx((0.10, 0.05, 0.09))
    assert (found["n"], found["mean_nats"], found["p_different"]) == pytest.approx(
        (3, 0.08, test.pvalue)
    )
    assert (found["t_low_nats"], found["t_high_nats"]) == pytest.approx((low, high))
    assert found["std_over_seeds_nats"] == pytest.approx(
        math.sqrt(((0.02) ** 2 + 0.03**2 + 0.01**2) / 2)
    )
    above = scipy.stats.ttest_rel(
        [5.12, 5.27, 5.33], [5.00, 5.20, 5.22], alternative="greater"
    ).pvalue
    below = scipy.stats.ttest_rel([5.08, 5.23, 5.29], [5.00, 5.20, 5.22], alternative="less").pvalue
    assert found["p_equivalent"] == pytest.approx(max(above, below))


@pytest.mark.parametrize(
    ("first", "second", "n", "reason"),
    [
        ({}, {0: 1.0}, 0, "CRoPE"),
        ({0: 1.0}, {1: 1.0}, 0, "seed"),
        ({0: 2.0, 1: 2.0}, {0: 1.0, 1: 1.0}, 2, "3"),
    ],
)
def test_without_the_seeds_for_a_test_there_is_a_reason(
    first: dict[int, float], second: dict[int, float], n: int, reason: str
) -> None:
    series = {"crope": pd.Series(first, dtype=float), "rope": pd.Series(second, dtype=float)}
    found = claims.difference(series)
    assert (found["n"], math.isnan(found["p_different"])) == (n, True)
    assert reason in found["reason"]


def test_a_test_waits_for_all_planned_seeds() -> None:
    """The interval is there from three seeds on; p-values, and so conclusions, only with every
    planned seed.
    """
    found = describe(pd.Series([0.1, 0.11, 0.12, 0.13]), planned=5)
    assert found["t_low_nats"] > 0
    assert math.isnan(found["p_different"]) and math.isnan(found["p_equivalent"])
    assert "4 of 5" in found["reason"]
    assert describe(pd.Series([0.1, 0.11, 0.12, 0.13]), planned=4)["p_different"] < 0.01


def test_the_margin_shown_is_the_larger_end_of_the_90_percent_interval() -> None:
    values = [0.010, 0.014, 0.009, 0.013]
    interval = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert describe(pd.Series(values))["margin_shown_nats"] == pytest.approx(
        max(abs(interval.low), interval.high)
    )
    shown = describe(pd.Series(values))["margin_shown_nats"]
    assert scipy.stats.ttest_1samp(values, shown, alternative="less").pvalue == pytest.approx(0.05)


def lines_of(*values: Sequence[float], share: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame(
        [describe(pd.Series(one, dtype=float)) | {"share": share} for one in values]
    )


def test_conclusions_are_drawn_from_both_adjusted_tests() -> None:
    high, low, equal, wide = (
        [0.2, 0.21, 0.22],
        [-0.2, -0.21, -0.22],
        [0.001, 0.0, -0.001],
        [0.2, -0.1, 0.05],
    )
    small = [0.0099, 0.01, 0.0101]  # above 0 and below the margin
    found = conclude(lines_of(high, low, equal, wide, small, []))
    expected = [
        "higher",
        "lower",
        "equivalent",
        "inconclusive",
        "higher within the margin",
        "not tested",
    ]
    assert found["conclusion"].tolist() == expected
    assert conclude(lines_of([-x for x in small]))["conclusion"].tolist() == [
        "lower within the margin"
    ]


def test_a_conclusion_needs_the_lines_share_of_the_error_rate() -> None:
    some = [0.01, 0.013, 0.02]  # p = 0.04
    p = scipy.stats.ttest_1samp(some, 0).pvalue
    for share, expected in (
        (1.0, "higher"),
        (0.9, "higher"),
        (0.5, "inconclusive"),
        (0.01, "inconclusive"),
    ):
        found = conclude(lines_of(some, share=share)).iloc[0]
        assert (found["p_different_adjusted"], found["conclusion"]) == (
            pytest.approx(min(1, p / share)),
            expected,
        )


def test_an_inconclusive_line_says_how_many_seeds_it_needs_from_five_seeds_on() -> None:
    spread = np.array([-2, -1, 0, 1, 2]) * 0.02
    far, near, four = conclude(lines_of(spread + 0.011, spread + 0.009, spread[:4], share=0.1))[
        "seeds_needed"
    ]
    for text, mean, aim in ((far, 0.011, "difference"), (near, 0.009, "equality")):
        low, high = claims.seeds_range(spread + mean, MARGIN, 0.005)
        assert str(low) in text and str(high) in text and aim in text
    assert four == ""


def test_comparisons_are_first_minus_second_in_each_row_beside_the_papers() -> None:
    found = compare(table_runs(xpos=0.4, crope=0.03), PLACES)
    assert len(found) == 3 * len(PLACES)
    means = found.groupby(["first", "second"])["mean_nats"].agg(["min", "max"])
    for pair, mean in {
        ("crope", "rope"): 0.03,
        ("xpos", "rope"): 0.4,
        ("xpos", "crope"): 0.37,
    }.items():
        assert means.loc[pair].tolist() == pytest.approx([mean, mean])
    ptb = found[(found["dataset"] == "ptb") & (found["second"] == "rope")].set_index("first")[
        "paper_nats"
    ]
    assert ptb["crope"] == pytest.approx(4.0158 - 4.0212)
    assert ptb["xpos"] == pytest.approx(4.4288 - 4.0212)


@pytest.mark.parametrize(
    ("p_for", "p_against", "expected"),
    [
        # LEVEL is 0.001875; each check is made at it, because an intersection-union test needs no
        # correction.
        ([0.0018, 0.0018, 0.0018], [1, 1, 1], "supported"),
        ([0.001, 0.001, 0.0019], [1, 1, 1], "inconclusive"),
        ([0.001, 0.9, 0.9], [1, 1, 1], "inconclusive"),  # one check of many is not enough
        ([0.001, 0.001, math.nan], [1, 1, math.nan], "not tested"),
        ([0.001, 0.001, 0.9], [1, 1, 0.00063], "inconclusive"),  # 3 x 0.00063 after Bonferroni
        ([0.001, 0.001, 0.9], [1, 1, 0.00062], "not supported"),
        ([0.9, math.nan, math.nan], [0.00062, math.nan, math.nan], "not supported"),
        ([0.9, math.nan, math.nan], [0.00063, math.nan, math.nan], "not tested"),
    ],
)
def test_the_rule_of_a_verdict(p_for: list[float], p_against: list[float], expected: str) -> None:
    assert verdict(pd.DataFrame({"p_for": p_for, "p_against": p_against})) == expected


def test_rules_test_against_the_margin() -> None:
    values = np.array([0.02, 0.03, 0.04]) + 0.005  # mean 0.035: above 0.02, but only just
    markedly, higher, equivalent = (
        claims.RULES[name] for name in ("markedly higher", "higher", "equivalent")
    )
    assert markedly.p_for(values) == pytest.approx(
        scipy.stats.ttest_1samp(values, MARGIN, alternative="greater").pvalue
    )
    assert higher.p_for(values) == pytest.approx(
        scipy.stats.ttest_1samp(values, 0, alternative="greater").pvalue
    )
    assert markedly.p_for(values) > 0.05 > higher.p_for(values)
    low, high = scipy.stats.ttest_1samp(values - 0.045, 0).confidence_interval(0.9)
    assert (equivalent.p_for(values - 0.045) < 0.05) == (low > -MARGIN and high < MARGIN)


def test_all_claims_hold_if_crope_equals_rope_and_xpos_is_worse() -> None:
    checks = judge(table_runs())
    assert {claim.name: verdict_of(checks, claim.name) for claim in CLAIMS} == {
        claim.name: "supported" for claim in CLAIMS
    }


def test_a_crope_that_is_worse_contradicts_the_claims_of_equality() -> None:
    checks = judge(table_runs(crope=0.1))
    assert verdict_of(checks, "xpos_worse") == "supported"
    for claim in ("crope_within_noise", "rows_within_noise", "training_order"):
        assert verdict_of(checks, claim) == "not supported"


def test_xpos_that_is_higher_by_less_than_the_margin_is_not_markedly_worse() -> None:
    assert verdict_of(judge(table_runs(xpos=0.015)), "xpos_worse") == "not supported"


def test_absolute_positions_are_judged_by_two_models_and_beside_no_positions() -> None:
    """A claim on absolute positions must hold for both models: the paper's XPOS drowns the
    embedding at this scale.
    """
    assert verdict_of(judge(table_runs(xpos=0.4, balanced=0.015)), "xpos_worse") == "not supported"
    assert verdict_of(judge(table_runs(xpos=0.015, balanced=0.4)), "xpos_worse") == "not supported"
    runs = table_runs(balanced=None)
    checks = judge(runs)
    assert verdict_of(checks, "xpos_worse") == "not tested"
    text = claims.verdicts(checks, runs)[0]["text"]
    assert all(
        part in text for part in ("balanced XPOS", "STUDY=absolute", "No run without positions")
    )
    runs = pd.concat([runs, make_frame(make_runs("nope", shifted(5.07)))])
    assert (
        "RoPE − NoPE: Penn Treebank −0.0700 (n = 5)"
        in claims.verdicts(judge(runs), runs)[0]["text"]
    )


def test_seeds_that_are_not_planned_enter_no_test() -> None:
    more = [
        make_runs(model, {7: loss}, dataset="ptb")
        for model, loss in (("rope", 5.0), ("crope", 9.0))
    ]
    checks = judge(pd.concat([table_runs(), make_frame(*more)]))
    assert verdict_of(checks, "crope_within_noise") == "supported"
    assert set(checks["n"]) == {5}


def test_one_cell_without_runs_leaves_its_claims_open() -> None:
    checks = judge(table_runs(cells={("pg19", "b2_l512_d64"): {}}))
    assert verdict_of(checks, "rows_within_noise") == "not tested"
    assert verdict_of(checks, "crope_within_noise") == "supported"


def test_the_training_claim_is_judged_on_training_losses() -> None:
    parts = []
    for dataset in paper.DATASET_LABELS:
        parts += [
            make_runs("rope", shifted(5.0), dataset=dataset, train=shifted(3.0)),
            make_runs("crope", noisy(5.5), dataset=dataset, train=noisy(3.0)),
            make_runs("xpos", noisy(4.5), dataset=dataset, train=noisy(3.4)),
            make_runs("xpos_balanced", noisy(4.5), dataset=dataset, train=noisy(3.3)),
        ]
    checks = judge(make_frame(*parts))
    assert verdict_of(checks, "training_order") == "supported"
    assert verdict_of(checks, "crope_within_noise") == "not supported"


def test_the_sentence_of_a_verdict_names_the_deciding_check() -> None:
    runs = table_runs(cells={("wikitext2", "base"): {0: 5.2, 1: 4.9, 2: 5.4, 3: 5.1, 4: 5.6}})
    found = {one["claim"].name: one for one in claims.verdicts(judge(runs), runs)}
    weakest = found["crope_within_noise"]
    assert weakest["verdict"] == "inconclusive"
    for part in ("2 of 3", "Wikitext-2, CRoPE − RoPE", "n = 5", "±0.02"):
        assert part in weakest["text"]
    assert "10 of 12" in found["xpos_worse"]["text"]
    assert "RoPE − NoPE" not in weakest["text"]


def test_the_tables_print_conclusions_and_their_csv_holds_numbers() -> None:
    lines = compare(table_runs(), PLACES)
    printed = render(claims.comparison_table(lines, "quick"), "md")
    assert printed.count("| CRoPE − RoPE |") == len(PLACES)
    numbers = pd.read_csv(io.StringIO(render(claims.comparison_table(lines, "quick"), "csv")))
    assert numbers["mean_nats"].tolist() == pytest.approx(lines["mean_nats"].tolist(), abs=1e-6)
    table = claims.verdict_table(judge(table_runs()), table_runs(), "quick")
    assert table.frame["Verdict"].tolist() == ["supported"] * len(CLAIMS)


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "+0.0123"), (-0.5, "−0.5000"), (-0.00001, "+0.0000")]
)
def test_differences_are_printed_with_a_sign(value: float, text: str) -> None:
    assert claims.signed(value) == text
    assert claims.signed(math.nan) == ""
