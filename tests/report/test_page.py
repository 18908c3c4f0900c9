"""The report as a user gets it: the page, its files and what is printed."""

import os
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from crope.errors import InvalidRecord, UserError
from crope.report import compare, content, evidence, figures, page, pictures
from crope.report.evidence import load_contrasts
from crope.report.findings import Findings
from crope.report.frame import Runs
from crope.report.tables import Table
from tests.report.frames import cells, losses, runs, together

SCHEDULE = {"config.train.max_steps": 20, "config.train.lr_step_size": 10}
CURVES = ["val/loss_nats", "val_full/loss_nats", "train/loss_nats"]
NONE = runs(rope=[])
CLAIMS = Table("claims", "Claims", pd.DataFrame([["none", "Refuted."]], columns=["", "Here"]))
FOUND = Findings("Nearly.", "Small models.", ["**The rate** decides."], CLAIMS, {})
PUBLIC = runs(rope=[5.07], crope=[5.1325]).assign(record_set="public", **SCHEDULE)


def page_text(folder):
    """The page without the attributes that narrow screens need."""
    return re.sub(' data-column="[^"]*"', "", (folder / "index.html").read_text())


def own(**options):
    return runs(**options).assign(finished_utc="2026", **SCHEDULE)


@pytest.fixture
def built(monkeypatch, tmp_path):
    """Builds the report of these runs of Table 1, whose curves are empty; returns the folder."""

    def table_cells(scale):
        if scale == "paper":
            return cells(study="table1", setting="large")
        return cells(study="table2") + cells(study="table1")

    def call(mine, public=PUBLIC, scale="quick", invalid=(), **options):
        found = Runs(scale, mine.assign(scale=scale), public, invalid)
        monkeypatch.setattr(page, "load_runs", lambda **_: found)
        assert page.build_report(results_dir=tmp_path, **options) == list(invalid)
        return tmp_path / ("report-smoke" if scale == "smoke" else "report")

    every = load_contrasts()
    asked = {name: every[name] for name in ("table1/crope - rope", "baselines/xpos - nope")}
    for module in (page, content, pictures, evidence):
        monkeypatch.setattr(module, "load_contrasts", lambda: asked)
    monkeypatch.setattr(content, "table_cells", table_cells)
    monkeypatch.setattr(content, "expected_cells", lambda scale: [])
    monkeypatch.setattr(page, "findings", lambda lines: FOUND)
    curves = pd.DataFrame(columns=["run_id", "step", "dataset", "row", "model", "seed", *CURVES])
    for module in (pictures, compare):
        monkeypatch.setattr(module, "load_curves", lambda shown: curves)
    return call


def test_the_users_runs_are_in_the_tables_and_every_file(built, monkeypatch, capsys):
    """The page is written last: it links to the others."""
    written = mock.Mock(wraps=page.write_text)
    monkeypatch.setattr(page, "write_text", written)
    folder = built(own(rope=[5.0625], crope=[5.1875]))
    assert written.call_args.args[0] == folder / "index.html"
    text = page_text(folder)
    assert "Tables 1 and 2 show 2 of your runs" in text
    apart = "2 runs and the nearest published ones are at most 0.055 apart"
    assert f'<p class="card">{apart}' in text
    link = os.path.relpath("runs/rope-ptb-base-s0", folder)
    assert f'<a href="{link}">rope-ptb-base-s0</a>' in text
    assert '<td class="best">5.0625</td><td>5.1875</td><td>+0.1250 (1 of 3 seeds)</td>' in text
    assert "<td>5.0625</td><td>1.5</td><td>5.0700 to 5.0700 (1 runs)</td>" in text
    assert '<p class="answer">Nearly.</p>' in text
    assert "<li><b>The rate</b> decides.</li>" in text
    assert "<td>Refuted.</td>" in text
    assert list(pd.read_csv(folder / "runs.csv")["loss"]) == [5.0625, 5.1875]
    lines = pd.read_csv(folder / "differences.csv").query("name == 'table1/crope - rope'")
    assert lines.set_index("runs")["mean"].to_dict() == {"yours": 0.125}
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Penn Treebank: {apart}" in printed
    assert "RoPE 5.062, published 5.070, the paper's at its size 4.021" in printed
    assert f"open {folder}/index.html" in printed


