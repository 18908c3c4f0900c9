"""How differences and the user's runs are printed."""

import numpy as np
import pandas as pd

from crope.report import tables
from crope.report.contrasts import make_contrast
from crope.report.frame import Runs
from tests.report.frames import NO_RUNS, lines, runs, together


def test_a_rounded_zero_has_no_sign():
    assert tables.signed(-1e-5) == "0.0000"


def test_planned_lines_are_those_over_all_corpora_where_there_are_several():
    names = [("P1", ""), ("P1", "ptb"), ("P5", "pg19"), ("levels/rope", "")]
    every = pd.DataFrame(names, columns=["name", "dataset"])
    assert tables.planned_lines(every).to_numpy().tolist() == [["P1", ""], ["P5", "pg19"]]


def own_lines(public=NO_RUNS, **differs):
    own = runs(rope=[5.0]).assign(settings=[["train.lr=0.5"]], **differs)
    return lines(tables.own_table(Runs("quick", own, public, [])))


def test_own_runs_stand_beside_published_ones_of_their_cell():
    """Published runs of other cells and stale ones are left out; settings are what differs."""
    stale = runs(rope=[0.5]).assign(status="stale")
    assert own_lines(together(runs(rope=[4.9, 5.5], crope=[1.0]), stale)) == [
        ["rope-ptb-base-s0", "train.lr=0.5", "5.0000", "1.5", "4.9000 to 5.5000 (2 runs)"]
    ]


def test_a_failed_run_has_no_loss():
    """And no column of published ones where none is."""
    assert own_lines(status="failed")[0][2:] == ["failed", "1.5"]


def test_a_mean_over_settings_is_said_to_be_one():
    contrast = make_contrast("rates", {"difference": "crope - rope", "averaged": True})
    line = {"dataset": "", "row": "", "setting": "", "mean": 0.5, "complete": True, "low": np.nan}
    assert tables.line_text(contrast, line | {"n": 1}).startswith(
        "CRoPE − RoPE, mean over settings; all"
    )
