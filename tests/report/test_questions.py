"""The questions against conf/study, and their answers on chosen losses."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import scipy.interpolate

from crope.compose import group_files
from crope.report import questions, stats, studies
from crope.report.questions import QUESTIONS, answer, held_out
from crope.report.studies import collect_studies, study_losses
from crope.study import StudyRow
from tests.report.frames import make_frame, make_key, make_row, make_runs

NOISE = {0: -0.001, 1: 0.0, 2: 0.001}
TABLES = {make_key(model, "ptb") for model in ("xpos", "rope", "crope")}


def at(loss: float, scale: float = 1.0) -> dict[int, float]:
    return {seed: loss + scale * noise for seed, noise in NOISE.items()}


def lines_of(found: pd.DataFrame, question: str) -> pd.DataFrame:
    return found[found["question"].str.contains(question, regex=False)].reset_index(drop=True)


def answers_of(frame: pd.DataFrame, rows: Sequence[StudyRow]) -> pd.DataFrame:
    return answer(collect_studies(frame, rows, tables=TABLES), rows)


def test_every_question_is_of_a_study_and_of_models_that_exist() -> None:
    known, models = set(group_files("study")), set(group_files("model"))
    assert {question.study for question in QUESTIONS} <= known
    assert {
        name for question in QUESTIONS for name in (question.first, question.second) if name
    } <= models
    assert {question.kind for question in QUESTIONS} == {
        "loss", "equal_size", "size_cost", "length", "best_rate"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("crope", "expected"), [(4.8, "yes, lower"), (5.0, "equal within ±0.02"), (5.2, "no, higher")]
)
def test_an_answer_follows_the_sign_of_first_minus_second(crope: float, expected: str) -> None:
    rows = [make_row("controls", ["rope", "crope", "lowrank", "blockdiag", "halved"])]
    halves = [make_runs(model, at(5.0)) for model in ("lowrank", "blockdiag", "halved")]
    found = answers_of(make_frame(make_runs("crope", at(crope, 2.0)), *halves), rows)
    assert lines_of(found, "at half the Q/K/V weights")["answer"].tolist() == [expected] * 3


def test_an_answer_is_about_the_mean_over_the_studys_datasets() -> None:
    rows = [
        make_row("controls", ["rope", "complex_qk"], dataset=dataset)
        for dataset in ("ptb", "wikitext2")
    ]
    ptb = make_runs("rope", at(5.0)), make_runs("complex_qk", {0: 5.10, 1: 5.12, 2: 5.14})
    other = {"dataset": "wikitext2"}
    wikitext2 = (
        make_runs("rope", {0: 4.0, 1: 4.1, 2: 4.2}, **other),
        make_runs("complex_qk", at(4.2), **other),
    )
    found = lines_of(answers_of(make_frame(*ptb, *wikitext2), rows), "in Q and K")
    assert found["judged"].tolist() == [False, False, True]
    # ptb: 0.101, 0.12, 0.139; wikitext2: 0.199, 0.1, 0.001.
    assert found["values"].iloc[2] == pytest.approx((0.15, 0.11, 0.07))
    assert found["by_part"].iloc[2] == "Penn Treebank +0.1200; Wikitext-2 +0.1000"
    assert found["conclusion"].tolist() == ["", "", "inconclusive"]
    alone = lines_of(answers_of(make_frame(*ptb), rows), "in Q and K")
    assert alone["conclusion"].tolist() == ["", "", "not tested"]
    assert "Wikitext-2" in alone["reason"].iloc[2]


def test_all_tests_of_the_report_share_its_error_rate() -> None:
    """The shares of all questions, of the claims and of studies to come sum to 1."""
    total = sum(questions.share(question) for question in QUESTIONS)
    assert total + stats.SHARES["claims"] + stats.SHARES["own"] == pytest.approx(1)
    frame = make_frame(make_runs("rope", at(5.0)), make_runs("complex_qk", at(5.1, 2)))
    (line,) = lines_of(
        answers_of(frame, [make_row("controls", ["rope", "complex_qk"])]), "in Q and K"
    ).to_dict("records")
    tests = sum(question.study == "controls" for question in QUESTIONS)
    assert line["p_different_adjusted"] == pytest.approx(
        line["p_different"] * tests / stats.SHARES["controls"]
    )


def test_a_study_of_ones_own_is_judged_on_the_mean_of_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = questions.Question("mine", "Does it?", "crope", "rope", questions.COSTS)
    monkeypatch.setattr(questions, "QUESTIONS", [*QUESTIONS, own])
    rows = [make_row("mine", ["rope", "crope"], lr=lr) for lr in ("0.002", "0.003")]
    parts = [make_runs("rope", at(5.0), lr=row.settings[0][-5:]) for row in rows]
    parts += [
        make_runs("crope", at(5.1 + i, 2), lr=row.settings[0][-5:]) for i, row in enumerate(rows)
    ]
    lines = answers_of(make_frame(*parts), rows)
    assert lines["label"].tolist() == [
        f"CRoPE − RoPE, train.lr={lr}" for lr in ("0.002", "0.003")
    ] + ["CRoPE − RoPE"]
    assert lines["mean_nats"].tolist() == pytest.approx([0.1, 1.1, 0.6])
    assert lines["judged"].tolist() == [False, False, True]
    assert set(lines["share"]) == {stats.SHARES["own"]}


def test_a_question_without_answers_is_shown_and_not_judged() -> None:
    rows = [make_row("pilot", ["rope", "crope"], lr=lr) for lr in ("0.002", "0.003")]
    parts = [
        make_runs(model, at(loss), lr=lr)
        for lr in ("0.002", "0.003")
        for model, loss in (("rope", 5), ("crope", 6))
    ]
    lines = answers_of(make_frame(*parts), rows)
    assert lines["judged"].tolist() == [False, False] and lines["p_different_adjusted"].isna().all()
    printed = questions.answers_table(lines, "quick").frame
    assert (
        printed["Answer"].tolist() == ["not judged"] * 2
        and printed["Mean, nats"].tolist() == ["+1.0000"] * 2
    )


def test_tiny_stands_in_for_no_dataset_of_a_question() -> None:
    rows = [
        make_row("controls", ["rope", "complex_qk"], dataset=dataset) for dataset in ("ptb", "tiny")
    ]
    frame = make_frame(make_runs("rope", at(5.0)), make_runs("complex_qk", at(5.1, 2)))
    (line,) = lines_of(answers_of(frame, rows), "in Q and K").to_dict("records")
    assert (line["where"], line["judged"]) == ("Penn Treebank", True)


def test_a_difference_that_may_lie_within_the_margin_is_no_evidence_against_equality() -> None:
    rows, losses = (
        [make_row("base", ["rope", "crope"], seeds=range(4, 8))],
        {4: 5.0, 5: 5.1, 6: 5.2, 7: 5.3},
    )
    for gaps, expected in (
        ((0.018, 0.02, 0.022, 0.02), "higher; not shown to be within ±0.02"),
        ((0.0095, 0.0105, 0.0102, 0.0098), "higher, but within ±0.02"),
    ):
        crope = {seed: losses[seed] + gap for seed, gap in enumerate(gaps, 4)}
        (line,) = answers_of(
            make_frame(make_runs("rope", losses), make_runs("crope", crope)), rows
        ).to_dict("records")
        assert line["answer"] == expected


def test_no_answer_before_all_planned_seeds_and_none_from_others() -> None:
    rows = [make_row("controls", ["rope", "complex_qk"], seeds=range(4))]
    three = [make_runs("rope", at(5.0)), make_runs("complex_qk", at(5.1, 2.0))]
    (found,) = lines_of(answers_of(make_frame(*three), rows), "in Q and K").to_dict("records")
    assert (
        found["conclusion"] == "not tested"
        and "3 of 4" in found["reason"]
        and found["t_low_nats"] > 0
    )
    more = [make_runs("rope", {7: 5.0, 8: 5.0}), make_runs("complex_qk", {7: 9.0, 8: 9.0})]
    (found,) = lines_of(answers_of(make_frame(*three, *more), rows), "in Q and K").to_dict(
        "records"
    )
    assert (found["n"], found["conclusion"]) == (3, "not tested")


def test_at_equal_size_the_loss_of_rope_is_a_monotone_cubic_in_the_log_of_its_parameters() -> None:
    sizes, losses = {64: 100, 128: 400, 256: 1600}, {64: 6.0, 128: 5.5, 256: 5.3}
    rope = [
        make_runs("rope", at(losses[width]), width=width, **{"parameters.total": size})
        for width, size in sizes.items()
    ]
    crope = make_runs("crope", at(5.4, 3.0), width=128, **{"parameters.total": 300})
    rows = [make_row("scaling", ["rope", "crope"], width=width) for width in sizes]
    lines = lines_of(answers_of(make_frame(*rope, crope), rows), "as many parameters")
    curve = scipy.interpolate.PchipInterpolator(np.log([100, 400, 1600]), [6.0, 5.5, 5.3])
    found = lines.set_index("where").loc["Penn Treebank, D = 128"]
    assert found["mean_nats"] == pytest.approx(5.4 - float(curve(math.log(300))))
    cost = lines_of(answers_of(make_frame(*rope, crope), rows), "RoPE of CRoPE's size")
    assert cost.set_index("where").loc["Penn Treebank, D = 128", "mean_nats"] == pytest.approx(
        float(curve(math.log(300))) - 5.5
    )
    # The smallest CRoPE is smaller than every RoPE, so that only two widths can be compared.
    assert set(cost["where"].iloc[:2]) == {"Penn Treebank, D = 128", "Penn Treebank, D = 256"}


def test_a_held_out_loss_is_at_the_rate_that_the_other_seeds_choose() -> None:
    losses = pd.DataFrame({1e-3: [5.0, 5.4, 5.4], 3e-3: [5.3, 5.3, 5.3]}, index=[0, 1, 2])
    # Seed 0: the others have 5.4 against 5.3. Seeds 1 and 2: the others have 5.2 against 5.3.
    assert held_out(losses).to_dict() == {0: 5.3, 1: 5.4, 2: 5.4}
    assert held_out(losses.iloc[:1]).empty
    assert held_out(pd.DataFrame({1e-3: [math.inf, math.inf]})).empty


def test_each_model_is_judged_at_its_own_best_rate_and_a_diverged_run_is_an_infinite_loss() -> None:
    rows = [make_row("fair_lr", ["rope", "crope"], lr=lr) for lr in ("0.001", "0.003")]
    error = {"status": "failed", "error.type": studies.DIVERGED}
    slow = [
        make_runs("rope", at(5.0), lr="0.001"), make_runs("crope", at(5.6), lr="0.001"),
        make_runs("rope", {0: math.nan}, lr="0.001", **error),  # of an earlier version, beside a complete run
    ]  # fmt: skip
    rope, crope = (
        make_runs("rope", at(5.5), lr="0.003"),
        make_runs("crope", at(5.0, 3.0), lr="0.003"),
    )
    (line,) = answers_of(make_frame(*slow, rope, crope), rows).to_dict("records")
    assert line["values"] == pytest.approx((-0.002, 0.0, 0.002))
    assert line["p_equivalent"] == pytest.approx(scipy.stats.ttest_1samp(
        [-0.002, 0.0, 0.002], -0.02, alternative="greater").pvalue)  # fmt: skip
    # Seed 2 diverges at the rate that seeds 0 and 1 choose: no held-out loss.
    frame = make_frame(
        *slow, rope, crope[:2], make_runs("crope", {2: math.nan}, lr="0.003", **error)
    )
    (line,) = answers_of(frame, rows).to_dict("records")
    assert (line["n"], line["answer"]) == (0, "not tested")
    (early,) = answers_of(make_frame(*slow), rows).to_dict("records")
    assert early["answer"] == "not tested" and "1 of 2 learning rates" in early["reason"]
    losses = study_losses(collect_studies(frame, rows, tables=TABLES), rows)
    assert "diverged" in set(studies.losses_table(losses, "fair_lr", "quick").frame["Loss"])


def test_answers_print_their_question_difference_and_interval() -> None:
    rows = [make_row("controls", ["rope", "complex_qk"])]
    lines = answers_of(
        make_frame(make_runs("rope", at(5.0)), make_runs("complex_qk", at(5.1, 2.0))), rows
    )
    (printed,) = questions.answers_table(lines_of(lines, "in Q and K"), "quick").frame.to_dict(
        "records"
    )
    assert (printed["Difference"], printed["Mean, nats"], printed["n"]) == (
        "Q/K only − RoPE",
        "+0.1000",
        "3",
    )
    assert printed["95 %"] == "[+0.0975, +0.1025]"
