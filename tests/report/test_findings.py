"""Sentences and differences against the step, on curves and losses that can be worked out by hand."""

import json
from pathlib import Path

import pandas as pd
import pytest
import scipy.stats

from crope.report import claims, figures, findings
from crope.report.questions import QUESTIONS
from tests.report.frames import make_frame, make_row, make_runs
from tests.report.test_questions import answers_of, at


def write_curve(folder: Path, losses: list[float], every: int = 20) -> None:
    """metrics.jsonl with sampled losses at steps 0, 20, ..., of one run."""
    folder.mkdir()
    lines = [{"step": every * i, "val/loss_nats": loss} for i, loss in enumerate(losses)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def phases(tmp_path: Path) -> pd.DataFrame:
    """21 losses at steps 0 to 400: CRoPE - RoPE is 0.5 before training, then 0.01 (seed + 1), 0.03
    in the second half; NoPE has seed 0."""
    parts = [make_runs(model, dict.fromkeys((0, 1, 2), 5.0)) for model in ("rope", "crope")]
    frame = make_frame(*parts, make_runs("nope", {0: 5.0}))
    for run in frame.to_dict("records"):
        gaps = {
            "crope": [0.5] + [0.01 * (run["seed"] + 1)] * 10 + [0.03] * 10,
            "rope": [0.0] * 21,
            "nope": [0.2] * 21,
        }
        losses = [6.0 - 0.1 * i + run["seed"] + gap for i, gap in enumerate(gaps[run["model"]])]
        write_curve(tmp_path / Path(run["path"]).name, losses)
    return findings.by_phase(
        frame.assign(study="base", path=[str(tmp_path / Path(p).name) for p in frame["path"]])
    )


def test_differences_against_the_step_are_means_over_tenths_at_equal_seed(
    phases: pd.DataFrame,
) -> None:
    ((place, found),) = findings.gaps(phases, "crope", "rope").items()
    assert place == "Penn Treebank, 400 steps"
    assert found.shape == (3, findings.PHASES)
    for seed in (0, 1, 2):
        assert found.loc[seed].tolist() == pytest.approx([0.01 * (seed + 1)] * 5 + [0.03] * 5)
    assert findings.gaps(phases, "nope", "rope")[place].to_numpy().tolist() == [
        pytest.approx([0.2] * 10)
    ]
    assert findings.gaps(phases, "alibi", "rope") == {}


def test_growth_names_both_ends_their_difference_and_the_worth_of_positions(
    phases: pd.DataFrame,
) -> None:
    (text,) = findings.growth(phases)
    low, high = scipy.stats.ttest_1samp([0.02, 0.01, 0.0], 0).confidence_interval()
    for part in (
        "+0.0200 in the first",
        "+0.0300 in the last",
        "change +0.0100",
        f"+{high:.4f}",
        "n = 3",
        "NoPE − RoPE is +0.2000 (n = 1)",
    ):
        assert part in text
    assert f"−{-low:.4f}" in text


def test_the_figure_draws_mean_interval_and_seeds(phases: pd.DataFrame) -> None:
    figure = figures.gaps({"CRoPE − RoPE": findings.gaps(phases, "crope", "rope")})
    (axis,) = figure.axes
    (mean,) = [line for line in axis.get_lines() if line.get_gid() == "mean"]
    assert mean.get_xdata() == pytest.approx([0.05 + 0.1 * i for i in range(10)])
    assert mean.get_ydata() == pytest.approx([0.02] * 5 + [0.03] * 5)
    band = axis.collections[0].get_paths()[0].get_extents()
    low, high = scipy.stats.ttest_1samp([0.01, 0.02, 0.03], 0).confidence_interval()
    assert (band.y0, band.y1) == pytest.approx((low, high))


def test_repeats_are_ranges_of_one_run_over_executions_next_to_the_spread_over_seeds() -> None:
    here = make_frame(make_runs("rope", {0: 5.0, 1: 5.2}), make_runs("crope", {0: 9.0}))
    later = {"finished_utc": "2027", "provenance.commit": "d" * 40}
    there = make_frame(make_runs("rope", {0: 5.01, 1: 5.16}, **later), make_runs("nope", {0: 1.0}))
    failed = make_frame(make_runs("crope", {0: 0.0}, status="failed"))
    everything = {"a": here, "b": there, "c": failed, "copy": here}
    (found,) = findings.repeats(everything, "quick").to_dict("records")
    assert (found["runs"], found["differ"]) == (2, "commit")
    assert found["sets"] == "a (ccccccc), b (ddddddd)"
    assert (found["largest_nats"], found["median_nats"]) == pytest.approx((0.04, 0.025))
    spread = [pd.Series([5.0, 5.2]).std(), pd.Series([5.01, 5.16]).std()]
    assert found["std_over_seeds_nats"] == pytest.approx(sum(spread) / 2)
    bf16 = make_frame(
        [line | {"run_id": "other"} for line in make_runs("rope", {0: 4.9}, precision="bf16")]
    )
    both = findings.repeats(everything | {"d": bf16.assign(finished_utc="2028")}, "quick")
    assert both["kind"].tolist() == [findings.SAME, findings.ANY]
    assert both["largest_nats"].tolist() == pytest.approx([0.04, 0.11])
    text = findings.rounding(both)
    assert text.index("0.0400 nats (Penn Treebank)") < text.index("0.1100 nats (Penn Treebank)")
    assert "machine" not in text and "commit, precision differ" in text
    printed = findings.repeats_table(both, "quick").frame
    assert printed["Sets (commits)"][1] == "a (ccccccc), b (ddddddd), d (ccccccc)"
    assert findings.repeats({"a": here}, "quick").empty
    assert findings.rounding(pd.DataFrame()) == ""


def test_own_runs_are_compared_with_published_runs_of_the_same_id_by_what_differs() -> None:
    own = make_frame(
        make_runs("rope", {0: 5.0, 1: 5.2, 2: 5.4}),
        make_runs("rope", {0: 6.0}, dataset="pg19", row="b2_l512_d64"),
        make_runs("crope", {0: 9.0}, scale="smoke"),
    )
    elsewhere = {"finished_utc": "2027", "provenance.device": "a GPU", "threads": 2}
    later = {"finished_utc": "2028", "provenance.commit": "d" * 40}
    published = {
        "machine": make_frame(make_runs("rope", {0: 5.001, 1: 5.17}, **elsewhere)),
        "commit": make_frame(
            make_runs("rope", {0: 5.0}, **later),
            make_runs("rope", {0: 5.6}, dataset="pg19", row="b2_l512_d64", **later),
        ),
        "smoke": make_frame(make_runs("crope", {0: 1.0}, scale="smoke", finished_utc="2029")),
    }
    text = findings.agreement(own, published, "quick")
    assert text.startswith("3 of your runs")
    device = text.index("0.0300 nats (Penn Treebank; 2 runs with another device, threads)")
    row = claims.row_label("pg19", "b2_l512_d64")
    commit = text.index(f"0.4000 nats ({row}; 2 runs with another commit)")
    assert commit < device < text.index("order of operations")
    same = {"copy": own, "again": make_frame(make_runs("rope", {1: 5.2}, finished_utc="2027"))}
    text = findings.agreement(own, same, "quick")
    assert "0.0000 nats (Penn Treebank; 1 run with the same commit, device, threads" in text
    assert "order of operations" not in text
    assert "1 of your runs" in findings.agreement(own, published, "smoke")
    assert (
        findings.agreement(own, {"machine": make_frame(make_runs("nope", {0: 5.0}))}, "quick") == ""
    )
    assert (
        findings.agreement(own, {}, "quick") == findings.agreement(own, {"a": own}, "quick") == ""
    )


def test_all_rows_together_are_averaged_seed_by_seed() -> None:
    losses = {
        "ptb": [0.011, 0.019, 0.015, 0.02, 0.01], "wikitext2": [0.002, 0.02, 0.01, 0.005, 0.003],
        "pg19": [-0.05, 0.03, -0.04, 0.0, -0.04],
    }  # fmt: skip
    lines = []
    for dataset, values in losses.items():
        lines.append(make_runs("rope", dict.fromkeys(range(5), 5.0), dataset=dataset))
        lines.append(
            make_runs(
                "crope", {seed: 5.0 + value for seed, value in enumerate(values)}, dataset=dataset
            )
        )
    places = [(dataset, "base") for dataset in losses]
    text = findings.pooled(claims.compare(make_frame(*lines), places))
    means = pd.DataFrame(losses).mean(axis=1)
    low, high = scipy.stats.ttest_1samp(means, 0).confidence_interval()
    for part in (means.mean(), low, high, -0.02, 0.015):
        assert claims.signed(part) in text
    without = pd.DataFrame(losses).drop(columns="pg19").to_numpy().mean()
    assert f"farthest from 0: {claims.signed(without)}" in text
    assert text.startswith("3 rows") and "−0.0200 (PG-19) to +0.0150 (Penn Treebank)" in text
    assert findings.pooled(claims.compare(make_frame(*lines), places[:1])) == ""
    assert findings.pooled(claims.compare(make_frame(*lines[:3]), places)) == "", "RoPE alone"


def test_questions_that_are_not_judged_are_shown_where_they_have_an_interval() -> None:
    rows = [make_row("scaling", ["rope", "crope"], width=width) for width in (64, 128)]
    runs = [make_runs(model, at(loss), width=64) for model, loss in (("rope", 5.0), ("crope", 5.2))]
    runs += [make_runs(model, {0: 5.0}) for model in ("rope", "crope")]
    (text,) = findings.shown(answers_of(make_frame(*runs), rows))
    assert "D = 64 +0.2000" in text and "D = 128" not in text
    assert findings.shown(answers_of(make_frame(*runs[2:]), rows)) == []


def test_answers_are_the_judged_lines_that_could_be_tested() -> None:
    rows = [
        make_row("controls", ["rope", "crope", "complex_qk", "halved"], dataset=name)
        for name in ("ptb", "wikitext2")
    ]
    parts = []
    for dataset, loss in {"ptb": 5.1, "wikitext2": 5.3}.items():
        parts += [
            make_runs("rope", at(5.0), dataset=dataset),
            make_runs("complex_qk", at(loss, 2), dataset=dataset),
        ]
    lines = answers_of(make_frame(*parts), rows)
    (one,) = findings.answers(lines)
    assert "Q and K" in one["question"] and one["answer"] == "yes, higher"
    for part in ("Q/K only − RoPE +0.2000", "Penn Treebank +0.1000; Wikitext-2 +0.3000", "n = 3"):
        assert part in one["text"]
    assert f"1 of {sum(bool(question.answers) for question in QUESTIONS)}." in findings.waiting(
        lines
    )
    assert findings.listed(lines, ["More."])[1:] == ["- More."]
    nothing = answers_of(make_frame(), rows)
    assert findings.answers(nothing) == [] and findings.waiting(nothing) == ""


def test_the_literal_reading_of_sec_5_1_is_compared_in_weights_and_loss() -> None:
    rows = [make_row("controls", ["rope", "crope", "halved"])]
    sizes = {"rope": 1000, "crope": 900, "halved": 850}
    frame = make_frame(
        *(
            make_runs(m, at(5.0, 1 + i), **{"parameters.total": sizes[m]})
            for i, m in enumerate(sizes)
        )
    )
    runs = frame.assign(study="controls")
    text = findings.halved(answers_of(frame, rows), runs)
    assert "saves 150 weights" in text and "Eq. 30 100" in text and "CRoPE − halved" in text
    assert findings.halved(answers_of(make_frame(), rows), runs) == ""


def test_learning_rates_are_compared_each_with_its_difference_and_the_best_of_each_model() -> None:
    rope = [make_runs("rope", at(loss), lr=lr) for lr, loss in (("0.001", 5.0), ("0.003", 5.1))]
    crope = [make_runs("crope", at(loss), lr=lr) for lr, loss in (("0.001", 5.5), ("0.003", 5.0))]
    frame = make_frame(*rope, *crope)
    runs = frame.assign(study="fair_lr", final=frame["val_full.final_nats"])
    text = findings.by_rate(runs)
    for part in (
        "0.001 (RoPE 5.0000): +0.5000",
        "0.003 (RoPE 5.1000): −0.1000",
        "CRoPE 0.003, RoPE 0.001",
    ):
        assert part in text
    assert findings.by_rate(runs[runs["config.train.lr"] == 0.001]) == ""
    assert findings.by_rate(runs.iloc[1:]) == ""  # a seed that one model lacks at one rate


def test_the_complex_linear_fraction_is_compared_with_chance() -> None:
    lines = pd.DataFrame({"run_id": ["a", "a", "b", "c"], "dataset": "ptb", "kept_share": [0.7, 0.7, 0.66, 0.68],
                          "kept_share_by_chance": [0.65, 0.65, 0.65, 0.65]})  # fmt: skip
    text = findings.fraction(lines)
    assert "0.680" in text and "0.650" in text and "+0.0300" in text and "n = 3" in text
    assert findings.fraction(pd.DataFrame()) == ""
