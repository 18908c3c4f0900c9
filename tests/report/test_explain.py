"""The runs behind a cell, a planned question and another difference, published and the user's."""

from pathlib import Path

import pandas as pd
import pytest

from crope.errors import UserError
from crope.report import explain as module
from crope.report.explain import explain
from crope.report.frame import Runs
from crope.runs.study import expected_rows, expected_table_rows
from tests.report.frames import runs, together


@pytest.fixture(scope="module")
def keys() -> dict[tuple[str, str, str], str]:
    """(study, dataset, model) -> key, of the studies of these tests."""
    rows = [*expected_table_rows("quick"), *expected_rows("quick")]
    cells = {}
    for row in rows:
        if row.study in ("table1", "cost"):
            for cell in row.cells:
                cells[row.study, row.dataset, cell.model] = cell.key
    return cells


def of_conf(frame: pd.DataFrame, keys: dict, study: str) -> pd.DataFrame:
    places = zip(frame["dataset"], frame["model"], strict=True)
    names = {"provenance.commit": "c" * 40, "provenance.device": "a CPU", "row": "base"}
    return frame.assign(cell_key=[keys[study, *place] for place in places], **names)


@pytest.fixture
def told(keys: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`explain` with published runs of two studies, and a RoPE run of the user, at the scale smoke."""
    table = of_conf(runs(rope=[5.0, 5.5], crope=[5.25, 5.5]), keys, "table1")
    ptb = runs(rope=[4.0], crope=[4.25], mqa=[4.5], first_seed=10)
    wiki = runs(rope=[4.0], crope=[4.5], first_seed=10, dataset="wikitext2")
    cost = of_conf(together(ptb, wiki), keys, "cost")
    own = table.head(1).assign(loss=4.75, path="mine/rope")

    def call(name: str | None, scale: str = "quick") -> str:
        found = Runs(scale, own, together(table, cost), [], {})
        monkeypatch.setattr(module, "load_runs", lambda **_: found)
        return explain(name, results_dir=tmp_path, published=tmp_path)

    return call


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_cell_of_a_table_with_own_runs_beside_published_ones(told) -> None:
    own, published = told("table1/ptb/rope").split("\n\n")
    assert lines(own)[0] == ["table1/ptb/rope", "(yours)"]
    assert lines(own)[2][:2] == ["0", "4.750000"]
    assert lines(own)[2][-1] == "mine/rope"
    assert lines(own)[3] == ["full:", "4.750000,", "n", "=", "1"]
    assert lines(published)[1][:3] == ["seed", "full", "sampled"]
    assert [line[:2] for line in lines(published)[2:4]] == [["0", "5.000000"], ["1", "5.500000"]]
    assert lines(published)[4] == ["full:", "5.250000", "±", "0.353553,", "n", "=", "2"]


@pytest.mark.parametrize("scale", ["quick", "smoke", "paper"])
def test_a_planned_question_whatever_scale_the_users_runs_have(told, scale: str) -> None:
    text = lines(told("P1", scale))
    assert text[0] == ["P1", "(published)"]
    assert text[1][:5] == ["dataset", "seed", "CRoPE", "RoPE", "difference"]
    assert text[2][:5] == ["ptb", "10", "4.250000", "4.000000", "0.250000"]
    assert text[3][:5] == ["wikitext2", "10", "4.500000", "4.000000", "0.500000"]
    assert text[2][6] == "cccccccccccc"
    assert " ".join(text[4]) == "CRoPE − RoPE; all corpora: +0.3750 (1 of 10 seeds), n = 1"


def test_a_difference_that_no_file_asks(told) -> None:
    assert "multi-query − CRoPE; Penn Treebank: +0.2500" in told("cost/mqa-crope")


def test_a_question_without_a_run_names_the_command(told) -> None:
    assert told("Q1") == "Q1: no run yet; `make reproduce STUDY=qkv_rate`"
    assert "STUDY=table1" in told("table1/tiny/rope")


def test_without_a_name_all_names(told) -> None:
    names = told(None).splitlines()
    assert {"table1/ptb/rope", "table2/b2_l512_d64/crope", "cost/mqa - rope"} <= set(names)
    assert "P1  What does Eq. 30 cost?" in names


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("table1/ptb/rop", "table1/ptb/rope"),
        ("cost/mqx-rope", "cost/mqa - rope"),
        ("?", "the list"),
    ],
)
def test_an_unknown_name_has_near_ones(told, name: str, near: str) -> None:
    with pytest.raises(UserError, match=near):
        told(name)
