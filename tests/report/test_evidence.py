"""Contrasts on made runs, intervals and words against other code."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.interpolate
import scipy.stats
import yaml

from crope.errors import UserError
from crope.report import evidence
from crope.report.evidence import (
    CLAIMS,
    CONTRASTS,
    FOREST,
    LEVEL,
    MARGIN,
    PRIMARY,
    PRIMARY_LEVEL,
    Contrast,
    answer,
    best_rate,
    build_evidence,
    classify,
    equal_size,
    find_comparisons,
    from_first_setting,
    interval,
    length_change,
    random_effects,
    size_cost,
    train_loss,
)
from crope.report.frame import load_frame
from crope.runs.compose import group_files
from crope.runs.record import PUBLISHED
from crope.runs.study import StudyRow, expected_rows, expected_table_rows, study_axes
from tests.report.frames import make_frame, make_row, make_runs

NOISE = {0: 0.02, 1: -0.01, 2: 0.03}
COST = Contrast("cost", "mine", "Cost?", "crope", "rope")
BOTH = [make_row(dataset=name) for name in ("ptb", "wikitext2")]


def shifted(by: float, scale: float = 1.0) -> dict[int, float]:
    return {seed: 5.0 + by + scale * noise for seed, noise in NOISE.items()}


def lines_of(contrast: Contrast, rows: list[StudyRow], *runs: list) -> list[dict]:
    return answer(contrast, find_comparisons(make_frame(*runs), rows))


def test_every_contrast_is_of_a_study_that_has_its_models() -> None:
    every = [*CONTRASTS, *CLAIMS, *(contrast for pair in PRIMARY for contrast in pair)]
    for contrast in every:
        assert {contrast.first, *contrast.seconds} - {""} <= set(
            study_axes(contrast.study)["model"]
        )
        if contrast.ablation:
            assert contrast.ablation in study_axes(contrast.study)["ablation"]
    assert {study for studies in FOREST for study in studies} <= set(group_files("study"))
    assert len(PRIMARY) <= 5
    assert all(planned.level == PRIMARY_LEVEL for planned, _ in PRIMARY)
    for contrast in (*CONTRASTS, *CLAIMS, *(stand_in for _, stand_in in PRIMARY)):
        primary = contrast in CLAIMS and contrast.study == "paper_row"  # P5 beside what is printed
        assert contrast.level == (PRIMARY_LEVEL if primary else LEVEL)


@pytest.mark.parametrize("level", [0.95, 0.99])
def test_the_interval_of_one_corpus_is_students(level: float) -> None:
    values = [0.01, 0.03, -0.02, 0.015, 0.04]
    expected = scipy.stats.ttest_1samp(values, 0).confidence_interval(level)
    assert interval([values], level) == pytest.approx((np.mean(values), *expected), rel=1e-12)


def test_the_interval_over_two_corpora_is_welchs() -> None:
    """The mean of two means is half the difference of one and minus the other."""
    first, second = np.array([0.01, 0.03, -0.02, 0.015]), np.array([0.3, 0.1, 0.25, 0.2, 0.35, 0.1])
    welch = scipy.stats.ttest_ind(first, -second, equal_var=False).confidence_interval(0.95)
    mean = (first.mean() + second.mean()) / 2
    expected = (mean, welch.low / 2, welch.high / 2)
    assert interval([first, second], 0.95) == pytest.approx(expected, rel=1e-12)


def test_one_seed_has_no_interval_and_equal_values_have_no_width() -> None:
    mean, low, high = interval([[0.1, 0.2], [0.3]], 0.95)
    assert mean == pytest.approx(0.225) and math.isnan(low) and math.isnan(high)
    assert interval([[0.1, 0.1]], 0.95) == (0.1, 0.1, 0.1)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.001, 0.5, "higher"),
        (0.001, 0.019, "higher by less than 0.02"),
        (-0.5, -0.001, "lower"),
        (-0.019, -0.001, "lower by less than 0.02"),
        (-0.019, 0.019, "no difference above 0.02"),
        (-0.021, 0.019, "open"),
        (-0.019, 0.021, "open"),
        (math.nan, math.nan, "missing"),
    ],
)
def test_words_are_read_off_the_interval(low: float, high: float, expected: str) -> None:
    assert MARGIN == 0.02
    assert classify(low, high) == expected


def test_random_effects_maximise_the_restricted_likelihood() -> None:
    """The same likelihood as a multivariate normal of contrasts to the first row, on a grid."""
    means, errors = np.array([0.01, -0.05, 0.08, 0.0]), np.array([0.01, 0.02, 0.03, 0.005])
    contrasts = np.hstack([-np.ones((3, 1)), np.eye(3)])
    grid = np.linspace(0, 0.1, 2001)
    likelihood = [
        scipy.stats.multivariate_normal.logpdf(
            contrasts @ means, cov=contrasts @ np.diag(errors**2 + tau**2) @ contrasts.T
        )
        for tau in grid
    ]
    mean, *_, tau = random_effects(means, errors)
    assert tau == pytest.approx(grid[np.argmax(likelihood)], abs=1e-4) and tau > 0.01
    assert mean == pytest.approx(np.average(means, weights=1 / (errors**2 + tau**2)))


def test_a_difference_is_first_minus_second_at_equal_seed() -> None:
    rows = [make_row("mine", ["rope", "crope", "halved"])]
    runs = [make_runs("rope", shifted(0)), make_runs("halved", shifted(0.3, 3))]
    runs.append(make_runs("crope", dict(reversed(shifted(0.1, 2).items())), train=shifted(0.7)))
    (line,) = lines_of(COST, rows, *runs)
    assert line["values"] == pytest.approx([0.12, 0.09, 0.13])
    assert (line["n"], line["mean_nats"]) == (3, pytest.approx(0.34 / 3))
    assert line["answer"] == "higher" and line["difference"] == "CRoPE − RoPE"
    both = replace(COST, second=("rope", "halved"))
    (line,) = lines_of(both, rows, *runs)
    expected = [0.1 + 2 * x - (x + 0.3 + 3 * x) / 2 for x in NOISE.values()]
    assert line["values"] == pytest.approx(expected)
    of_training = replace(COST, value=train_loss)
    assert lines_of(of_training, rows, *runs)[0]["mean_nats"] == pytest.approx(0.7)


def test_corpora_are_strata_and_tiny_is_none() -> None:
    rows = [*BOTH, make_row(dataset="tiny")]
    runs = [make_runs("rope", shifted(0), dataset=row.dataset) for row in rows]
    for row, scale in zip(rows, (2.0, 5.0, 90.0), strict=True):
        runs.append(make_runs("crope", shifted(0.1, scale), dataset=row.dataset))
    ptb, wikitext2, both = lines_of(COST, rows, *runs)
    assert (ptb["dataset"], wikitext2["dataset"], both["dataset"]) == ("ptb", "wikitext2", "")
    expected = interval([ptb["values"], wikitext2["values"]], LEVEL)
    assert [both[key] for key in ("mean_nats", "low_nats", "high_nats")] == pytest.approx(expected)
    assert both["where"] == "Penn Treebank and Wikitext-2"
    del runs[4][2]  # no answer before each corpus has its planned seeds
    ptb, wikitext2, both = lines_of(COST, rows, *runs)
    assert (ptb["answer"], wikitext2["answer"]) == ("higher", "missing")
    assert (both["answer"], both["reason"]) == ("missing", "2 of 3 planned seeds")
    (alone,) = lines_of(COST, rows[2:], *runs)
    assert alone["dataset"] == "tiny"


def test_a_corpus_without_runs_is_asked_after_the_steps_of_the_others() -> None:
    runs = [make_runs(model, {0: 5.0}, **{"config.train.max_steps": 3200}) for model in ("rope", "crope")]  # fmt: skip
    lines = lines_of(replace(COST, question="{steps}"), BOTH, *runs)
    assert [line["question"] for line in lines] == ["3,200"] * 3


def test_planned_seeds_answer_and_no_others() -> None:
    rows = [make_row()]
    rope = dict.fromkeys(range(5), 5.0)
    crope = {0: 5.1, 1: 5.2, 2: 5.3, 3: 9.0, 4: 9.0}
    (line,) = lines_of(COST, rows, make_runs("rope", rope), make_runs("crope", crope))
    assert line["values"] == pytest.approx([0.1, 0.2, 0.3])
    del crope[1]
    (line,) = lines_of(COST, rows, make_runs("rope", rope), make_runs("crope", crope))
    assert (line["answer"], line["reason"], line["n"]) == ("missing", "2 of 3 planned seeds", 2)
    assert math.isnan(line["low_nats"])


def test_a_diverged_run_has_no_difference() -> None:
    runs = [make_runs("rope", dict.fromkeys(range(3), 5.0)), make_runs("crope", shifted(0.1))]
    runs[1][0] |= {"status": "failed", "error.type": evidence.DIVERGED}
    (line,) = lines_of(COST, [make_row()], *runs)
    assert line["values"] == pytest.approx([0.1 + NOISE[1], 0.1 + NOISE[2]])
    assert line["reason"] == "2 of 3 planned seeds, 1 diverged"


def test_studies_share_their_seeds_but_a_primary_one_has_its_own(monkeypatch) -> None:
    rows = [
        make_row(seeds=[0, 1]),
        make_row("more", ["rope", "crope", "nope"], seeds=[1, 2, 3]),
        make_row("unfinished", seeds=[4, 5]),
    ]
    losses = {0: 5.1, 1: 5.2, 2: 5.3, 3: 5.4, 4: 9.0}
    runs = [make_runs("crope", losses), make_runs("rope", dict.fromkeys(losses, 5.0))]
    (line,) = lines_of(COST, rows, *runs)
    assert line["values"] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    for primary_study in ("mine", "more"):
        monkeypatch.setattr(evidence, "PRIMARY_STUDIES", {primary_study})
        (line,) = lines_of(COST, rows, *runs)
        assert line["values"] == pytest.approx([0.1, 0.2])
    primary = replace(COST, level=PRIMARY_LEVEL)
    (line,) = lines_of(primary, rows, *runs)
    assert line["values"] == pytest.approx([0.1, 0.2]) and line["level"] == 0.99
    _, low, high = interval([[0.1, 0.2]], 0.99)
    assert (line["low_nats"], line["high_nats"]) == pytest.approx((low, high))


def test_a_primary_line_stands_in_until_its_own_runs_are_there(monkeypatch) -> None:
    planned = replace(COST, level=PRIMARY_LEVEL)
    stand_in = replace(COST, study="today")
    monkeypatch.setattr(evidence, "PRIMARY", [(planned, stand_in)])
    rows = [
        make_row(lr="0.5"),
        make_row("today", seeds=[0, 1]),
    ]
    runs = [make_runs(model, {0: 5.0, 1: 5.1}) for model in ("rope", "crope")]
    line = build_evidence(find_comparisons(make_frame(*runs), rows)).primary.iloc[0]
    assert (line["study"], line["planned"], line["level"]) == ("today", False, LEVEL)
    runs += [make_runs(model, shifted(0), lr="0.5") for model in ("rope", "crope")]
    line = build_evidence(find_comparisons(make_frame(*runs), rows)).primary.iloc[0]
    assert (line["study"], line["planned"], line["level"]) == ("mine", True, PRIMARY_LEVEL)
    assert math.isnan(line["text_error_nats"])  # no losses of windows
    runs = [make_runs(model, {0: 5.0, 1: 5.1}, lr="0.5") for model in ("rope", "crope")]
    line = build_evidence(find_comparisons(make_frame(*runs), rows[:1])).primary.iloc[0]
    assert (line["reason"], line["planned"]) == ("2 of 3 planned seeds", False)


def test_the_error_from_the_text_is_that_of_the_mean_of_its_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    models, seeds, blocks = ("crope", "lowrank", "halved"), (0, 1), evidence.TEXT_BLOCKS
    rows, runs, errors = [], [], []
    for dataset in ("ptb", "wikitext2"):
        windows_MSN = rng.normal(size=(3, 3, 2 * blocks))  # the third seed is not planned
        windows_MSN += rng.normal(size=(3, 1, blocks)).repeat(2, axis=2)  # equal within a block
        for model, windows_SN in zip(models, windows_MSN, strict=True):
            lines = make_runs(model, {0: 5.0, 1: 5.1, 2: 5.2}, dataset=dataset)
            for line, windows in zip(lines, windows_SN, strict=True):
                line["path"] = tmp_path / line["path"]
                line["path"].mkdir(parents=True)
                np.save(line["path"] / "val_windows.npy", windows)
            runs.append(lines)
        rows.append(make_row("mine", models, dataset=dataset, seeds=seeds))
        crope, lowrank, halved = windows_MSN[:, :2].mean(axis=1)
        difference = crope - lowrank / 2 - halved / 2
        errors.append(scipy.stats.sem(difference.reshape(-1, 2).mean(axis=1)))
    contrast = replace(COST, second=("lowrank", "halved"))
    rows.append(make_row("mine", models, dataset="tiny", seeds=seeds))  # stands in for no other
    error = evidence.text_error(contrast, find_comparisons(make_frame(*runs), rows))
    assert error == pytest.approx(math.hypot(*errors) / 2)


def test_differences_between_rows_compare_as_those_of_one_row_do(monkeypatch) -> None:
    rows = [make_row("mine", ["rope"], lr=lr) for lr in ("1", "2")]
    runs = [make_runs("rope", {0: 5.0}, lr="1"), make_runs("rope", {0: 5.0}, lr="2", precision="bf16")]  # fmt: skip
    assert len(find_comparisons(make_frame(*runs), rows)) == 2
    monkeypatch.setattr(evidence, "ACROSS_ROWS", {"mine"})
    with pytest.raises(UserError, match="differ"):
        find_comparisons(make_frame(*runs), rows)


def test_of_repeats_the_copy_beside_the_other_models_is_compared() -> None:
    """RoPE of seed 0 was trained on two machines, CRoPE on the second one only."""
    rows = [make_row(seeds=(0, 1))]
    first, second = (
        [
            run | {"path": f"{folder}/{run['run_id']}", "precision": precision}
            for run in [*make_runs("rope", rope), *make_runs("crope", crope)]
        ]
        for folder, precision, rope, crope in (
            ("first", "fp32", {0: 9.0, 1: 5.0}, {1: 5.3}),
            ("second", "bf16", {0: 5.0, 1: 9.0}, {0: 5.1}),
        )
    )
    (line,) = lines_of(COST, rows, first, second)
    assert line["values"] == pytest.approx([0.1, 0.3])
    third = make_runs("nope", {0: 5.0}) + make_runs("halved", {0: 5.0}, status="stale")
    third = [run | {"path": f"first/{run['run_id']}"} for run in third]
    more = [*rows, make_row("mine", ["rope", "nope"], seeds=(0,))]
    more.append(make_row("other", ["rope", "crope", "halved"], seeds=(0, 1)))
    found = find_comparisons(make_frame(first, second, third), more)  # each row by itself
    ropes = [comparison.by_seed("rope")[0] for comparison in found]
    assert ropes == [5.0, 9.0, 5.0]
    with pytest.raises(UserError, match="differ"):  # in one folder there is no choice
        lines_of(COST, rows, first, [run | {"path": f"first/{run['seed']}"} for run in second])


def rate_runs() -> list[list[dict]]:
    """At 0.003 the mean of seeds 1 and 2 of CRoPE is higher than at 0.001, with seed 0 it is lower.
    Seed 3 is not planned: with it, no seed would choose 0.003.
    """
    return [
        make_runs("rope", dict.fromkeys(range(4), 5.0), lr="0.001"),
        make_runs("crope", dict.fromkeys(range(4), 5.0), lr="0.001"),
        make_runs("rope", dict.fromkeys(range(4), 4.9), lr="0.003"),
        make_runs("crope", {0: 4.0, 1: 5.2, 2: 4.9, 3: 9.0}, lr="0.003"),
    ]


def at_best_rates(runs: list[list[dict]]) -> dict:
    rows = [make_row(lr=lr) for lr in ("0.001", "0.003")]
    (line,) = lines_of(replace(COST, value=best_rate), rows, *runs)
    return line


def test_a_seeds_best_rate_is_chosen_on_the_other_seeds() -> None:
    """Seed 0: the others have mean 5.05 at 0.003 and 5.0 at 0.001, so 5.0; seeds 1 and 2: 0.003."""
    values = at_best_rates(rate_runs())["values"]
    assert values == pytest.approx([5.0 - 4.9, 5.2 - 4.9, 4.9 - 4.9])


def test_no_best_rate_before_all_rates_are_there_and_an_infinite_loss_is_never_chosen() -> None:
    runs = rate_runs()
    line = at_best_rates(runs[:2])
    assert line["reason"] and not line["n"]
    runs[3][2] |= {"status": "failed", "error.type": evidence.DIVERGED}
    line = at_best_rates(runs)
    assert (line["values"], line["reason"]) == ((), "0 of 3 planned seeds")


def test_a_seed_that_lacks_a_rate_does_not_count() -> None:
    """Seed 0 would choose the rate that it has: the others are worse at the one that it lacks."""
    runs = rate_runs()
    del runs[3][0]
    assert at_best_rates(runs)["reason"] == "2 of 3 planned seeds"


def test_another_setting_is_compared_with_the_first_one() -> None:
    """CRoPE at the first rate, RoPE at each larger one; not at the first itself."""
    rows, runs = [], []
    for lr, crope, rope in (("1", 0.3, 9.0), ("2", 9.0, 0.1), ("3", 9.0, 0.5)):
        rows.append(make_row(lr=lr))
        runs += [make_runs("crope", shifted(crope), lr=lr), make_runs("rope", shifted(rope), lr=lr)]
    lines = lines_of(replace(COST, value=from_first_setting), rows, *runs)
    assert [(line["setting"], line["n"]) for line in lines] == [("lr 2", 3), ("lr 3", 3)]
    assert [line["mean_nats"] for line in lines] == pytest.approx([0.2, -0.2])


def test_a_size_between_those_of_the_runs_is_interpolated_and_none_beyond() -> None:
    """Parameters are 1,000 times the width; CRoPE's are 900 times. A cubic through the logs."""
    curve = {64: 5.5, 128: 5.0, 256: 4.8}
    rows = [make_row(width=width) for width in curve]
    runs = []
    for width, loss in curve.items():
        size = {"width": width, "parameters.total": 900 * width}
        runs.append(make_runs("rope", shifted(loss - 5), width=width))
        runs.append(make_runs("crope", dict.fromkeys(NOISE, loss), **size))
    spline = scipy.interpolate.PchipInterpolator(np.log([64e3, 128e3, 256e3]), [5.5, 5.0, 4.8])
    at_equal_size = lines_of(replace(COST, value=equal_size), rows, *runs)
    assert [line["width"] for line in at_equal_size] == [128, 256]
    for line in at_equal_size:
        at_size = spline(np.log(900 * line["width"]))
        expected = [curve[line["width"]] - at_size - noise for noise in NOISE.values()]
        assert line["values"] == pytest.approx(expected)
    cost = lines_of(replace(COST, value=size_cost), rows, *runs)
    assert cost[0]["mean_nats"] == pytest.approx(spline(np.log(900 * 128)) - 5.0)
    larger = [[run | {"parameters.total": 10**9} for run in part] for part in runs[1::2]]
    beyond = lines_of(replace(COST, value=equal_size), rows, *runs[::2], *larger)
    failed = {"status": "failed", "error.type": evidence.DIVERGED, "parameters.total": None}
    diverged = [[run | failed for run in part] for part in runs[1::2]]
    none = lines_of(replace(COST, value=equal_size), rows, *runs[::2], *diverged)
    assert all(line["reason"] and not line["n"] for line in [*beyond, *none])


