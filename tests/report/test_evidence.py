"""Differences and intervals of losses that are written out here, and the committed contrasts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from crope.errors import ConfigError
from crope.files import json_sha256
from crope.report import evidence
from crope.report.evidence import (
    Contrast,
    answer,
    differences,
    estimate,
    load_contrasts,
    welch_interval,
)
from crope.report.tables import interval_text
from crope.runs.study import planned_scale, study_axes
from tests.report.frames import losses, together

COST = Contrast("cost", ("mine",), ("crope", ""), (("rope", ""),))
RATES = ("train.lr=1", "train.lr=2")


@pytest.fixture(autouse=True)
def three_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every study of these tests has planned the seeds 0, 1 and 2."""
    monkeypatch.setattr(evidence, "planned_seeds", lambda study: (0, 1, 2))


def nats(runs: pd.DataFrame, contrast: Contrast = COST) -> list[float]:
    return differences(runs, contrast)["nats"].round(9).tolist()


def by_seed(line: pd.Series) -> list[float]:
    return line["by_seed"].round(9).tolist()


def test_a_difference_is_taken_within_a_seed() -> None:
    assert nats(losses(rope=[5.0, 5.2, 5.1], crope=[5.1, 5.2, 5.3])) == [0.1, 0.0, 0.2]


def test_a_seed_that_one_model_lacks_is_left_out() -> None:
    lines = differences(losses(rope=[5.0, None, 5.1], crope=[5.1, 5.2, 5.3]), COST)
    assert lines["seed"].tolist() == [0, 2]


def test_the_losses_stand_beside_their_difference() -> None:
    (line,) = differences(losses(rope=[5.0], crope=[5.25]), COST).to_dict("records")
    assert (line["RoPE"], line["CRoPE"], line["nats"]) == (5.0, 5.25, 0.25)


def test_several_seconds_are_averaged_and_none_may_lack() -> None:
    contrast = replace(COST, seconds=(("lowrank", ""), ("halved", "")))
    runs = losses(crope=[5.2, 5.3], lowrank=[5.0, 5.1], halved=[5.1, None])
    assert nats(runs, contrast) == [0.15]


def test_other_studies_and_models_are_left_out() -> None:
    other = losses(study="other", rope=[1.0], crope=[2.0])
    runs = together(losses(rope=[5.0], crope=[5.1], nope=[9.0]), other)
    assert nats(runs) == [0.1]


def test_a_model_alone_is_its_own_value() -> None:
    contrast = replace(COST, first=("rope", ""), seconds=(), of="beyond")
    runs = losses(rope=[5.0, 5.1], columns={"beyond_nats": 0.25})
    assert nats(runs, contrast) == [0.25, 0.25]


def test_training_losses_may_be_subtracted() -> None:
    contrast = replace(COST, of="train")
    rope = losses(rope=[5.0], columns={"train.final_nats": 4.0})
    crope = losses(crope=[5.1], columns={"train.final_nats": 4.5})
    assert nats(together(rope, crope), contrast) == [0.5]


def two_rates() -> pd.DataFrame:
    slow = losses(setting=RATES[0], settings=2, rope=[5.0, 5.0], crope=[5.1, 5.2])
    fast = losses(setting=RATES[1], settings=2, rope=[4.0, 4.0], crope=[4.3, None])
    return together(slow, fast)


def test_each_setting_has_a_line_of_its_own() -> None:
    lines = answer(two_rates(), COST)
    assert list(lines["setting"]) == list(RATES)
    assert [by_seed(line) for _, line in lines.iterrows()] == [[0.1, 0.2], [0.3]]


def test_only_the_settings_that_are_asked() -> None:
    contrast = replace(COST, at=RATES[1:])
    assert nats(two_rates(), contrast) == [0.3]


def test_settings_are_averaged_within_the_seeds_that_have_all() -> None:
    contrast = replace(COST, averaged=True)
    (line,) = answer(two_rates(), contrast).iloc
    assert (by_seed(line), line["setting"]) == ([0.2], "")


