"""Tables as they are printed: the paper's numbers, this project's below them, differences."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from crope.errors import InvalidRecord
from crope.report import tables
from crope.report.evidence import Contrast, answer
from crope.report.frame import Runs
from crope.report.tables import Table, interval_text, loss_table, losses, plus_minus, signed
from crope.runs.compose import load_run
from tests.report import frames
from tests.report.frames import runs, study_row, together

SIZE = {
    "config.train.batch_size": 2,
    "config.train.seq_len": 256,
    "config.train.max_steps": 3200,
    "parameters.total": 1_234_567,
    "val_sampled.mean_nats": 5.5,
    "val_sampled.std_nats": 0.25,
}
NO_RUNS = frames.losses(rope=[])
ROW = study_row("xpos", "rope", "crope", study="table1")


def of_table1(columns: dict | None = None, **by_model: list[float | None]) -> pd.DataFrame:
    return frames.losses(study="table1", columns=SIZE | (columns or {}), **by_model)


def table1(runs_of_row: pd.DataFrame, **more: object) -> Table:
    options = {"paper_size": NO_RUNS, "reasons": {}} | more
    return loss_table("table1", [ROW], runs_of_row, **options)


def lines(table: Table) -> list[list[str]]:
    return table.frame.to_numpy().tolist()


PAPER = [
    "Penn Treebank",
    "paper",
    "4.4288 ± 0.0224",
    "4.0212 ± 0.0243",
    "4.0158 ± 0.0233",
    "−0.0054",
]


def test_table_1_as_printed() -> None:
    """Differences 0.1, 0.2 and 0.3: mean 0.2, interval -0.0484 to 0.4484. XPOS lacks a seed."""
    table = table1(of_table1(xpos=[6.0, 6.2], rope=[5.0, 5.1, 5.2], crope=[5.1, 5.3, 5.5]))
    difference = "+0.2000 (−0.0484 to +0.4484), n\u00a0=\u00a03"
    assert list(table.frame) == ["Dataset", "", "XPOS", "RoPE", "CRoPE", "CRoPE − RoPE"]
    assert lines(table)[0] == PAPER
    assert lines(table)[1] == [
        "here B=2, L=256, 3,200 steps",
        "full",
        "6.1000 ± 0.1414 (n\u00a0=\u00a02)",
        "5.1000 ± 0.1000",
        "5.3000 ± 0.2000",
        difference,
    ]
    assert lines(table)[2][1:5] == [
        "sampled",
        "5.5000 ± 0.2500 (n\u00a0=\u00a02)",
        "5.5000 ± 0.2500",
        "5.5000 ± 0.2500",
    ]
    assert lines(table)[3] == ["Parameters", "", "1,234,567", "1,234,567", "1,234,567", ""]


def test_table_2_has_the_papers_configurations() -> None:
    row = study_row("rope", "crope", study="table2", dataset="pg19", row="b2_l512_d64")
    of_row = frames.losses(study="table2", dataset="pg19", row="b2_l512_d64", rope=[5.0])
    table = loss_table("table2", [row], of_row, NO_RUNS, {})
    label = "B=2, L=512, D=64, γ=0.9, step=1000"
    assert lines(table)[0] == [label, "paper", "6.699 ± 0.111", "6.700 ± 0.113", "+0.001"]
    assert lines(table)[1][1:] == ["full", "5.000", "missing", ""]


def test_runs_of_the_papers_own_size_stand_below() -> None:
    large = frames.losses(study="paper_ptb", rope=[4.0], crope=[4.5], columns={"scale": "paper"})
    table = table1(of_table1(rope=[5.0], crope=[5.1]), paper_size=large)
    line = lines(table)[3]
    assert line[:5] == ["", "full, paper's size", "missing", "4.0000", "4.5000"]
    assert line[5] == "+0.5000, n\u00a0=\u00a01"


def test_the_papers_own_size_is_not_told() -> None:
    table = table1(of_table1({"scale": "paper"}, rope=[4.0]))
    assert lines(table)[1][0] == ""


def test_other_rows_and_corpora_are_left_out() -> None:
    corpus = frames.losses(study="table1", dataset="wikitext2", rope=[1.0])
    row = frames.losses(study="table1", row="b2_l512_d64", rope=[2.0])
    table = table1(together(of_table1(rope=[5.0]), corpus, row))
    assert lines(table)[1][3] == "5.0000"


def test_a_corpus_that_the_paper_does_not_have_has_no_line_of_the_paper() -> None:
    row = study_row(study="table1", dataset="tiny")
    of_row = frames.losses(study="table1", dataset="tiny", rope=[5.0], columns=SIZE)
    first, second, _ = lines(loss_table("table1", [row], of_row, NO_RUNS, {}))
    assert first[:3] == ["tiny (Python's help texts)", "full", "5.0000"]
    assert second[0] == "here B=2, L=256, 3,200 steps"


def test_a_diverged_run_is_not_averaged_away() -> None:
    table = table1(of_table1(rope=[5.0, 5.0], crope=[5.1, np.inf]))
    assert lines(table)[1][4:] == ["diverged", "diverged, n\u00a0=\u00a02"]


def test_the_csv_file_has_numbers_and_why_one_is_missing() -> None:
    table = table1(of_table1(rope=[5.0, 5.1]), reasons={"crope-ptb-base": "failed: x"})
    frame = pd.read_csv(io.StringIO(tables.to_csv(table.numbers)))
    full = frame[frame["protocol"] == "full"].set_index("model")
    assert full.loc["rope", ["n", "mean", "std"]].tolist() == [2, 5.05, 0.070711]
    assert full["status"].to_dict() == {
        "xpos": "missing",
        "rope": "complete",
        "crope": "failed: x",
    }


def test_the_two_protocols() -> None:
    """full: deviation over seeds; sampled: mean of the seeds' deviations."""
    of_row = of_table1(rope=[5.0, 5.2]).assign(**{"val_sampled.std_nats": [0.25, 0.75]})
    assert losses(of_row, "full").loc["rope"].tolist() == pytest.approx(
        [2, 5.1, 0.141421], abs=1e-6
    )
    assert losses(of_row, "sampled").loc["rope"].tolist() == [2, 5.5, 0.5]