def test_the_change_with_length_is_of_the_tokens_beyond_the_training_length() -> None:
    """Over all tokens 0.3 at 4 L; a quarter of them contributes nothing, so 0.4."""
    rows = [make_row("long", ["alibi"])]
    runs = make_runs("alibi", shifted(0))
    runs = [run | {"lengths": [(256, 5.0), (512, 7.0), (1024, 5.3)]} for run in runs]
    contrast = Contrast("length", "long", "?", "alibi", value=length_change)
    (line,) = lines_of(contrast, rows, runs)
    assert line["values"] == pytest.approx([0.4] * 3)


def test_the_papers_differences_stand_beside_those_of_their_rows() -> None:
    """CRoPE - RoPE as printed: 6.5836 - 6.5809 in Table 1, 6.584 - 6.607 in a row of Table 2."""
    rows = expected_table_rows("quick")
    keys = {
        (row.study, row.dataset, cell.row, cell.model): cell.key
        for row in rows
        for cell in row.cells
    }
    runs = []
    for row in ("base", "b2_l512_g09_s1000"):
        for model, level in {"rope": 5.0, "crope": 5.1, "xpos": 5.9}.items():
            final, train = (dict.fromkeys(range(5), loss) for loss in (level, 10 - level))
            made = make_runs(model, final, train=train, dataset="pg19", row=row)
            runs.append([run | {"cell_key": keys["table2", "pg19", row, model]} for run in made])
    claims = build_evidence(find_comparisons(make_frame(*runs), rows)).claims
    of_final = claims[(claims["first"] == "crope") & (claims["family"] != "Fig. 4")]
    printed = of_final.set_index(["study", "row"])["paper_nats"]
    assert printed["table1", "base"].iloc[0] == pytest.approx(6.5836 - 6.5809)
    assert printed["table2", "b2_l512_g09_s1000"] == pytest.approx(6.584 - 6.607)
    answered = of_final.dropna(subset="low_nats").set_index(["study", "row"])["mean_nats"]
    assert answered["table2", "b2_l512_g09_s1000"] == pytest.approx(0.1)
    of_training = claims[claims["family"] == "Fig. 4"].dropna(subset="low_nats")
    assert list(of_training["mean_nats"]) == pytest.approx([-0.1, -0.8])


