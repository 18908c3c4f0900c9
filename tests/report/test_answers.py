"""Answers to the studies' questions: against scipy's paired tests and regressions of the same losses."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest
import scipy.stats

from crope.report.answer_tables import CSV_COLUMNS, answers_sheet, controls_in_a_sentence, render_answers_csv
from crope.report.answers import Answer, fit_slope
from crope.report.questions import build_answers
from crope.report.studies import build_studies
from tests.report.conftest import make_cells, read_source
from tests.report.study_runs import FACTORS, PER_LENGTH, make_rows, make_studies, usual

MARGIN = 0.02
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def answers(all_studies) -> list[Answer]:
    tables = {cell.key for cell in make_cells()}
    return build_answers(
        build_studies(read_source(all_studies).runs, make_rows(), tables=tables, unavailable={}), MARGIN
    )


def only(answers: list[Answer], name: str) -> Answer:
    (one,) = [one for one in answers if one.question.name == name]
    return one


PAIRS = {
    "complex_or_lowrank": ("crope", "lowrank"), "complex_or_halved": ("crope", "halved"),
    "alignment": ("complex_misaligned", "crope"), "qk_only": ("complex_qk", "rope"), "v_only": ("complex_v", "rope"),
    "wide": ("complex_wide", "rope"), "eq30_alibi": ("complex_alibi", "alibi"),
}  # fmt: skip


def test_pairs_are_scipys_paired_t_tests(answers: list[Answer]) -> None:
    for name, pair in PAIRS.items():
        one = only(answers, name)
        for check, dataset in zip(one.checks, ("pg19", "wikitext2"), strict=True):
            first, second = ([usual(model, dataset, 128, seed) for seed in SEEDS] for model in pair)
            test = scipy.stats.ttest_rel(first, second)
            low, high = test.confidence_interval(0.95)
            found = check.difference
            assert (found.mean_nats, found.low_nats, found.high_nats) == pytest.approx(
                (np.mean(first) - np.mean(second), low, high), abs=1e-12
            )
            above = scipy.stats.ttest_rel(first, np.array(second) - MARGIN, alternative="greater").pvalue
            below = scipy.stats.ttest_rel(first, np.array(second) + MARGIN, alternative="less").pvalue
            assert (check.p_different, check.p_equivalent) == pytest.approx((test.pvalue, max(above, below)), rel=1e-6)
            # Two texts of equal differences: Holm doubles both.
            assert check.p_equivalent_holm == pytest.approx(min(1.0, 2 * max(above, below)), rel=1e-6)


def test_length_is_the_paired_change_from_l_to_4l(answers: list[Answer]) -> None:
    for model in ("xpos", "alibi", "rope"):
        check = only(answers, f"extrapolates_{model}").checks[0]
        changes = [2 * (PER_LENGTH[model] + noise) for noise in (0.0, 0.004, -0.003)]
        test = scipy.stats.ttest_1samp(changes, 0.0)
        interval = (check.difference.low_nats, check.difference.high_nats)
        assert interval == pytest.approx(tuple(test.confidence_interval(0.95)), abs=1e-12)
        assert check.p_different == pytest.approx(test.pvalue, rel=1e-6)
    words = {
        model: only(answers, f"extrapolates_{model}").text for model in ("xpos", "alibi", "relative_bias", "learned")
    }
    assert words == {
        "xpos": "no, it loses", "alibi": "yes, and gains", "relative_bias": "yes, equal",
        "learned": "not defined: learned positions end at 1024",
    }  # fmt: skip
    assert str(FACTORS[-1]) in only(answers, "extrapolates_rope").question.text


def test_slope_is_scipys_regression_of_each_seed() -> None:
    generator = np.random.default_rng(3)
    widths = [64, 128, 256, 512]
    table = {width: {seed: generator.normal() for seed in range(5)} for width in widths}
    slope, used = fit_slope(table)
    by_seed = [
        scipy.stats.linregress(np.log2(widths), [table[width][seed] for width in widths]).slope for seed in range(5)
    ]
    assert slope.values_nats == pytest.approx(by_seed)
    assert slope.values_nats == pytest.approx(
        [np.polyfit(np.log2(widths), [table[width][seed] for width in widths], 1)[0] for seed in range(5)]
    )
    assert (slope.low_nats, slope.high_nats) == pytest.approx(
        tuple(scipy.stats.ttest_1samp(by_seed, 0.0).confidence_interval(0.95))
    )
    assert used == widths


def test_slope_takes_the_seeds_that_every_width_has() -> None:
    slope, widths = fit_slope({128: {0: 0.0, 1: 9.0}, 64: {0: 0.5}, 256: {}})
    assert (slope.values_nats, widths) == (pytest.approx((-0.5,)), [64, 128])
    assert fit_slope({64: {0: 1.0}, 128: {}})[0] is None
    assert fit_slope({64: {0: 1.0}, 128: {1: 1.0}})[0] is None


def test_drift_is_judged_by_what_it_adds_up_to(answers: list[Answer]) -> None:
    """+0.002 a doubling over three doublings is +0.006, less than the margin; every seed has this slope."""
    (check,) = only(answers, "drift_pg19").checks
    assert check.difference.mean_nats == pytest.approx(0.002)
    assert check.margin_nats == pytest.approx(MARGIN / math.log2(512 / 64))
    assert check.conclusion == "equivalent"
    assert only(answers, "drift_pg19").text == "no, none"
    assert check.where == "D = 64, 128, 256, 512"


def test_texts_that_disagree_are_answered_apart(runs_dir, read_sound) -> None:
    def final(model: str, dataset: str, width: int, seed: int) -> float:
        shift = {"pg19": -0.1, "wikitext2": 0.0}[dataset] if model == "complex_qk" else 0.0
        return 5.0 + 0.1 * seed + shift + 0.001 * (model == "complex_qk") * (seed - 1)

    make_studies(runs_dir, ["controls"], final=final)
    studies = build_studies(read_sound(), make_rows(), tables=set(), unavailable={})
    one = only(build_answers(studies, MARGIN), "qk_only")
    assert one.text == "PG-19: no, even lower; Wikitext-2: no, equal"
    assert one.at == "final, best"  # the best loss lies as far below the final one in every run


def test_best_stands_apart_where_it_is_not_the_final_loss(runs_dir, read_sound, write_run) -> None:
    for model, best in (("rope", 4.5), ("complex_qk", 4.25)):
        for seed in SEEDS:
            write_run(model, "ptb", seed=seed, final=5.0, best=(80, best))
    studies = build_studies(read_sound(), make_rows(), tables=set(), unavailable={})
    found = {one.at: one for one in build_answers(studies, MARGIN) if one.question.name == "qk_only"}
    assert {at: one.text for at, one in found.items()} == {"final": "no, equal", "best": "no, even lower"}
    assert found["best"].checks[0].difference.mean_nats == -0.25


def test_sheet_csv_and_sentence(answers: list[Answer]) -> None:
    sheet = answers_sheet(answers, scale="quick")
    (row,) = [row for row in sheet.rows if "low rank" in row[1]]
    assert row[:4] == (
        "controls", "Does complex beat low rank, which has half the weights as well?", "final, best",
        "yes, CRoPE is lower",
    )  # fmt: skip
    low, high = scipy.stats.ttest_1samp([-0.074, -0.085, -0.075], 0.0).confidence_interval(0.95)
    assert f"PG-19: −0.0780 (95 % −{-low:.4f} to −{-high:.4f}, n = 3)" in row[4]
    rows = list(csv.DictReader(io.StringIO(render_answers_csv(answers))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert len(rows) == sum(len(one.checks) for one in answers)
    (drift,) = [row for row in rows if row["question"] == "drift_pg19"]
    assert float(drift["mean_nats"]) == pytest.approx(0.002, abs=1e-6)
    # Low rank and blocks lose to CRoPE on both texts, half the width is equal to it.
    assert controls_in_a_sentence(answers) == (
        "Against other maps of half the weights (low rank, diagonal blocks, half the width), CRoPE's final loss in 6"
        " comparisons: 4 lower, 2 equivalent."
    )
    assert controls_in_a_sentence([]) == ""