def test_runs_of_a_published_set_have_no_folder_to_link_to(built):
    text = page_text(built(own(rope=[5.0]).assign(record_set="a-set")))
    assert "<td>rope-ptb-base-s0</td>" in text


def test_what_counts_for_nothing_is_listed_and_escaped(built, capsys):
    error = {"error.type": "ValueError", "error.message": "<b>\nvalue", "error.step": 20}
    failed = own(rope=[5.0]).assign(status="failed", loss=np.nan, **error)
    folder = built(
        together(own(crope=[5.0]), failed), invalid=[InvalidRecord(Path("runs/x"), "<b>&")]
    )
    text = page_text(folder)
    assert "<li>rope-ptb-base-s0: ValueError: &lt;b&gt; value (step 20)</li>" in text
    assert "<li>crope-ptb" not in text
    assert "<li>runs/x: &lt;b&gt;&amp;;" in text
    assert "invalid: runs/x: <b>&" in capsys.readouterr().err


@pytest.mark.parametrize("mine", [NONE, runs(rope=[9.0]).assign(cell_key="another")])
def test_without_own_runs_of_the_tables_the_published_ones_are(built, mine):
    text = page_text(built(mine))
    assert "Tables 1 and 2 show 2 published runs" in text
    assert '<td class="best">5.0700</td><td>5.1325</td>' in text


def test_a_sentence_whose_answer_has_changed_costs_no_report(built, monkeypatch, capsys):
    monkeypatch.setattr(page, "findings", mock.Mock(side_effect=UserError("P1 is now open")))
    assert "Nearly" not in page_text(built(own(rope=[5.0])))
    assert "P1 is now open; the page does not say what was found" in capsys.readouterr().err


def test_the_picture_of_all_models_has_those_beside_rope_over_all_corpora(monkeypatch):
    drawn = mock.Mock()
    monkeypatch.setattr(figures, "models", drawn)
    every = pd.DataFrame({"name": list(load_contrasts())}).assign(dataset="", mean=0.5)
    lines = pd.concat([every, every.assign(dataset="ptb"), every.assign(mean=None)])
    empty = losses(rope=[])
    pictures.draw_published(content.Results(empty, empty, lines))
    shown = drawn.call_args.args[0][["name", "model"]].to_numpy().tolist()
    others = ["complex_qk", "complex_v", "complex_misaligned", "conjugate", "halved", "lowrank"]
    of_cost = [[f"cost/{model} - rope", model] for model in [*others, "thin_ffn", "mqa"]]
    assert sorted(shown) == sorted([["P1", "crope"], *of_cost])


@pytest.mark.parametrize("scale", ["quick", "smoke"])
def test_the_users_own_study_has_differences_at_its_scale(scale, built, monkeypatch, capsys):
    """It comes first, with its losses. Tables 1 and 2, which have a run too, were not asked for."""
    of_scale = {scale: cells("xpos", "nope", study="baselines")}
    monkeypatch.setattr(content, "expected_cells", lambda name: of_scale.get(name, []))
    mine = own(xpos=[5.1, 5.3], nope=[5.0, 5.0], rope=[5.0])
    folder = built(mine, scale=scale, studies=["baselines"])
    printed = capsys.readouterr().out
    assert "XPOS − NoPE; Penn Treebank\n  +0.2000 (2 of 8 seeds), n = 2" in printed
    assert "5.2000 ± 0.1414" in printed
    assert "Final validation loss" not in printed
    text = page_text(folder)
    assert text.index("5.2000 ± 0.1414") < text.index("Table 1</h2>")
    assert "<td>XPOS − NoPE</td><td>Penn Treebank</td><td>+0.2000 (2 of 8 seeds)</td>" in text


def test_a_whole_study_stays_on_the_page_when_another_is_printed(built, monkeypatch, capsys):
    study = cells("xpos", "nope", study="baselines")
    monkeypatch.setattr(content, "expected_cells", lambda scale: study)
    folder = built(own(xpos=[5.1, 5.3], nope=[5.0, 5.0]), studies=["table1"])
    assert "5.2000 ± 0.1414" not in capsys.readouterr().out
    assert "5.2000 ± 0.1414" in page_text(folder)