def final_losses(model: str, dataset: str, folder: Path) -> pd.Series:
    """Final losses of the runs at the default settings by seed, read without the project's code."""
    default = {"embed_scale": "sqrt_d", "dropout": 0, "tied_head": True, "d_model": 128}
    default |= {"lr": 0.001, "max_steps": 800}
    losses = {}
    for path in folder.glob(f"{model}-{dataset}-base-s*"):
        config = yaml.load((path / "config.yaml").read_text(), yaml.CSafeLoader)
        if default.items() <= (config["model"] | config["train"]).items():
            summary = json.loads((path / "summary.json").read_text())
            losses[summary["seed"]] = summary["val_full"]["final_nats"]
    return pd.Series(losses)


def test_the_difference_while_training_and_the_papers_where_rope_has_its_loss(monkeypatch) -> None:
    """RoPE: 8 - step / 100, five validations average to at most 6.607 at step 180 of 1,000."""
    row = make_row("paper_row", dataset="pg19", seeds=(1, 2))
    cells = [replace(cell, row="b2_l512_g09_s1000", scale="paper") for cell in row.cells]
    runs = [
        make_runs(
            cell.model, {1: 4.7, 2: 4.8, 3: 9.0}, dataset="pg19", row=cell.row, cell_key=cell.key, train_tokens=1e6
        )
        for cell in cells
    ]  # fmt: skip

    def curve(path: str) -> pd.DataFrame:
        steps = np.arange(0, 1001, 20)
        losses = 8 - steps / 100 + ("crope" in path) * (0.1 + ("s2" in path))
        return pd.DataFrame({"step": steps, "val/loss_nats": losses})

    monkeypatch.setattr(evidence, "load_curves", curve)
    found = build_evidence(find_comparisons(make_frame(*runs), [replace(row, cells=tuple(cells))]))
    (claim,) = found.claims.to_dict("records")
    assert claim["paper_nats"] == pytest.approx(6.584 - 6.607)
    (comparison,) = found.training
    assert comparison.paper == pytest.approx((180_000, 6.584 - 6.607, 6.607))
    assert comparison.differences.loc[1].to_numpy() == pytest.approx([0.1] * 10)
    assert comparison.differences.loc[2].to_numpy() == pytest.approx([1.1] * 10)
    assert comparison.rope_nats.iloc[0] == pytest.approx(8 - 0.6)  # steps 20 to 100
    assert list(comparison.differences.columns[:2]) == pytest.approx([50_000, 150_000])


