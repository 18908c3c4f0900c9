"""Runs executed more than once: published repeats, and the user's own runs beside published ones."""

import pandas as pd
import pytest

from crope.report import agreement as repeats
from crope.report.agreement import expectation
from crope.report.frame import row_label
from tests.report.frames import make_frame, make_runs


def test_repeats_are_ranges_of_one_run_over_executions_next_to_the_spread_over_seeds() -> None:
    here = make_frame(make_runs("rope", {0: 5.0, 1: 5.2}), make_runs("crope", {0: 9.0}))
    later = {"finished_utc": "2027", "provenance.commit": "d" * 40}
    there = make_frame(make_runs("rope", {0: 5.01, 1: 5.16}, **later), make_runs("nope", {0: 1.0}))
    failed = make_frame(make_runs("crope", {0: 0.0}, status="failed"))
    everything = {"a": here, "b": there, "c": failed, "copy": here}
    (found,) = repeats.repeats(everything, "quick").to_dict("records")
    assert (found["runs"], found["differ"]) == (2, "commit")
    assert found["sets"] == "a (ccccccc), b (ddddddd)"
    assert (found["largest_nats"], found["median_nats"]) == pytest.approx((0.04, 0.025))
    spread = [pd.Series([5.0, 5.2]).std(), pd.Series([5.01, 5.16]).std()]
    assert found["std_over_seeds_nats"] == pytest.approx(sum(spread) / 2)
    lines = make_runs("rope", {0: 4.9}, precision="bf16")
    bf16 = make_frame([line | {"run_id": "other"} for line in lines])
    both = repeats.repeats(everything | {"d": bf16.assign(finished_utc="2028")}, "quick")
    assert both["kind"].tolist() == [repeats.SAME, repeats.ANY]
    assert both["largest_nats"].tolist() == pytest.approx([0.04, 0.11])
    assert both["differ"].tolist() == ["commit", "commit, precision"]
    printed = repeats.repeats_table(both, "quick").frame
    assert printed["Sets (commits)"][1] == "a (ccccccc), b (ddddddd), d (ccccccc)"
    assert repeats.repeats({"a": here}, "quick").empty


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
    text = repeats.agreement(own, published, "quick")
    assert text.startswith("3 of your runs")
    device = text.index("0.0300 nats (Penn Treebank; 2 runs with another device, threads)")
    row = row_label("pg19", "b2_l512_d64")
    commit = text.index(f"0.4000 nats ({row}; 2 runs with another commit)")
    assert commit < device < text.index("order of operations")
    same = {"copy": own, "again": make_frame(make_runs("rope", {1: 5.2}, finished_utc="2027"))}
    text = repeats.agreement(own, same, "quick")
    assert "0.0000 nats (Penn Treebank; 1 run with the same commit, device, threads" in text
    assert "order of operations" not in text
    assert "1 of your runs" in repeats.agreement(own, published, "smoke")
    strangers = {"machine": make_frame(make_runs("nope", {0: 5.0}))}
    for others in ({}, {"copy": own}, strangers):
        assert repeats.agreement(own, others, "quick") == ""


def test_what_a_first_run_should_give_and_how_far_repeats_of_base_rows_went() -> None:
    runs = pd.DataFrame({"seed": [0, 1], "val_full.final_nats": [4.9861, 7.0]})
    runs = runs.assign(scale="quick", precision="fp32")
    lines = pd.DataFrame(
        {
            "dataset": ["pg19", "pg19", "ptb", "letters", "pg19"],
            "row": ["base", "base", "base", "base", "other"],
            "kind": [repeats.SAME, repeats.ANY, repeats.ANY, repeats.ANY, repeats.ANY],
            "largest_nats": [0.05, 0.127, 0.031, 0.2, 0.9],
        }
    )
    text = expectation(runs, lines)
    assert "seed 0, quick scale, fp32: 4.986." in text
    assert (
        "any precision) differ by at most: PG-19 0.050/0.127, Penn Treebank 0.031, letters 0.200 nats"
        in text
    )
    assert expectation(runs.iloc[:0], lines) == expectation(runs, lines.iloc[:0]) == ""
