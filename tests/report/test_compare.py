"""Comparison of runs: pairs, what differs, the difference along training by pandas and scipy."""

import pandas as pd
import pytest
from scipy import stats

from crope.config import PUBLISHED
from crope.errors import UserError
from crope.plan.study import load_study
from crope.report import compare as module
from crope.report import frame
from crope.report.compare import (
    compare,
    complete_runs,
    difference_curves,
    rate_curves,
    select,
    study_curves,
)
from crope.report.contrasts import make_contrast
from crope.report.frame import by_study, load_frame
from tests.toy_runs import toy_corpus, train_toy

WIDE = PUBLISHED / "rates-wide-bf16"


@pytest.fixture(scope="module")
def published():
    return complete_runs([WIDE])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of RoPE with seeds 0 and 1, of CRoPE with seed 0 at two rates."""
    results = tmp_path_factory.mktemp("results")
    words = ["model=rope", "model=rope seed=1", "model=crope", "model=crope train.lr=0.002"]
    with toy_corpus(results / "tokens"):
        return [train_toy(results, *each.split()) for each in words]


@pytest.fixture
def folder(trained):
    return trained[0].folder


def test_the_curve_is_what_pandas_and_scipy_compute(published):
    """161 losses a run, of which 17 are averaged; at its ends a curve has fewer on one side."""
    at = "data=ptb,train.lr=5e-4"
    sides = [select(published, f"model={model},{at}") for model in ("crope", "rope")]
    curve = difference_curves(*sides)
    runs = pd.json_normalize(pd.read_json(WIDE / "runs.jsonl", lines=True).to_dict("records"))
    losses = pd.read_parquet(WIDE / "curves.parquet").dropna(subset="val/loss_nats").merge(runs)
    losses = losses[(losses["run.dataset"] == "ptb") & (losses["config.train.lr"] == 0.0005)]
    by_model = losses.pivot(columns=["run.model", "run.seed"], index="step", values="val/loss_nats")
    by_seed = by_model["crope"] - by_model["rope"]
    for step, lines in ((0, slice(0, 9)), (1600, slice(72, 89)), (3200, slice(152, 161))):
        means = by_seed.iloc[lines].mean()
        expected = [8, means.mean(), *stats.ttest_1samp(means, 0).confidence_interval()]
        found = curve.loc[step, ["n", "mean", "low", "high"]].astype(float).tolist()
        assert found == pytest.approx(expected, abs=1e-12)


def test_runs_are_paired_at_equal_seed_and_settings_and_one_seed_has_no_interval(
    trained, folder, tmp_path
):
    text = compare(["rope", "crope", "crope,train.lr=0.002"], [folder], tmp_path / "a.png")
    first, second = text.split("model: rope, then crope")[1:]
    rope, _, crope, _ = [run.summary["val_full"]["final_nats"] for run in trained]
    assert f": {crope:.4f} − {rope:.4f} (one seed: no interval)" in first
    assert first.split("final")[1].split()[:2] == ["1", f"{crope - rope:+.4f}"]
    assert "train.lr: 0.001, then 0.002" in second
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["rope,seed=1", "crope"], "no two runs are equal"),
        (["rope", "rope"], "no two runs are equal"),
        (["rope", "croppe"], "no complete run has croppe"),
    ],
)
def test_a_word_without_runs_or_partners_is_refused(words, reason, folder, tmp_path):
    with pytest.raises(UserError, match=reason):
        compare(words, [folder], tmp_path / "a.png")


@pytest.mark.parametrize(
    "fact",
    [
        "precision",
        "device_kind",
        "scale",
        "ablation",
        "data",
        "eval.full_tokens",
        "provenance.data.splits.train.sha256",
        "provenance.data.splits.validation.sha256",
    ],
)
def test_runs_that_differ_in_what_cannot_be_compared_are_no_pair(
    fact, folder, tmp_path, monkeypatch
):
    runs = complete_runs([folder])
    runs[fact] = runs[fact].where(runs["model"] == "rope", "another")
    monkeypatch.setattr(module, "complete_runs", lambda _: runs)
    with pytest.raises(UserError, match="no two runs are equal"):
        compare(["rope", "crope"], [folder], tmp_path / "a.png")


def test_a_dot_is_the_folder_of_a_run(trained, monkeypatch):
    monkeypatch.chdir(trained[1].path)
    assert select(complete_runs([trained[0].folder]), ".")["seed"].tolist() == [1]


def test_pictures_subtract_rope(published, monkeypatch):
    """The published one and that of a user's study."""
    at = "data=ptb,train.lr=0.008"
    sides = [select(published, f"model={model},{at}") for model in ("crope", "rope")]
    mean = difference_curves(*sides)["mean"].tolist()
    joined = by_study(load_frame([WIDE])[0], load_study("rates").cells("quick"))
    monkeypatch.setattr(module, "RATES", (0.008,))
    (line,) = rate_curves(joined).axes[0].lines[1:]
    assert line.get_ydata().tolist() == mean
    curve = study_curves(joined, "rates")["CRoPE − RoPE; Penn Treebank; train.lr=0.008"]
    assert curve["mean"].tolist() == mean