def test_a_panel_of_the_forest_is_over_equal_corpora_and_names_a_single_one(monkeypatch) -> None:
    monkeypatch.setattr(evidence, "FOREST", (("mine", "more"), ("more",)))
    rows = [*BOTH, make_row("more", ["rope", "nope", "halved"])]
    runs = [
        make_runs(model, shifted(0), dataset=name, **{"config.train.max_steps": 3200})
        for name in ("ptb", "wikitext2")
        for model in ("rope", "crope", "nope")
    ]
    # Not all of its planned seeds are there, so that it is not drawn.
    runs.append(make_runs("halved", {0: 5.0, 1: 5.0}, **{"config.train.max_steps": 3200}))
    drawn = build_evidence(find_comparisons(make_frame(*runs), rows)).forest
    assert drawn[["title", "first"]].to_numpy().tolist() == [
        ["quick scale, 3,200 steps", "crope"],
        ["Penn Treebank, 3,200 steps", "nope"],
    ]


def test_of_equal_titles_the_curve_of_most_seeds_is_drawn(monkeypatch) -> None:
    seeds = {"base": (0, 1), "cost": (2, 3, 4), "horizon": (0, 1, 2)}
    rows = [make_row(study, seeds=chosen) for study, chosen in seeds.items()]
    rows.append(make_row("base", dataset="wikitext2", seeds=(0,)))
    runs = [
        make_runs(model, dict.fromkeys(range(4), 5.0), dataset=dataset, train_tokens=1e6)
        for model in ("rope", "crope")
        for dataset in ("ptb", "wikitext2")
    ]
    curve = pd.DataFrame({"step": np.arange(0, 101), "val/loss_nats": 5.0})
    monkeypatch.setattr(evidence, "load_curves", lambda path: curve)
    drawn = build_evidence(find_comparisons(make_frame(*runs), rows)).training
    assert [(training.study, len(training.differences)) for training in drawn] == [
        ("horizon", 3),
        ("base", 1),
    ]

    # Runs of another length have a title of their own.
    cells = tuple(replace(cell, key=f"longer {cell.model}") for cell in rows[0].cells)
    for cell in cells:
        longer = {"cell_key": cell.key, "config.train.max_steps": 3200, "train_tokens": 1e6}
        runs.append(make_runs(cell.model, dict.fromkeys(range(3), 5.0), **longer))
    rows = [rows[0], replace(rows[2], cells=cells)]
    drawn = build_evidence(find_comparisons(make_frame(*runs), rows)).training
    assert [training.study for training in drawn] == ["base", "horizon"]


def test_published_differences_recomputed_with_other_code() -> None:
    folder = PUBLISHED / "cpu-fp32"
    rows = [row for row in expected_rows("quick") if row.study == "base"]
    frame, _ = load_frame([folder])
    contrast = replace(COST, study="base")
    lines = answer(contrast, find_comparisons(frame, rows))
    for line, dataset in zip(lines[:2], ("ptb", "wikitext2"), strict=True):
        crope, rope = (final_losses(model, dataset, folder) for model in ("crope", "rope"))
        difference = (crope - rope).dropna()
        assert len(difference) == 10
        expected = scipy.stats.ttest_1samp(difference, 0).confidence_interval(0.95)
        assert (line["low_nats"], line["high_nats"]) == pytest.approx(expected, rel=1e-9)
