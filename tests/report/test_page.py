"""The report as a user gets it: the page, its files and what is printed."""

from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from crope.errors import InvalidRecord, UserError
from crope.report import page
from crope.report.frame import Runs
from tests.report.frames import cells, runs

SCHEDULE = {"config.train.max_steps": 20, "config.train.lr_step_size": 10}
NONE = runs(rope=[])
PUBLIC = runs(rope=[5.07], crope=[5.1325]).assign(record_set="public", **SCHEDULE)


def own(**options):
    return runs(**options).assign(finished_utc="2026", **SCHEDULE)


@pytest.fixture
def built(monkeypatch, tmp_path):
    """Builds the report of these runs of Table 1, whose curves are empty; returns the folder."""

    def table_cells(scale, tiny=False):
        found = cells(study="table2", dataset="pg19")
        for name in ["ptb", *["tiny"] * tiny]:
            found += cells(study="table1", dataset=name)
        return found

    def call(mine, public=PUBLIC, scale="quick", invalid=(), **options):
        found = Runs(scale, mine.assign(scale=scale), public, invalid, {})
        monkeypatch.setattr(page, "load_runs", lambda **_: found)
        assert page.build_report(results_dir=tmp_path, **options) == list(invalid)
        return tmp_path / ("report-smoke" if scale == "smoke" else "report")

    monkeypatch.setattr(page, "table_cells", table_cells)
    monkeypatch.setattr(page, "expected_cells", lambda scale: [])
    monkeypatch.setattr(page, "findings", lambda differences: ["**Found**"])
    curves = pd.DataFrame(columns=["step", "dataset", "row", "model"])
    monkeypatch.setattr(page, "curves_of", lambda shown: curves)
    return call


def test_the_users_runs_are_in_the_tables_and_every_file(built, capsys):
    folder = built(own(rope=[5.0625], crope=[5.1875]))
    text = (folder / "index.html").read_text()
    assert "Tables 1 and 2: 2 of your runs" in text
    assert "<td>5.0625</td><td>5.1875</td><td>+0.1250, n\u00a0=\u00a01</td>" in text
    assert "<td>5.0625</td><td>5.0700 to 5.0700 (1 runs)</td>" in text
    assert "<li>Found</li>" in text
    assert list(pd.read_csv(folder / "runs.csv")["loss"]) == [5.0625, 5.1875]
    lines = pd.read_csv(folder / "differences.csv").query("name == 'table1/crope - rope'")
    assert lines.set_index("runs")["mean"].to_dict() == {"published": 0.0625, "yours": 0.125}
    printed = capsys.readouterr().out
    assert "Penn Treebank: RoPE 5.062, published 5.070, paper 4.021" in printed
    assert f"open {folder}/index.html" in printed


def test_what_counts_for_nothing_is_listed_and_escaped(built, capsys):
    error = {"error.type": "ValueError", "error.message": "<b>\nvalue", "error.step": 20}
    failed = own(rope=[5.0]).assign(status="failed", loss=np.nan, **error)
    folder = built(failed, invalid=[InvalidRecord(Path("runs/x"), "<b>&")])
    text = (folder / "index.html").read_text()
    assert "<li>rope-ptb-base-s0: ValueError: &lt;b&gt; value (step 20)</li>" in text
    assert "<li>runs/x: &lt;b&gt;&amp;;" in text
    assert "invalid: runs/x: <b>&" in capsys.readouterr().err


@pytest.mark.parametrize("mine", [NONE, runs(rope=[9.0]).assign(cell_key="another")])
def test_without_own_runs_of_the_tables_the_published_ones_are(built, mine):
    text = (built(mine) / "index.html").read_text()
    assert "Tables 1 and 2: 2 of the published runs" in text
    assert "<td>5.0700</td><td>5.1325</td>" in text


def test_a_sentence_whose_answer_has_changed_costs_no_report(built, monkeypatch, capsys):
    monkeypatch.setattr(page, "findings", mock.Mock(side_effect=UserError("P1 is now open")))
    assert "<li>Found</li>" not in (built(own(rope=[5.0])) / "index.html").read_text()
    assert "P1 is now open; the page has no sentences" in capsys.readouterr().err


def test_a_smoke_test_on_tiny_has_a_row_in_a_report_of_its_own(built):
    folder = built(own(rope=[5.0625], dataset="tiny"), NONE, scale="smoke")
    assert "scale: smoke" in (folder / "index.html").read_text()
    full = pd.read_csv(folder / "table1.csv").query("protocol == 'full'")
    assert list(full["status"]) == ["missing", "missing", "complete", "missing"]


def test_rows_of_the_papers_own_size_have_the_seeds_of_both_models():
    large = runs(rope=[4.0, 6.0], crope=[4.5]).assign(study="paper_row")
    twice = pd.concat([large, large.assign(study="paper_row_xpos")])
    assert list(page.paper_size(twice)["loss"]) == [4.0, 4.5]


def test_the_pictured_models_are_beside_rope():
    models = page.beside_rope()
    assert (models["P1"], models["cost/thin_ffn - rope"]) == ("crope", "thin_ffn")
    assert not {"nope", "rope"} & set(models.values())


def test_the_terminal_has_the_differences_of_the_users_own_study(built, monkeypatch, capsys):
    """Its runs alone were asked for, not Tables 1 and 2, which have a run too."""
    asked = cells("xpos", "nope", study="baselines")
    monkeypatch.setattr(page, "expected_cells", lambda scale: asked)
    built(own(xpos=[5.1, 5.3], nope=[5.0, 5.0], rope=[5.0]), studies=["baselines"])
    printed = capsys.readouterr().out
    assert "baselines/xpos - nope; Penn Treebank: +0.2000 (2 of 8 seeds), n = 2" in printed
    assert "Final validation loss" not in printed