def test_a_mean_over_settings_waits_for_a_setting_without_runs() -> None:
    contrast = replace(COST, averaged=True)
    one = losses(setting=RATES[0], settings=2, rope=[5.0], crope=[5.1])
    assert answer(one, contrast).empty


def test_two_settings_are_subtracted() -> None:
    contrast = replace(COST, first=("crope", RATES[1]), seconds=(("rope", RATES[0]),))
    assert nats(two_rates(), contrast) == [-0.7]
    assert contrast.label == "CRoPE at train.lr=2 − RoPE at train.lr=1"


def two_corpora() -> pd.DataFrame:
    ptb = losses(corpora=2, rope=[5.0, 5.0, 5.0], crope=[5.1, 5.2, 5.3])
    wiki = losses(corpora=2, dataset="wikitext2", rope=[6.0, 6.0], crope=[6.3, 6.6])
    return together(ptb, wiki)


def test_corpora_are_averaged_within_the_seeds_that_have_all() -> None:
    lines = answer(two_corpora(), COST)
    assert list(lines["dataset"]) == ["", "ptb", "wikitext2"]
    expected = [[0.2, 0.4], [0.1, 0.2, 0.3], [0.3, 0.6]]
    assert [by_seed(line) for _, line in lines.iterrows()] == expected


def test_the_mean_over_corpora_waits_for_a_corpus_without_runs() -> None:
    all_corpora, ptb = answer(losses(corpora=2, rope=[5.0], crope=[5.1]), COST).iloc
    assert (all_corpora["dataset"], all_corpora["n"]) == ("", 0)
    assert (ptb["dataset"], ptb["n"]) == ("ptb", 1)


def test_the_tables_have_a_line_for_each_corpus_alone() -> None:
    contrast = replace(COST, studies=("table1",))
    lines = answer(two_corpora().assign(study="table1"), contrast)
    assert list(lines["dataset"]) == ["ptb", "wikitext2"]


def test_studies_are_pooled() -> None:
    contrast = replace(COST, studies=("mine", "other"))
    other = losses(study="other", rope=[6.0], crope=[6.5])
    (line,) = answer(together(losses(rope=[5.0], crope=[5.1]), other), contrast).iloc
    assert by_seed(line) == [0.1, 0.5]
    assert line["planned"] == 6


def test_an_interval_is_students() -> None:
    """Mean 0.2, standard deviation 0.1, t(2) = 4.302653: 0.2 -+ 4.302653 * 0.1 / sqrt(3)."""
    line = estimate(pd.Series([0.1, 0.2, 0.3]))
    assert line["mean"] == pytest.approx(0.2)
    assert line["std"] == pytest.approx(0.1)
    assert line["low"] == pytest.approx(-0.048414, abs=1e-6)
    assert line["high"] == pytest.approx(0.448414, abs=1e-6)


def test_one_seed_has_no_interval() -> None:
    line = estimate(pd.Series([0.1]))
    assert (line["n"], line["mean"]) == (1, 0.1)
    assert np.isnan([line["low"], line["high"]]).all()


def test_welchs_interval_over_corpora() -> None:
    """The mean of two means is half the difference of one and minus the other."""
    first, second = pd.Series([0.01, 0.03, -0.02, 0.04]), pd.Series([0.3, 0.1, 0.25, 0.2, 0.3, 0.1])
    welch = stats.ttest_ind(first, -second, equal_var=False).confidence_interval(0.99)
    mean, low, high = welch_interval([first, second], 0.99)
    assert mean == pytest.approx((0.015 + 1.25 / 6) / 2)
    assert (low, high) == pytest.approx((welch.low / 2, welch.high / 2))


def test_a_complete_plan_has_an_interval() -> None:
    (line,) = answer(losses(rope=[5.0, 5.0, 5.0], crope=[5.1, 5.2, 5.3]), COST).iloc
    assert line["complete"]
    assert interval_text(line) == "+0.2000 (−0.0484 to +0.4484)"


