"""Differences and intervals of losses that are written out here, and the committed contrasts."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from crope.errors import ConfigError
from crope.plan.study import Study, load_study
from crope.report import contrasts, evidence
from crope.report.contrasts import parse_difference
from crope.report.evidence import Contrast, answer, differences, estimate, load_contrasts
from crope.report.tables import interval_text
from tests.report.frames import losses, together

COST = Contrast("cost", ("mine",), ("crope", ""), (("rope", ""),))
RATES = ("train.lr=1", "train.lr=2")


@pytest.fixture(autouse=True)
def plans(monkeypatch):
    """The studies that conf/ lacks, to be changed, of three seeds."""
    known = {name: Study(name, {}, (0, 1, 2), None) for name in ("mine", "other", "wide")}
    for module in (evidence, contrasts):
        monkeypatch.setattr(module, "load_study", lambda name: known.get(name) or load_study(name))
    return known


def nats(runs, contrast=COST):
    return differences(runs, contrast)["nats"].round(9).tolist()


def answered(runs, contrast=COST):
    """Corpus and setting -> the difference of each seed."""
    found = {}
    for line in answer(runs, contrast):
        where = f"{line['dataset']} {line['setting']}".strip()
        found[where] = line["by_seed"].round(9).tolist()
    return found


def only_line(runs, contrast=COST):
    """The only line of an answer, and how it is printed."""
    (line,) = answer(runs, contrast)
    return line, interval_text(line)


def test_several_seconds_are_averaged_and_none_may_lack():
    halves = replace(COST, seconds=(("lowrank", ""), ("halved", "")))
    runs = losses(crope=[5.2, 5.3, 5.3], lowrank=[5.0, 5.1, None], halved=[5.1, None, 5.1])
    assert nats(runs, halves) == [0.15]


@pytest.mark.parametrize(
    ("of", "column", "label"),
    [
        ("loss", "loss", "CRoPE − RoPE"),
        ("lowest", "val_full.best_nats", "CRoPE − RoPE, lowest loss"),
        ("train", "train.final_nats", "CRoPE − RoPE, training loss"),
        ("longer", "longer_nats", "CRoPE − RoPE at 4 L"),
        ("beyond", "beyond_nats", "CRoPE − RoPE at 4 L − at L"),
    ],
)
def test_each_kind_of_loss_has_its_column_and_label(of, column, label):
    runs = losses(rope=[5.0], crope=[5.1]).assign(**{column: [4.0, 4.5]})
    contrast = replace(COST, of=of)
    assert (nats(runs, contrast), contrast.label) == ([0.5], label)


SLOW = losses(setting=RATES[0], settings=2, rope=[5.0, 5.0], crope=[5.1, 5.2])
FAST = losses(setting=RATES[1], settings=2, rope=[4.0, 4.0], crope=[4.3, None])
BOTH = together(SLOW, FAST)


def test_each_setting_has_a_line_of_its_own_unless_some_are_asked():
    assert answered(BOTH) == {"ptb train.lr=1": [0.1, 0.2], "ptb train.lr=2": [0.3]}
    assert nats(BOTH, replace(COST, at=RATES[1:])) == [0.3]


def test_settings_are_averaged_within_the_seeds_that_have_all():
    """None has, while one setting is without a run."""
    mean = replace(COST, averaged=True)
    assert answered(BOTH, mean) == {"ptb": [0.2]}
    assert answered(SLOW, mean) == {}


def test_two_settings_are_subtracted():
    two = replace(COST, first=("crope", RATES[1]), seconds=(("rope", RATES[0]),))
    assert nats(BOTH, two) == [-0.7]


def at_rates(by_rate, dataset="ptb", corpora=1):
    """Runs of `mine`, whose grid has the rates 1, 2, 3: rate -> model -> losses by seed."""
    parts = []
    for rate, of_models in by_rate.items():
        setting = f"train.lr={rate}"
        parts.append(losses(dataset=dataset, setting=setting, corpora=corpora, **of_models))
    return together(*parts)


BEST = replace(COST, best="train.lr")
ONE_CORPUS = {
    1: {"rope": [5.0, 5.4], "crope": [5.2, 5.3]},
    2: {"rope": [5.1, 5.2], "crope": [5.1, 5.7]},
    3: {"rope": [6.0, 6.0], "crope": [6.0, 6.0]},
}


@pytest.fixture
def three_rates(plans):
    axes = {"data": ["ptb"], "train.lr": ["1", "2", "3"]}
    plans["mine"] = Study("mine", axes, (0, 1), None)
    return axes


def test_a_best_rate_is_of_one_corpus_and_named_where_it_ends_the_grid(three_rates):
    three_rates["data"] = ["ptb", "wikitext2"]
    other = {
        1: {"rope": [9.0, 9.0], "crope": [7.2, 7.2]},
        2: {"rope": [8.0, 8.0], "crope": [7.1, 7.1]},
        3: {"rope": [7.0, 7.0], "crope": [9.0, 9.0]},
    }
    runs = together(at_rates(ONE_CORPUS), at_rates(other, dataset="wikitext2"))
    found = differences(runs, BEST)
    assert found["nats"].round(9).tolist() == [0.1, 0.1, 0.1, 0.1]
    (setting,) = found["setting"].unique()
    assert (
        setting == "best train.lr: CRoPE 1, 2 (an end of the grid); RoPE 2, 3 (an end of the grid)"
    )


def test_a_plan_at_best_rates_with_whole_rates_but_not_all_has_one_line_and_no_interval(
    three_rates,
):
    two_rates = {rate: ONE_CORPUS[rate] for rate in (1, 2)}
    line, printed = only_line(at_rates(two_rates), replace(BEST, date="2026-11-26"))
    assert (printed, line["complete"]) == ("0 of 2 seeds", False)


def test_best_rates_of_two_studies_are_of_the_rates_that_both_have(plans):
    """Only rate 2 is common: 5.3 - 5.1 and 5.8 - 5.2, of the other study 5.5 - 5.0. Rate 2 is an end
    of the other grid, but inside of the first, whose last rate was written last.
    """
    for name, rates, seeds in (("mine", "231", (0, 1)), ("other", "24", (2,))):
        plans[name] = Study(name, {"data": ["ptb"], "train.lr": [*rates]}, seeds, None)
    mine = at_rates(
        {1: {"rope": [4.0, 4.0], "crope": [4.0, 4.0]}, 2: {"rope": [5.1, 5.2], "crope": [5.3, 5.8]}}
    )
    other = losses(study="other", setting="train.lr=2", first_seed=2, rope=[5.0], crope=[5.5])
    found = differences(together(mine, other), replace(BEST, studies=("mine", "other")))
    assert found["nats"].round(9).tolist() == [0.2, 0.6, 0.5]
    assert found["setting"][0] == "best train.lr: CRoPE 2; RoPE 2"


def test_a_contrast_is_subtracted_at_equal_corpus_and_seed():
    """0.3 - 0.1 and 0.5 - 0.2; the third seed lacks the other study."""
    wide = losses(study="wide", rope=[4.0, 4.0, 4.0], crope=[4.3, 4.5, 4.9])
    runs = together(losses(rope=[5.0, 5.0], crope=[5.1, 5.2]), wide)
    trend = replace(COST, studies=("wide",), minus=COST)
    assert nats(runs, trend) == [0.2, 0.3]
    assert (trend.needed, trend.label) == (("wide", "mine"), "CRoPE − RoPE, less cost")


def test_a_plan_that_subtracts_best_rates_waits_for_both(plans, three_rates):
    """The study `wide` has both seeds, the other one of two."""
    plans["wide"] = replace(plans["mine"], name="wide")
    begun = {**ONE_CORPUS, 3: {"rope": [6.0, 6.0], "crope": [6.0]}}
    runs = together(at_rates(begun), at_rates(ONE_CORPUS).assign(study="wide"))
    trend = replace(BEST, studies=("wide",), minus=BEST, date="2026-11-28")
    assert only_line(runs, trend)[1] == "1 of 2 seeds"


def test_what_is_subtracted_of_the_same_study_needs_it_once():
    assert replace(COST, minus=COST).needed == ("mine",)


def test_holms_correction_stops_at_the_first_that_fails():
    """t = 6, 3, 2.5 and 1 with 9 degrees of freedom: p = 0.0002, 0.0150, 0.0339 and 0.34 beside
    0.05 / 4, 0.05 / 3, 0.05 / 2 and 0.05.
    """
    t = pd.Series([1.0, -3.0, 6.0, 2.5])
    lines = pd.DataFrame({"mean": t / np.sqrt(10), "std": 1.0, "n": 10})
    assert evidence.holm(lines) == 2


@pytest.mark.slow
def test_an_interval_at_best_rates_covers_95_percent(three_rates):
    """Two models with two rates nearly level, 8 seeds; losses of a seed go together. 300 draws
    have a standard error of 1.3 %.
    """
    random = np.random.default_rng(1)
    curves = {"rope": np.array([4.25, 4.12, 4.122]), "crope": np.array([4.26, 4.121, 4.115])}
    grid = at_rates({rate: dict.fromkeys(curves, [0.0] * 8) for rate in (1, 2, 3)})
    rate = grid["setting"].str[-1].astype(int) - 1
    true = sum(np.where(grid["model"] == model, curves[model][rate], 0) for model in curves)
    three_rates["data"] = list(range(300))
    draws = []
    for draw in range(300):  # a corpus each, as whose rates are chosen
        shared = 0.01 * random.standard_normal(8)
        own = 0.006 * random.standard_normal(len(grid))
        draws.append(grid.assign(dataset=draw, loss=true + shared[grid["seed"]] + own))
    found = differences(pd.concat(draws), BEST)
    lines = pd.DataFrame([estimate(nats) for _, nats in found.groupby("dataset")["nats"]])
    assert len(lines) == 300
    held = (lines["low"] <= 4.115 - 4.12) & (lines["high"] >= 4.115 - 4.12)
    assert 0.92 <= held.mean() <= 0.98
    assert lines["mean"].mean() == pytest.approx(-0.005, abs=0.001)


PTB = losses(corpora=2, rope=[5.0, 5.0, 5.0], crope=[5.1, 5.2, 5.3])
WIKI = losses(corpora=2, dataset="wikitext2", rope=[6.0, 6.0], crope=[6.3, 6.6])


def test_corpora_are_averaged_within_the_seeds_that_have_all():
    """None has, while one corpus is without a run."""
    assert answered(together(PTB, WIKI)) == {
        "": [0.2, 0.4],
        "ptb": [0.1, 0.2, 0.3],
        "wikitext2": [0.3, 0.6],
    }
    assert answered(PTB)[""] == []


def test_the_tables_have_a_line_for_each_corpus_alone():
    table = together(PTB, WIKI).assign(study="table1")
    assert list(answered(table, replace(COST, studies=("table1",)))) == ["ptb", "wikitext2"]


def test_a_complete_plan_has_students_interval():
    """Mean 0.2, standard deviation 0.1, t(2) = 4.302653: 0.2 -+ 4.302653 * 0.1 / sqrt(3)."""
    line, printed = only_line(losses(rope=[5.0] * 3, crope=[5.1, 5.2, 5.3]))
    assert printed == "+0.2000 (−0.0484 to +0.4484)"
    assert line["std"] == pytest.approx(0.1)


def test_as_many_other_seeds_complete_no_plan():
    """Tables 1 and 2 take every seed."""
    line, printed = only_line(losses(first_seed=2, rope=[5.0] * 3, crope=[5.1, 5.2, 5.3]))
    assert printed == "+0.2000 (1 of 3 seeds)"
    assert np.isnan(line["low"])


def test_an_unfinished_plan_has_none():
    """Of two studies, whose seeds are pooled."""
    runs = together(losses(rope=[5.0], crope=[5.1]), losses(study="other", rope=[6.0], crope=[6.5]))
    line, printed = only_line(runs, replace(COST, studies=("mine", "other")))
    assert printed == "+0.3000 (2 of 6 seeds)"
    assert np.isnan(line["low"])


@pytest.mark.parametrize("begun", [0, 1])
def test_a_plan_waits_for_the_setting_with_fewest_seeds(begun, plans):
    axes = {"data": ["ptb"], "model": ["rope", "crope"], "train.lr": ["1", "2"]}
    plans["mine"] = Study("mine", axes, (0, 1, 2), None)
    done = losses(setting=RATES[0], settings=2, rope=[5.0] * 3, crope=[5.1, 5.2, 5.3])
    other = losses(setting=RATES[1], settings=2, rope=[4.0] * begun, crope=[4.3] * begun)
    dated = replace(COST, date="2026-11-30")
    assert only_line(together(done, other), dated)[1] == f"{begun} of 3 seeds"


def test_a_run_of_two_studies_counts_once():
    one = losses(rope=[5.0, 5.0], crope=[5.1, 5.2])
    both = together(one, one.assign(study="other"))
    assert nats(both, replace(COST, studies=("mine", "other"))) == [0.1, 0.2]


def test_a_plan_without_a_run_is_shown():
    assert only_line(losses(rope=[5.0]), replace(COST, date="2026-11-25"))[1] == "0 of 3 seeds"
    assert answered(losses(rope=[5.0])) == {}


def test_runs_that_diverged_on_opposite_sides_are_not_averaged_away():
    """At two corpora of a seed, at two seeds, and in what is subtracted."""
    ptb = losses(corpora=2, rope=[5.0, 5.0], crope=[np.inf, 5.2])
    other = losses(corpora=2, dataset="wikitext2", rope=[np.inf, 6.0], crope=[6.3, 6.2])
    assert interval_text(answer(together(ptb, other), COST)[0]).startswith("diverged")
    both = losses(rope=[5.0, np.inf, 5.0], crope=[np.inf, 5.2, 5.3])
    assert only_line(both)[1] == "diverged"
    wide = losses(study="wide", rope=[4.0] * 3, crope=[np.inf, 4.5, 4.9])
    mine = losses(rope=[5.0] * 3, crope=[np.inf, 5.1, 5.2])
    trend = replace(COST, studies=("wide",), minus=COST)
    assert only_line(together(mine, wide), trend)[1] == "diverged"


def test_runs_that_diverged_on_both_sides_are_not_averaged_away():
    runs = losses(rope=[5.0, 5.0, np.inf], crope=[5.1, 5.2, np.inf])
    assert only_line(runs)[1] == "diverged"


# By hand from the plans: what is subtracted from what, in which study, at which settings.
PLANNED = """
P1 cost: CRoPE − RoPE
P2 cost: CRoPE − mean of low rank, halved
P3 cost: Q/K only − V only
P4 cost: misaligned − CRoPE
P5 paper_row: CRoPE − RoPE
R1 rate_mean: CRoPE − RoPE, mean
Q1 qkv_rate: CRoPE at train.qkv_lr_factor=1.41 − RoPE at train.qkv_lr_factor=1
Q2 qkv_rate: CRoPE at train.qkv_lr_factor=2 − RoPE at train.qkv_lr_factor=1.41
Q3 qkv_rate: CRoPE − RoPE, train.qkv_lr_factor=1.41
Q4 qkv_rate: CRoPE − RoPE, train.qkv_lr_factor=2
M1 medium_rate: CRoPE − RoPE, train.lr=0.002
S1 qkv_rate_high: CRoPE at train.qkv_lr_factor=1 − RoPE at train.qkv_lr_factor=0.71
S2 qkv_rate_high: RoPE at train.qkv_lr_factor=0.71 − RoPE at train.qkv_lr_factor=1
T1 qkv_rate_mid: CRoPE at train.qkv_lr_factor=1 − RoPE at train.qkv_lr_factor=0.82
T2 qkv_rate_mid: RoPE at train.qkv_lr_factor=0.82 − RoPE at train.qkv_lr_factor=1
W1 rates: CRoPE − RoPE, best train.lr
W2 rates: CRoPE − thin FFN, best train.lr
V1 table1_medium: CRoPE − RoPE
V2 table1_medium: thin FFN − RoPE
L1 long_small: CRoPE − RoPE
L2 long_small: thin FFN − RoPE
L3 long_small: CRoPE − thin FFN
A1 table1_early: CRoPE − RoPE, lowest loss
A2 table1_early: thin FFN − RoPE, lowest loss
C1 width_64: CRoPE − RoPE, best train.lr
C2 width_256: CRoPE − RoPE, best train.lr
C3 width_64: CRoPE − RoPE, train.lr=0.001
C4 width_256: CRoPE − RoPE, train.lr=0.001
C5 width_256: CRoPE − RoPE, less C1, best train.lr
C6 width_256: CRoPE − RoPE, less C3, train.lr=0.001
C7 rates_256: CRoPE − RoPE, best train.lr
C8 rates_64: CRoPE − RoPE, best train.lr
"""


def test_the_contrasts_are_as_planned():
    """Loading them checks that every study has the models and settings that are named."""
    lines = []
    for name, contrast in load_contrasts().items():
        parts = [contrast.label, *contrast.at, *["mean"] * contrast.averaged]
        parts += [f"best {contrast.best}"] if contrast.best else []
        lines.append(f"{name} {', '.join(contrast.studies)}: {', '.join(parts)}")
    assert lines[:32] == PLANNED.split("\n")[1:-1]
    assert "baselines/xpos - nope baselines: XPOS − NoPE" in lines


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ("cost: [crope + rope]", "crope \\+ rope"),
        ("cost: [rope-long - rope]", "no model=rope-long"),
        ("cost: [{difference: crope - rope, best: tokenizer.name}]", "two tokenizers"),
        ("cost: [rope at tokenizer.name=a - rope at tokenizer.name=b]", "two tokenizers"),
        ("cost: [crope - rop]", "no model=rop"),
        ("nosuch: [crope - rope]", "nosuch"),
        ("cost: [{difference: crope - rope, att: [x]}]", "att"),
        ("cost: [rope at x=1 - crope at x=1]", "no x=1"),
        ("rates: [{difference: crope - rope, at: [train.lr=2e-3]}]", "only 0.0005, 0.001, 0.002"),
        ("pilot: [{difference: crope - rope, at: [model.dropout=0.1]}]", "model.tied_head"),
        ("cost: [{difference: crope - rope, at: [train.max_steps=3200]}]", "has no settings"),
        ("rates: [crope at train.lr=0.002 - rope]", "each model a setting"),
        ("cost: [{difference: crope - rope, of: test}]", "of: test"),
        ("cost: [{difference: crope - rope, best: train.lr}]", "must vary train.lr alone"),
        ("cost: [crope - rope, crope - rope]", "two entries"),
        (
            "rates: [crope - rope, {difference: thin_ffn - rope, minus: rates/crope - rope}]",
            "minus: rates/crope - rope has several",
        ),
    ],
)
def test_a_wrong_contrast_is_named(entry, word, tmp_path):
    file = tmp_path / "contrasts.yaml"
    file.write_text(f"planned: {{}}\nexplored:\n  {entry}\n")
    with pytest.raises(ConfigError, match=f"contrasts.yaml.*{word}"):
        load_contrasts(file)


def test_a_term_names_a_value_of_each_axis():
    terms = parse_difference("crope at a=1, b=2 - rope at a=2, b=2 halved at a=1, b=1")
    assert terms == [("crope", "a=1, b=2"), ("rope", "a=2, b=2"), ("halved", "a=1, b=1")]


def test_a_model_of_another_projection_than_its_files_is_in_the_study(tmp_path):
    file = tmp_path / "contrasts.yaml"
    file.write_text("planned: {}\nexplored:\n  cost: [rope+complex - rope]\n")
    assert load_contrasts(file)["cost/rope+complex - rope"].first == ("rope+complex", "")