def test_a_curve_of_an_unfinished_plan_has_no_band():
    joined = by_study(load_frame([WIDE])[0], load_study("rates").cells("quick"))
    name = "CRoPE − RoPE; Penn Treebank; train.lr=0.008"
    curve = study_curves(joined[joined["seed"] < 62], "rates")[name]
    assert (curve["n"].unique().tolist(), curve["low"].notna().any()) == ([2], False)


def test_a_preregistered_difference_has_no_curve_before_its_end(monkeypatch):
    asked = make_contrast("rates", {"difference": "crope - rope", "date": "2026-11-30"}, "Z1")
    monkeypatch.setattr(module, "load_contrasts", lambda: {"Z1": asked})
    joined = by_study(load_frame([WIDE])[0], load_study("rates").cells("quick"))
    assert len(study_curves(joined, "rates")) == 10
    assert not study_curves(joined[joined["seed"] < 62], "rates")


def test_pairs_that_diverged_are_counted(published, tmp_path, monkeypatch):
    at = "data=ptb,train.lr=0.008"
    runs = published.copy()
    first = select(runs, f"model=crope,{at}").index[0]
    runs.loc[first, ["status", "loss"]] = ["failed", float("inf")]
    monkeypatch.setattr(module, "complete_runs", lambda _: runs)
    text = compare([f"rope,{at}", "crope"], [WIDE], tmp_path / "a.png")
    assert "1 of 8 pairs diverged and are left out" in text
    assert text.split("final")[1].split()[0] == "7"


def test_the_mean_of_several_seeds_has_an_interval(published, tmp_path):
    at = "data=ptb,train.lr=0.008"
    text = compare([f"rope,{at}", "crope"], [WIDE], tmp_path / "a.png")
    assert ": 4.2151 − 4.2541\n" in text
    assert text.split("final")[1].split()[:4] == ["8", "-0.0390", "-0.0566", "-0.0215"]


def test_runs_of_other_code_are_counted(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(frame, "code_note", lambda run: "other code" * (run["model"] == "rope"))
    text = compare(["rope", "crope,train.lr=0.001"], [folder], tmp_path / "a.png")
    assert ": 1 of 2 runs were trained by other code\n" in text


def test_what_a_changed_file_of_conf_gave_is_told(folder, tmp_path, monkeypatch):
    """`settings` has none of it: each run has what the files of its day gave."""
    runs = complete_runs([folder])
    runs.loc[runs["model"] == "crope", "train.weight_decay"] = 0.02
    monkeypatch.setattr(module, "complete_runs", lambda _: runs)
    text = compare(["rope", "crope,train.lr=0.001"], [folder], tmp_path / "a.png")
    assert "train.weight_decay: 0.01, then 0.02\n" in text


def test_of_runs_before_and_after_a_change_only_the_equal_one_is_paired(
    folder, tmp_path, monkeypatch
):
    runs = complete_runs([folder])
    later = runs[runs["model"] == "crope"].assign(**{"train.weight_decay": 0.02})
    both = pd.concat([runs, later], ignore_index=True)
    monkeypatch.setattr(module, "complete_runs", lambda _: both)
    text = compare(["rope", "crope,train.lr=0.001"], [folder], tmp_path / "a.png")
    assert text.split("final")[1].split()[0] == "1"


def test_a_model_without_runs_is_not_searched_in_the_names_of_others(folder):
    runs = complete_runs([folder])
    with pytest.raises(UserError, match="no complete run has rope"):
        select(runs[runs["model"] == "crope"], "rope")


def test_without_any_run_a_line_says_so(tmp_path):
    with pytest.raises(UserError, match="no complete run has rope"):
        compare(["rope", "crope"], [tmp_path], tmp_path / "a.png")
