"""How far executions of one run lie apart, and the user's runs from published ones."""

import numpy as np

from crope.report import agreement
from crope.report.frame import Runs
from tests.report.frames import runs, together

PUBLIC = together(
    runs(rope=[5.0, 5.5], crope=[5.1]),
    runs(rope=[5.03, 5.75]).assign(precision="bf16"),
    runs(rope=[5.01]).assign(record_set="again"),
    runs(rope=[9.0]).assign(status="stale"),
)


def test_repeats_are_executions_of_one_run():
    """Seed 0 in fp32: 5.0 and 5.01; at any precision 5.03 too; seed 1: 5.5 and 5.75."""
    for same, runs_, largest in ((["precision"], 1, 0.01), ([], 2, 0.25)):
        (line,) = agreement.repeats(PUBLIC, *same).to_dict("records")
        assert (line["runs"], round(line["largest"], 9)) == (runs_, largest)


def reported(own):
    """At the scale quick; published runs of another scale lie 3 nats apart."""
    large = runs(setting="large", rope=[4.0]).assign(scale="medium")
    public = together(PUBLIC, large, large.assign(loss=7.0, record_set="again"))
    return Runs("quick", own.assign(finished_utc="2026"), public, [])


def told(own):
    return agreement.verdict(reported(own))


def test_own_runs_beside_the_nearest_published_ones():
    """CRoPE is 0.05 from 5.1; a run of another scale is no part of it."""
    other = runs(rope=[7.0], first_seed=1).assign(scale="smoke")
    assert told(together(runs(rope=[5.02], crope=[5.15]), other)) == [
        "Penn Treebank: 2 of 2 runs agree with the nearest published ones, at most 0.050 apart"
        " (repeated runs: 0.250)",
        "  RoPE 5.020, published 5.010, the paper's at its size 4.021",
    ]


def test_a_run_that_diverged_does_not_agree():
    diverged = runs(crope=[np.inf]).assign(status="failed")
    assert "1 of 2 runs agree" in told(together(runs(rope=[5.02]), diverged))[0]


def test_the_loss_beside_the_papers_is_of_a_run_without_other_settings():
    """The run at another learning rate counts among those that agree."""
    fast = runs(rope=[4.0], setting="fast").assign(settings=[["train.lr=0.003"]])
    public = together(PUBLIC, fast)
    own = together(fast.assign(loss=4.01), runs(rope=[5.02])).assign(finished_utc="2026")
    assert agreement.verdict(Runs("quick", own, public, [])) == [
        "Penn Treebank: 2 of 2 runs agree with the nearest published ones, at most 0.010 apart"
        " (repeated runs: 0.250)",
        "  RoPE 5.020, published 5.010, the paper's at its size 4.021",
    ]


def test_the_card_says_where_and_how_long_runs_were_made():
    made = {"provenance.device": "a CPU", "provenance.commit": "c" * 40}
    own = runs(rope=[5.02], crope=[5.6]).assign(**made, **{"time.total_s": [5400.0, 1800.0]})
    assert agreement.card(reported(own)) == (
        "1 of 2 runs agree with the nearest published ones, at most 0.500 apart. Machine: a CPU;"
        " commit: cccccccc; 2.0 hours of runs."
    )


def test_without_repeats_nothing_agrees_or_not():
    own = runs(rope=[6.0]).assign(finished_utc="2026")
    assert agreement.verdict(Runs("quick", own, runs(rope=[5.0]), []))[0] == (
        "Penn Treebank: 1 runs and the nearest published ones are at most 1.000 apart"
    )


def test_on_tiny_the_lowest_possible_loss_stands_beside():
    """69,249.76 nats over 22,415 tokens."""
    public = runs(rope=[5.0], dataset="tiny")
    tokens = {"provenance.data.splits.validation.tokens": 22_415}
    own = runs(rope=[5.0], dataset="tiny").assign(finished_utc="2026", **tokens)
    beside = agreement.verdict(Runs("quick", own, public, []))[1]
    assert beside == "  RoPE 5.000, published 5.000, the lowest possible 3.089"


def test_copies_of_published_runs_prove_nothing():
    public = PUBLIC.assign(finished_utc="2026")
    assert agreement.own_and_published(Runs("quick", public, public, [])).empty


def test_runs_of_other_code_are_counted():
    """Whatever their scale: a study may fix another one."""
    own = runs(rope=[5.0, 5.1]).assign(code=["", "trained by other code (a.py changed since)"])
    own["scale"] = ["quick", "medium"]
    (text,) = agreement.other_code(Runs("quick", own, PUBLIC, []))
    assert text.startswith("1 of 2 runs were trained by other code")
    assert agreement.other_code(Runs("quick", own[:1], PUBLIC, [])) == []