ERROR = {"error.type": "ValueError", "error.message": "bad\nvalue", "error.step": 20}


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (ERROR | {"status": "failed"}, "failed: ValueError: bad value (step 20)"),
        ({"status": "stale"}, "stale: its model's code has changed"),
    ],
)
def test_why_a_cell_is_empty(columns: dict, reason: str) -> None:
    own = runs(rope=[5.0], columns=columns)
    found = tables.missing_reasons(Runs("quick", own, own, [], {}), [study_row()])
    assert found == {"rope-ptb-base": reason}


def test_invalid_records_and_missing_data_are_reasons() -> None:
    invalid = [InvalidRecord(Path("runs/rope-ptb-base-s1-ab"), "torn")]
    rows = [study_row(), study_row(dataset="pg19")]
    found = tables.missing_reasons(
        Runs("quick", NO_RUNS, NO_RUNS, invalid, {"pg19": "no network"}), rows
    )
    assert found == {
        "rope-ptb-base": "invalid: torn",
        "rope-pg19-base": "missing: no data",
        "crope-pg19-base": "missing: no data",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00851, "+0.0085"),
        (-0.0012, "−0.0012"),
        (-0.00001, "0.0000"),
        (np.inf, "diverged"),
    ],
)
def test_a_signed_number(value: float, text: str) -> None:
    assert signed(value) == text


def test_an_interval_of_one_seed_is_its_value() -> None:
    line = {"n": 1, "planned": 1, "complete": True, "mean": 0.5, "low": np.nan, "high": np.nan}
    assert interval_text(line) == "+0.5000"


def test_a_loss_of_one_seed_has_no_deviation() -> None:
    assert plus_minus(5.0, np.nan, 2) == "5.00"


def test_a_table_in_markdown() -> None:
    table = Table("t", "Caption", pd.DataFrame([["a", 1]], columns=["Name", "n"]))
    assert table.markdown() == "**Caption**\n\n|Name|n|\n|---|---|\n|a|1|"


def test_planned_differences_have_their_question() -> None:
    planned = Contrast(
        "P1", ("cost",), ("crope", ""), (("rope", ""),), date="2026-11-23", question="What?"
    )
    of_cost = frames.losses(study="cost", rope=[5.0], crope=[5.1])
    of_lines = answer(of_cost, planned)
    (line,) = lines(tables.difference_table("planned", "", of_lines, {"P1": planned}))
    assert line == ["P1. What?", "CRoPE − RoPE", "Penn Treebank", "+0.1000 (1 of 10 seeds)", 1]


def test_where_a_difference_was_measured() -> None:
    line = {"dataset": "pg19", "row": "b2_l512_d64", "setting": "train.lr=0.002"}
    assert tables.place(line) == "PG-19; B=2, L=512, D=64, γ=0.9, step=1000; train.lr=0.002"
    assert tables.place({"dataset": "", "row": "base", "setting": ""}) == "all corpora"


def test_own_runs_stand_beside_published_ones_of_their_cell() -> None:
    """Another cell, another status and runs outside the tables are left out."""
    own = together(runs(rope=[5.0, 5.25]), runs(nope=[9.0]))
    public = together(runs(rope=[4.9, 5.5], crope=[1.0]), runs(rope=[0.5]).assign(status="stale"))
    table = tables.own_table(Runs("quick", own, public, [], {}), ["rope-ptb-base"])
    assert lines(table) == [["Penn Treebank", "RoPE", "5.000, 5.250", "4.900 to 5.500", 2]]


def test_other_own_runs_are_listed_with_what_differs() -> None:
    run = load_run(["data=ptb", "scale=smoke", "train.lr=0.5", "train.precision=fp32"])
    own = runs(rope=[5.0]).assign(scale="smoke", whole_config=[[run.container]])
    (line,) = lines(tables.other_runs_table(Runs("smoke", own, own, [], {}), ["another"]))
    assert line == ["rope-ptb-base-s0", "smoke", "train.lr=0.5", "5.0000"]