def test_an_unfinished_plan_has_none() -> None:
    (line,) = answer(losses(rope=[5.0, 5.0], crope=[5.1, 5.2]), COST).iloc
    assert np.isnan(line["low"])
    assert interval_text(line) == "+0.1500 (2 of 3 seeds)"


def test_a_plan_without_a_run_is_shown() -> None:
    planned = replace(COST, date="2026-11-25")
    (line,) = answer(losses(rope=[5.0]), planned).iloc
    assert interval_text(line) == "0 of 3 seeds"
    assert answer(losses(rope=[5.0]), COST).empty


@pytest.mark.parametrize("rope", [5.0, np.inf])
def test_a_diverged_run_is_not_averaged_away(rope: float) -> None:
    """Also where both sides diverged."""
    (line,) = answer(losses(rope=[5.0, 5.0, rope], crope=[5.1, 5.2, np.inf]), COST).iloc
    assert line["n"] == 3
    assert interval_text(line) == "diverged"


# By hand from the plans: what is subtracted from what, in which study.
PLANNED = {
    "P1": ("cost", "CRoPE − RoPE"),
    "P2": ("cost", "CRoPE − mean of low rank, halved"),
    "P3": ("cost", "Q/K only − V only"),
    "P4": ("cost", "misaligned − CRoPE"),
    "P5": ("paper_row", "CRoPE − RoPE"),
    "R1": ("rate_mean", "CRoPE − RoPE"),
    "Q1": ("qkv_rate", "CRoPE at train.qkv_lr_factor=1.41 − RoPE at train.qkv_lr_factor=1"),
    "Q2": ("qkv_rate", "CRoPE at train.qkv_lr_factor=2 − RoPE at train.qkv_lr_factor=1.41"),
    "Q3": ("qkv_rate", "CRoPE − RoPE"),
    "Q4": ("qkv_rate", "CRoPE − RoPE"),
    "M1": ("medium_rate", "CRoPE − RoPE"),
}


def test_the_planned_contrasts_are_as_planned() -> None:
    planned = {name: c for name, c in load_contrasts().items() if c.date}
    assert {name: (*c.studies, c.label) for name, c in planned.items()} == PLANNED
    assert {name: list(c.at) for name, c in planned.items() if c.at} == {
        "Q3": ["train.qkv_lr_factor=1.41"],
        "Q4": ["train.qkv_lr_factor=2"],
        "M1": ["train.lr=0.002"],
    }
    assert [name for name, c in planned.items() if c.averaged] == ["R1"]


def test_the_planned_studies_are_as_planned() -> None:
    """Seeds, scale and all other axes. A study whose runs have begun does not change."""
    plans = {}
    for study, _ in PLANNED.values():
        plans[study] = [planned_scale([study]), study_axes(study)]
    assert json_sha256(plans).startswith("54b1e3714a16")


def test_xpos_minus_no_positions() -> None:
    assert load_contrasts()["baselines/xpos - nope"].label == "XPOS − NoPE"


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ("cost: [crope]]", "expected"),
        ("cost: [crope + rope]", "crope \\+ rope"),
        ("cost: [crope - rop]", "no model=rop"),
        ("nosuch: [crope - rope]", "nosuch"),
        ("cost: [{difference: crope - rope, att: [train.lr=1]}]", "att"),
        ("cost: [{difference: crope - rope, at: [train.lr=1]}]", "train.lr=1"),
        ("cost: [rope at train.lr=1 - crope at train.lr=1]", "train.lr=1"),
        ("cost: [{difference: crope - rope, of: test}]", "of: test"),
    ],
)
def test_a_wrong_contrast_is_named(entry: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "contrasts.yaml"
    file.write_text(f"planned: {{}}\nexplored:\n  {entry}\n")
    with pytest.raises(ConfigError, match=f"contrasts.yaml.*{word}"):
        load_contrasts(file)
