"""Comparison of runs: pairs, what differs, the difference along training by pandas and scipy."""

import pandas as pd
import pytest
from scipy import stats

from crope.config import PUBLISHED
from crope.errors import UserError
from crope.report.compare import compare, complete_runs, difference_curves, select
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
    at = "data=ptb,train.lr=0.0005"
    curve = difference_curves(
        *[select(published, f"model={name},{at}") for name in ("crope", "rope")]
    )
    runs = pd.read_json(WIDE / "runs.jsonl", lines=True)
    losses = pd.read_parquet(WIDE / "curves.parquet").dropna(subset="val/loss_nats")
    by_seed = []
    for seed in range(60, 68):
        sides = []
        for model in ("crope", "rope"):
            (run_id,) = [
                run["run_id"]
                for run, config in zip(runs["run"], runs["config"], strict=True)
                if (run["model"], run["dataset"], run["seed"]) == (model, "ptb", seed)
                and config["train"]["lr"] == 0.0005
            ]
            sides.append(losses[losses["run_id"] == run_id].set_index("step")["val/loss_nats"])
        by_seed.append(sides[0] - sides[1])
    table = pd.DataFrame(by_seed)
    for step, columns in ((0, slice(0, 9)), (1600, slice(72, 89)), (3200, slice(152, 161))):
        means = table.iloc[:, columns].mean(axis=1)
        low, high = stats.ttest_1samp(means, 0).confidence_interval()
        found = curve.loc[step, ["n", "mean", "low", "high"]].astype(float).tolist()
        assert found == pytest.approx([8, means.mean(), low, high], abs=1e-12)


def test_runs_are_paired_at_equal_seed_and_settings_and_one_seed_has_no_interval(
    trained, folder, tmp_path
):
    text = compare(["rope", "crope"], [folder], tmp_path / "a.png")
    assert "model: rope, then crope" in text
    rope, _, crope, _ = [run.summary["val_full"]["final_nats"] for run in trained]
    assert f"final {crope:.4f} − {rope:.4f}: " in text
    assert text.count("n = 1: no interval") == 1
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_key_with_one_value_on_each_side_is_named_with_both(folder, tmp_path):
    text = compare(["model=rope", "crope,train.lr=0.002"], [folder], tmp_path / "a.png")
    assert "train.lr: 0.001, then 0.002" in text
    assert "model: rope, then crope" in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["rope,seed=1", "crope"], "no two runs are equal"),
        (["rope", "croppe"], "no complete run has croppe"),
        (["rope", "crope,train.lr=0.5"], "no complete run has"),
    ],
)
def test_a_word_without_runs_or_partners_is_refused(words, reason, folder, tmp_path):
    with pytest.raises(UserError, match=reason):
        compare(words, [folder], tmp_path / "a.png")


def test_the_mean_of_several_seeds_has_an_interval(published, tmp_path):
    at = "data=ptb,train.lr=0.008"
    text = compare([f"rope,{at}", "crope"], [WIDE], tmp_path / "a.png")
    assert "final 4.2151 − 4.2541: −0.0390 (−0.0566 to −0.0215), n = 8" in text
