"""The runs behind a cell, a planned question and another difference, published and the user's."""

import pytest

from crope.errors import UserError
from crope.plan.study import Study
from crope.report import explain as module
from crope.report.contrasts import make_contrast
from crope.report.frame import Runs
from tests.report.frames import cells, runs, together

LONG = {"first_seed": 10, "setting": "-long"}
PUBLIC = together(
    runs(rope=[5.0, 5.5], crope=[5.25, 5.5]),
    runs(rope=[4.0], crope=[4.25], mqa=[4.5], **LONG),
    runs(rope=[4.0], crope=[4.5], dataset="wikitext2", **LONG),
    runs(rope=[3.5], setting="-large"),
).assign(**{"provenance.commit": "c" * 40, "provenance.dirty": True, "provenance.device": "a CPU"})
OTHER_LOSSES = {"val_full.best_nats": 4.5, "val_sampled.mean_nats": 6.0}
OWN = PUBLIC.head(1).assign(loss=4.75, folder="mine", run_id="rope", **OTHER_LOSSES)
TABLE1 = cells(study="table1")
OF_COST = {"study": "cost", "setting": "-long", "seeds": (10,)}
COST = cells("rope", "crope", "mqa", **OF_COST) + cells(dataset="wikitext2", **OF_COST)


@pytest.fixture
def told(monkeypatch):
    """`explain` with published runs of Table 1 and of the study `cost`, which are of the scale
    quick, and a RoPE run of the user.
    """
    known = {("table1", "quick"): TABLE1, ("cost", "quick"): COST}
    known["table1", "paper"] = cells(study="table1", setting="-large")

    def cells_of(study, scale):
        return known.get((study.name, scale), [])

    def call(name, scale="quick"):
        monkeypatch.setattr(module, "load_runs", lambda **_: Runs(scale, OWN, PUBLIC, []))
        text = module.explain(name, results_dir=None)
        return [" ".join(line.split()) for line in text.splitlines()]

    monkeypatch.setattr(Study, "cells", cells_of)
    return call


def test_a_cell_of_a_table_with_own_runs_beside_published_ones(told):
    lines = told("table1/ptb/rope")
    assert lines[:7] == [
        "table1/ptb/rope (yours, scale quick)",
        "seed full lowest sampled run",
        "0 4.750000 4.500000 6.000000 rope",
        "precision: fp32",
        "commit: cccccccccccc and uncommitted changes",
        "device: a CPU",
        "folder: mine",
    ]
    assert lines[11] == "table1/ptb/rope (published, scale quick)"
    assert lines[14] == "1 5.500000 NaN NaN rope-ptb-base-s1"
    assert lines[19] == "full: 5.250000 ± 0.353553, n = 2"


def test_own_runs_of_other_code_are_said_to_be_so(told, monkeypatch):
    monkeypatch.setitem(globals(), "OWN", OWN.assign(code="trained by other code (a.py)"))
    assert "code: trained by other code (a.py)" in told("table1/ptb/rope")


def test_a_cell_at_the_papers_own_size(told):
    assert "0 3.500000 NaN NaN rope-ptb-base-large-s0" in told("table1/ptb/rope", "paper")


def test_a_planned_question_whatever_scale_the_users_runs_have(told):
    lines = told("P1", "smoke")
    assert lines[:6] == [
        "P1: no run of yours at scale smoke",
        "",
        "P1 (published, scale quick)",
        "dataset seed CRoPE RoPE difference run",
        "ptb 10 4.250000 4.000000 0.250000 crope-ptb-base-long-s10",
        "wikitext2 10 4.500000 4.000000 0.500000 crope-wikitext2-base-long-s10",
    ]
    assert lines[10:12] == ["CRoPE − RoPE; all corpora", "1 of 10 seeds, n = 1"]


def test_a_difference_that_no_file_asks(told):
    line = "+0.2500 (1 of 10 seeds), n = 1"
    assert line in told("cost/mqa-crope")
    assert line in told("cost/mqa - crope")


def test_a_difference_is_that_of_the_file_however_its_minus_is_written(monkeypatch):
    asked = make_contrast("rates", {"difference": "crope - rope", "at": ["train.lr=0.002"]})
    monkeypatch.setattr(module, "load_contrasts", lambda: {"rates/crope - rope": asked})
    assert module._contrast_of("rates/crope-rope") is asked


def test_the_minus_of_an_exponent_is_no_difference(monkeypatch):
    """Of a rate as small as 3e-05."""
    monkeypatch.setattr(module, "make_contrast", lambda _, difference, name: difference)
    asked = module._contrast_of("mine/crope at train.lr=3e-05-rope at train.lr=1e-05")
    assert asked == "crope at train.lr=3e-05 - rope at train.lr=1e-05"


def test_what_has_no_run_names_the_command(told):
    assert told("Q1") == ["Q1: no run yet; `make reproduce STUDY=qkv_rate`"]
    assert "STUDY=table1" in told("table1/pg19/rope")[0]


def test_without_a_name_all_names(told):
    names = {"table1/pg19/rope", "table2/base/pg19/rope", "P1 What does Eq. 30 cost?"}
    assert names | {"cost/mqa - rope"} <= set(told(None))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("table1/ptb/rop", "table1/ptb/rope"),
        ("cost/mqx-rope", "cost/mqa - rope"),
    ],
)
def test_an_unknown_name_has_near_ones(told, name, near):
    with pytest.raises(UserError, match=near):
        told(name)
