"""Answers to the studies' questions: against scipy's paired tests and regressions of the same losses."""

from __future__ import annotations

import csv
import io
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from crope.report.answer_tables import CSV_COLUMNS, answers_sheet, controls_in_a_sentence, render_answers_csv
from crope.report.answers import Answer, Check, fit_slope
from crope.report.questions import MATCHED, build_answers
from crope.report.stats import over_seeds
from crope.report.studies import build_studies
from tests.report.conftest import make_cells, make_parameters, read_source
from tests.report.study_runs import NOISE, PER_LENGTH, make_rows, make_studies, usual

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


def holm(p_values: list[float]) -> list[float]:
    """By the definition: the i-th smallest of m, times what is left of them, at least as large as those before it."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted


def by_scipy(pair: tuple[str, str], dataset: str) -> tuple[float, tuple[float, float], float, float]:
    """Mean, 95 % interval, p different and p equivalent of first - second, by scipy."""
    first, second = (np.array([usual(model, dataset, 128, seed) for seed in SEEDS]) for model in pair)
    test = scipy.stats.ttest_rel(first, second)
    above = scipy.stats.ttest_rel(first, second - MARGIN, alternative="greater").pvalue
    below = scipy.stats.ttest_rel(first, second + MARGIN, alternative="less").pvalue
    return np.mean(first - second), tuple(test.confidence_interval(0.95)), test.pvalue, max(above, below)


def test_pairs_are_scipys_paired_t_tests(answers: list[Answer]) -> None:
    for name, pair in PAIRS.items():
        for check, dataset in zip(only(answers, name).checks, ("pg19", "wikitext2"), strict=True):
            mean, interval, different, equivalent = by_scipy(pair, dataset)
            found = check.difference
            assert (found.mean_nats, found.low_nats, found.high_nats) == pytest.approx((mean, *interval), abs=1e-12)
            assert (check.p_different, check.p_equivalent) == pytest.approx((different, equivalent), rel=1e-6)
            if not name.startswith("complex_or_"):  # two texts of equal differences: Holm doubles both
                assert check.p_equivalent_holm == pytest.approx(min(1.0, 2 * equivalent), rel=1e-6)


def test_maps_of_half_the_weights_are_one_family(answers: list[Answer]) -> None:
    checks = [check for name in MATCHED for check in only(answers, f"complex_or_{name}").checks]
    pairs = [(("crope", name), dataset) for name in MATCHED for dataset in ("pg19", "wikitext2")]
    found = [(check.p_different_holm, check.p_equivalent_holm) for check in checks]
    different, equivalent = (holm([by_scipy(*pair)[part] for pair in pairs]) for part in (2, 3))
    assert found == [pytest.approx(both, rel=1e-6) for both in zip(different, equivalent, strict=True)]


def change_beyond(model: str, factor: int) -> list[float]:
    """study_runs.measure raises the mean over all tokens; a share 1 / factor of them has the same context."""
    doublings = {2: 1, 4: 2}[factor]
    return [doublings * (PER_LENGTH[model] + NOISE[seed]) * factor / (factor - 1) for seed in SEEDS]


def test_length_is_the_paired_change_of_the_tokens_beyond_l(answers: list[Answer]) -> None:
    for model, factor in itertools.product(("xpos", "alibi", "rope"), (2, 4)):
        check = only(answers, f"extrapolates_{model}_{factor}").checks[0]
        test = scipy.stats.ttest_1samp(change_beyond(model, factor), 0.0)
        interval = (check.difference.low_nats, check.difference.high_nats)
        assert interval == pytest.approx(tuple(test.confidence_interval(0.95)), abs=1e-9)
        assert check.p_different == pytest.approx(test.pvalue, rel=1e-6)
    words = {
        model: only(answers, f"extrapolates_{model}_2").text for model in ("xpos", "alibi", "relative_bias", "learned")
    }
    assert words == {
        "xpos": "no, it loses", "alibi": "yes, and gains", "relative_bias": "yes, equal",
        "learned": "not defined: learned positions end at 1024",
    }  # fmt: skip
    assert "4 times" in only(answers, "extrapolates_rope_4").question.text


def test_crope_is_asked_whether_it_holds_as_rope_does(answers: list[Answer]) -> None:
    """Both lose; CRoPE 0.05 a doubling less, with the same noise."""
    for factor, expected in ((2, -0.05 * 2), (4, -0.1 * 4 / 3)):
        one = only(answers, f"extrapolates_as_rope_{factor}")
        assert [check.difference.mean_nats for check in one.checks] == pytest.approx([expected] * 2)
        assert one.text == "it holds better"


def test_a_scheme_is_compared_with_no_positions(answers: list[Answer]) -> None:
    for model in ("alibi", "xpos", "rope"):
        for check, dataset in zip(only(answers, f"worth_{model}").checks, ("pg19", "wikitext2"), strict=True):
            assert check.difference.mean_nats == pytest.approx(by_scipy((model, "nope"), dataset)[0], abs=1e-12)
    assert only(answers, "worth_alibi").text == "yes, lower"
    assert only(answers, "worth_xpos").text == "no, higher"


def test_the_rotation_s_part_is_a_difference_of_differences(answers: list[Answer]) -> None:
    for check, dataset in zip(only(answers, "eq30_needs_rotation").checks, ("pg19", "wikitext2"), strict=True):
        by_seed = [
            usual("crope", dataset, 128, seed) - usual("rope", dataset, 128, seed)
            - usual("complex_nope", dataset, 128, seed) + usual("nope", dataset, 128, seed)
            for seed in SEEDS
        ]  # fmt: skip
        assert check.difference.values_nats == pytest.approx(by_seed, abs=1e-12)
        assert len(check.keys) == 4


def test_an_open_answer_says_how_many_seeds_could_tell() -> None:
    def number(spread: float, p: float) -> str:
        difference = over_seeds([0.01 - spread, 0.01, 0.01 + spread])
        one = Check("PG-19", "A − B", (), margin_nats=MARGIN, difference=difference)
        return replace(one, p_different=p, p_different_holm=p, p_equivalent=1.0, p_equivalent_holm=1.0).number

    assert number(0.021, 0.5).endswith(", n = 3; 11 seeds could tell)")
    assert number(1.0, 0.5).endswith(", n = 3; more than 1,000 seeds could tell)")
    for decided in (number(0.021, 0.01), number(0.001, 0.5)):  # higher; open because of the tests beside it
        assert decided.endswith(", n = 3)")


def test_equal_size_is_read_off_ropes_curve(answers: list[Answer]) -> None:
    """RoPE falls by 0.2 from width to width: against the straight line between two of them, in log parameters."""
    one = only(answers, "equal_size_pg19")
    assert one.checks[0].reason == "no smaller and larger RoPE with a seed in common"
    sizes = {
        m: [math.log(make_parameters(m, width)["total"]) for width in (64, 128, 256, 512)] for m in ("rope", "crope")
    }
    for place, width in ((1, 128), (2, 256), (3, 512)):
        share = (sizes["crope"][place] - sizes["rope"][place - 1]) / (sizes["rope"][place] - sizes["rope"][place - 1])
        by_seed = [
            usual("crope", "pg19", width, seed)
            - (1 - share) * usual("rope", "pg19", width // 2, seed) - share * usual("rope", "pg19", width, seed)
            for seed in SEEDS
        ]  # fmt: skip
        assert 0 < share < 1
        assert one.checks[place].difference.values_nats == pytest.approx(by_seed, abs=1e-12)


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
        "controls", "Does complex beat low rank at half the weights?", "final, best",
        "yes, CRoPE is lower",
    )  # fmt: skip
    low, high = scipy.stats.ttest_1samp([-0.074, -0.085, -0.075], 0.0).confidence_interval(0.95)
    assert f"PG-19: −0.0780 (95 % −{-low:.4f} to −{-high:.4f}, n = 3)" in row[4]
    rows = list(csv.DictReader(io.StringIO(render_answers_csv(answers))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert len(rows) == sum(len(one.checks) for one in answers)
    (drift,) = [row for row in rows if row["question"] == "drift_pg19"]
    assert float(drift["mean_nats"]) == pytest.approx(0.002, abs=1e-6)
    # Low rank and blocks lose to CRoPE on both texts. Half the width would be equal to it but for those.
    assert controls_in_a_sentence(answers) == (
        "Against other maps of half the weights (low rank, diagonal blocks, half the width), CRoPE's final loss in 6"
        " comparisons: 4 lower, 2 cannot tell."
    )
    assert controls_in_a_sentence([]) == ""
