"""Losses and answers of the studies on chosen losses, files of finished runs, and the questions against conf/study."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.interpolate

from crope.compose import group_files
from crope.errors import DataError
from crope.report import stats, studies
from crope.report.studies import QUESTIONS, answer, collect_studies, held_out, study_losses
from crope.study import StudyRow, expected_rows
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
    assert {name for question in QUESTIONS for name in (question.first, question.second) if name} <= models
    assert {question.kind for question in QUESTIONS} == {
        "loss", "equal_size", "size_cost", "length", "best_rate", "settings"
    }  # fmt: skip


def test_a_study_starts_with_a_run_of_its_own() -> None:
    rows = [make_row("controls", ["rope", "crope", "halved"])]
    tables_only = make_frame(make_runs("rope", at(5.0)), make_runs("crope", at(5.0)))
    assert collect_studies(tables_only, rows, tables=TABLES).empty
    assert answers_of(tables_only, rows).empty
    started = make_frame(make_runs("rope", at(5.0)), make_runs("crope", at(5.0)), make_runs("halved", {0: 5.2}))
    assert len(collect_studies(started, rows, tables=TABLES)) == 7
    both = [*rows, make_row("horizon", ["rope", "halved"])]  # no study alone has `halved`
    assert collect_studies(started, both, tables=TABLES).empty


def test_a_study_of_the_tables_models_starts_with_a_seed_of_its_own() -> None:
    rows = [make_row("base", ["rope", "crope"], seeds=range(4))]
    assert collect_studies(make_frame(make_runs("rope", at(5.0))), rows, tables=TABLES).empty
    assert len(collect_studies(make_frame(make_runs("rope", at(5.0) | {3: 5.0})), rows, tables=TABLES)) == 4


def test_losses_are_means_and_deviations_over_seeds_and_missing_models_are_named() -> None:
    rows = [make_row("controls", ["rope", "crope", "halved"])]
    frame = make_frame(make_runs("rope", {0: 5.0, 1: 5.2, 2: 5.7}), make_runs("halved", {0: 5.5}))
    lines = study_losses(collect_studies(frame, rows, tables=TABLES), rows).set_index("model")
    assert lines.loc["rope", ["n", "status"]].tolist() == [3, "complete"]
    assert lines.loc["rope", "mean_nats"] == pytest.approx(5.3)
    assert lines.loc["rope", "std_nats"] == pytest.approx(math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2))
    assert lines.loc["crope", ["n", "status"]].tolist() == [0, "missing"]
    assert pd.isna(lines.loc["halved", "std_nats"])
    assert "+0.5000" in lines.loc["halved", "reference"]
    printed = studies.losses_table(lines.reset_index(), "controls", "quick").frame
    assert printed["Loss"].tolist() == ["5.3000 ± 0.3606", "missing", "5.5000"]


def test_a_study_without_questions_has_a_table_of_losses_by_its_own_setting() -> None:
    rows = [make_row("mine", ["rope", "alibi"], lr=lr) for lr in ("0.001", "0.003")]
    frame = make_frame(make_runs("alibi", at(5.0), lr="0.001"), make_runs("alibi", at(6.0), lr="0.003"))
    runs = collect_studies(frame, rows, tables=TABLES)
    lines = study_losses(runs, rows)
    found = lines[lines["n"] > 0].set_index("setting")["mean_nats"].to_dict()
    assert found == pytest.approx({"train.lr=0.001": 5.0, "train.lr=0.003": 6.0})
    assert answer(runs, rows).empty
    assert "Setting" in studies.losses_table(lines, "mine", "quick").frame


@pytest.mark.parametrize(("crope", "expected"), [(4.8, "yes, lower"), (5.0, "no, equal"), (5.2, "no, higher")])
def test_an_answer_follows_the_sign_of_first_minus_second(crope: float, expected: str) -> None:
    rows = [make_row("controls", ["rope", "crope", "lowrank", "blockdiag", "halved"])]
    halves = [make_runs(model, at(5.0)) for model in ("lowrank", "blockdiag", "halved")]
    found = answers_of(make_frame(make_runs("crope", at(crope, 2.0)), *halves), rows)
    assert lines_of(found, "at half the weights")["answer"].tolist() == [expected] * 3


def test_an_answer_is_about_the_mean_over_the_studys_datasets() -> None:
    rows = [make_row("controls", ["rope", "complex_qk"], dataset=dataset) for dataset in ("ptb", "wikitext2")]
    ptb = make_runs("rope", at(5.0)), make_runs("complex_qk", {0: 5.10, 1: 5.12, 2: 5.14})
    other = {"dataset": "wikitext2"}
    wikitext2 = make_runs("rope", {0: 4.0, 1: 4.1, 2: 4.2}, **other), make_runs("complex_qk", at(4.2), **other)
    found = lines_of(answers_of(make_frame(*ptb, *wikitext2), rows), "in Q and K")
    assert found["judged"].tolist() == [False, False, True]
    # ptb: 0.101, 0.12, 0.139; wikitext2: 0.199, 0.1, 0.001.
    assert found["values"].iloc[2] == pytest.approx((0.15, 0.11, 0.07))
    assert found["by_dataset"].iloc[2] == "Penn Treebank +0.1200, Wikitext-2 +0.1000"
    assert found["conclusion"].tolist() == ["", "", "inconclusive"]
    alone = lines_of(answers_of(make_frame(*ptb), rows), "in Q and K")
    assert alone["conclusion"].tolist() == ["", "", "not tested"]
    assert "Wikitext-2" in alone["reason"].iloc[2]


def test_all_tests_of_the_report_share_its_error_rate() -> None:
    """The shares of all questions, each at every width of its study, and of the claims sum to 1."""
    rows = expected_rows("quick")
    widths = {study: {row.width for row in rows if row.study == study} for study in {row.study for row in rows}}
    total = sum(studies.share(question, rows) * len(widths[question.study]) for question in QUESTIONS)
    assert total + stats.SHARES["claims"] == pytest.approx(1)
    scaling = [make_row("scaling", ["rope", "crope"], width=width) for width in (64, 128)]
    frame = make_frame(
        *(make_runs(m, at(5.0 + (m == "crope") * 0.01, 1 + i), width=64) for i, m in enumerate(("rope", "crope")))
    )
    lines = lines_of(answers_of(frame, scaling), "level with RoPE at every width")
    others = [question for question in QUESTIONS if question.study not in stats.SHARES]
    tests = len(others) + sum(question.study == "scaling" for question in others)  # two widths
    raw, adjusted = lines["p_different"].iloc[0], lines["p_different_adjusted"].iloc[0]
    assert adjusted == pytest.approx(raw * tests / stats.SHARES["other"])
    assert lines["conclusion"].tolist()[1] == "not tested"


def test_no_answer_before_all_planned_seeds_and_none_from_others() -> None:
    rows = [make_row("controls", ["rope", "complex_qk"], seeds=range(4))]
    three = [make_runs("rope", at(5.0)), make_runs("complex_qk", at(5.1, 2.0))]
    (found,) = lines_of(answers_of(make_frame(*three), rows), "in Q and K").to_dict("records")
    assert found["conclusion"] == "not tested" and "3 of 4" in found["reason"] and found["t_low_nats"] > 0
    more = [make_runs("rope", {7: 5.0, 8: 5.0}), make_runs("complex_qk", {7: 9.0, 8: 9.0})]
    (found,) = lines_of(answers_of(make_frame(*three, *more), rows), "in Q and K").to_dict("records")
    assert (found["n"], found["conclusion"]) == (3, "not tested")


def test_settings_are_repetitions() -> None:
    rows = [make_row("pilot", ["rope", "crope"], lr=lr, seeds=[0]) for lr in ("0.001", "0.002", "0.003")]
    parts = []
    for lr, gap in {"0.001": 0.01, "0.002": 0.011, "0.003": 0.012}.items():
        parts += [make_runs("rope", {0: 5.0 + float(lr)}, lr=lr), make_runs("crope", {0: 5.0 + float(lr) + gap}, lr=lr)]
    (found,) = lines_of(answers_of(make_frame(*parts), rows), "leaves open").to_dict("records")
    assert found["values"] == pytest.approx((0.01, 0.011, 0.012))
    assert found["p_different"] == pytest.approx(scipy.stats.ttest_1samp([0.01, 0.011, 0.012], 0).pvalue)


def test_at_equal_size_the_loss_of_rope_is_a_monotone_cubic_in_the_log_of_its_parameters() -> None:
    sizes, losses = {64: 100, 128: 400, 256: 1600}, {64: 6.0, 128: 5.5, 256: 5.3}
    rope = [
        make_runs("rope", at(losses[width]), width=width, **{"parameters.total": size}) for width, size in sizes.items()
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
    outside = make_frame(*rope, make_runs("crope", at(5.4), width=64, **{"parameters.total": 50}))
    assert set(lines_of(answers_of(outside, rows), "as many parameters")["n"]) == {0}


def test_a_held_out_loss_is_at_the_rate_that_the_other_seeds_choose() -> None:
    losses = pd.DataFrame({1e-3: [5.0, 5.4, 5.4], 3e-3: [5.3, 5.3, 5.3]}, index=[0, 1, 2])
    # Seed 0: the others have 5.4 against 5.3. Seeds 1 and 2: the others have 5.2 against 5.3.
    assert held_out(losses).to_dict() == {0: 5.3, 1: 5.4, 2: 5.4}
    assert held_out(losses.iloc[:1]).empty
    assert held_out(pd.DataFrame({1e-3: [math.inf, math.inf]})).empty


def test_each_model_is_judged_at_its_own_best_rate_and_a_diverged_run_is_an_infinite_loss() -> None:
    rows = [make_row("fair_lr", ["xpos", "rope", "crope"], lr=lr) for lr in ("0.001", "0.003")]
    error = {"status": "failed", "error.type": studies.DIVERGED}
    frame = make_frame(
        make_runs("rope", at(5.0), lr="0.001"), make_runs("rope", at(5.5), lr="0.003"),
        make_runs("crope", at(5.6), lr="0.001"), make_runs("crope", at(5.0, 3.0), lr="0.003"),
        make_runs("xpos", at(5.9), lr="0.001"), make_runs("xpos", {0: 1.0, 1: 1.0}, lr="0.003"),
        make_runs("xpos", {2: math.nan}, lr="0.003", **error),
    )  # fmt: skip
    lines = answers_of(frame, rows).set_index("first")
    assert lines.loc["crope", "values"] == pytest.approx((-0.002, 0.0, 0.002))
    assert lines.loc["crope", "p_equivalent"] == pytest.approx(scipy.stats.ttest_1samp(
        [-0.002, 0.0, 0.002], -0.02, alternative="greater").pvalue)  # fmt: skip
    # Seed 2 diverges at the rate that seeds 0 and 1 choose: no held-out loss.
    assert (lines.loc["xpos", "n"], lines.loc["xpos", "answer"]) == (0, "not tested")
    losses = study_losses(collect_studies(frame, rows, tables=TABLES), rows)
    assert "diverged" in set(studies.losses_table(losses, "fair_lr", "quick").frame["Loss"])


@pytest.fixture
def measured(tmp_path: Path) -> pd.DataFrame:
    """ALiBi over three seeds: losses at 1, 2 and 4 times the length of 256 tokens."""
    lines = make_runs("alibi", at(5.0))
    for line in lines:
        line["path"] = str(tmp_path / f"s{line['seed']}")
        seed, path = line["seed"], Path(line["path"])
        path.mkdir()
        losses = {256: 5.1, 512: None, 1024: 5.0 + 0.001 * seed}
        lengths = [{"seq_len": n, "loss_nats": loss, "tokens": 1024, "note": "too long"} for n, loss in losses.items()]
        segments = [{"first": 0, "last": 255, "loss_nats": 5.2}, {"first": 256, "last": 511, "loss_nats": 4.8}]
        found = {"trained_seq_len": 256, "lengths": lengths, "by_position": segments}
        (path / "extrapolation.json").write_text(json.dumps(found))
    return make_frame(lines, make_runs("rope", at(5.0)))


def test_the_length_study_compares_the_tokens_beyond_the_training_length(measured: pd.DataFrame) -> None:
    rows = [make_row("length", ["rope", "alibi"])]
    runs = collect_studies(measured, rows, tables=TABLES)
    lines = study_losses(runs, rows)
    assert lines[["model", "seq_len", "n"]].fillna(0).to_numpy().tolist() == [
        ["rope", 0, 0], ["alibi", 256, 3], ["alibi", 1024, 3]
    ]  # fmt: skip
    assert lines["mean_nats"].tolist()[1:] == pytest.approx([5.1, 5.001])
    found = lines_of(answer(runs, rows), "ALiBi hold at 4 times").iloc[0]
    # Three quarters of the tokens stand beyond 256: the difference of the means is 4/3 as large there.
    assert found["values"] == pytest.approx(tuple(4 / 3 * value for value in (-0.1, -0.099, -0.098)))
    assert found["answer"] == "yes, and gains"
    assert lines_of(answer(runs, rows), "RoPE hold at 4 times")["answer"].tolist() == ["not tested"] * 2


def test_a_file_that_is_not_json_is_named(measured: pd.DataFrame) -> None:
    path = Path(measured["path"].iloc[0]) / "extrapolation.json"
    path.write_text("{")
    with pytest.raises(DataError, match=r"extrapolation\.json"):
        collect_studies(measured, [make_row("length", ["alibi"])], tables=TABLES)


def test_conversions_are_read_and_compared_by_seed(tmp_path: Path) -> None:
    lines = make_runs("rope", at(5.0))
    for line in lines:
        line["path"] = str(tmp_path / f"s{line['seed']}")
        Path(line["path"]).mkdir()
        tuned = {"rope": 5.0, "best": 5.1 + NOISE[line["seed"]], "random": 5.3, "fresh": 6.0}
        share = {"best": 0.7, "best_by_chance": [0.5, 0.6]}
        found = {"steps": 200, "lr": 1e-4, "loss_nats": {**tuned, "trained": 5.0}, "tuned_loss_nats": tuned}
        (Path(line["path"]) / "conversion.json").write_text(json.dumps(found | {"kept_share": share}))
    found_lines = studies.conversions(make_frame(lines, make_runs("crope", at(5.0))))
    assert len(found_lines) == 3 * len(studies.ARMS)
    (printed,) = studies.conversions_table(found_lines, "quick").frame.to_dict("records")
    assert printed["best structure"] == "5.1000 → 5.1000"
    assert printed["Best − random, tuned"].startswith("−0.2000 (95 % −0.2025 to −0.1975")
    assert printed["Kept"] == "0.700 (by chance 0.550)"


def test_answers_print_their_question_difference_and_interval() -> None:
    rows = [make_row("controls", ["rope", "complex_qk"])]
    lines = answers_of(make_frame(make_runs("rope", at(5.0)), make_runs("complex_qk", at(5.1, 2.0))), rows)
    (printed,) = studies.answers_table(lines_of(lines, "in Q and K"), "quick").frame.to_dict("records")
    assert (printed["Difference"], printed["Mean, nats"], printed["n"]) == ("Q/K only − RoPE", "+0.1000", "3")
    assert printed["95 %"] == "[+0.0975, +0.1025]"
