"""The report as a user gets it: the page, its files and what is printed."""

from pathlib import Path

import pandas as pd
import pytest

from crope.errors import InvalidRecord
from crope.report import page
from crope.report.frame import Runs
from crope.runs.study import expected_table_rows
from tests.report.frames import runs
from tests.report.records import record

HOSTILE = "<b>&"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Builds the report of these own and published runs of Table 1, each with a curve; returns the
    folder.
    """
    monkeypatch.setattr(page, "expected_rows", lambda scale: [])
    monkeypatch.setattr(page, "findings", lambda differences: ["**Found**"])

    def in_table1(frame: pd.DataFrame, scale: str, folder: str) -> pd.DataFrame:
        keys = {}
        for row in expected_table_rows(scale, ["ptb", "tiny"])[:2]:
            for cell in row.cells:
                keys[cell.dataset, cell.model] = cell.key
        places = zip(frame["dataset"], frame["model"], strict=True)
        cells = [keys.get(place, "none") for place in places]
        paths = [str(record(tmp_path / folder, run_id).path) for run_id in frame["run_id"]]
        drops = {"config.train.max_steps": 20, "config.train.lr_step_size": 10}
        return frame.assign(cell_key=cells, path=paths, scale=scale, finished_utc=folder, **drops)

    def call(own: pd.DataFrame, public: pd.DataFrame, scale: str = "quick", invalid=()) -> Path:
        own, public = in_table1(own, scale, "own"), in_table1(public, scale, "public")
        found = Runs(scale, own, public, invalid, {})
        monkeypatch.setattr(page, "load_runs", lambda **_: found)
        assert page.build_report(results_dir=tmp_path) == list(invalid)
        return tmp_path / ("report-smoke" if scale == "smoke" else "report")

    return call


def test_the_users_runs_are_in_the_tables(built, capsys: pytest.CaptureFixture[str]) -> None:
    own = runs(rope=[5.0625], crope=[5.125])
    folder = built(own, runs(rope=[5.07], columns={"record_set": "public"}))
    text = (folder / "index.html").read_text()
    assert "Tables 1 and 2: 2 of your runs" in text
    assert "<td>5.0625</td><td>5.1250</td><td>+0.0625, n\u00a0=\u00a01</td>" in text
    assert "<td>5.062</td><td>5.070 to 5.070</td>" in text
    assert "<li>Found</li>" in text
    printed = capsys.readouterr().out
    assert "5.0625" in printed
    assert "Penn Treebank: RoPE 5.062, published 5.070, paper 4.021" in printed
    assert f"open {folder}/index.html" in printed


def test_without_own_runs_the_published_ones_are(built) -> None:
    text = (built(runs(rope=[]), runs(rope=[5.0625])) / "index.html").read_text()
    assert "Tables 1 and 2: 1 of the published runs" in text
    assert "<td>5.0625</td>" in text


def test_tiny_has_a_row_where_it_was_trained(built) -> None:
    folder = built(runs(rope=[5.0625], dataset="tiny"), runs(rope=[]))
    numbers = pd.read_csv(folder / "table1.csv").query("dataset == 'tiny' and protocol == 'full'")
    assert numbers.set_index("model")["status"].to_dict() == {
        "xpos": "missing",
        "rope": "complete",
        "crope": "missing",
    }


def test_a_smoke_test_leaves_the_report_of_other_runs(built) -> None:
    folder = built(runs(rope=[5.0]), runs(rope=[]), scale="smoke")
    assert "scale: smoke" in (folder / "index.html").read_text()


def test_invalid_records_are_named_and_escaped(built, capsys: pytest.CaptureFixture[str]) -> None:
    invalid = [InvalidRecord(Path("runs/x"), HOSTILE)]
    text = (built(runs(rope=[5.0]), runs(rope=[]), invalid=invalid) / "index.html").read_text()
    assert HOSTILE not in text
    assert "runs/x: &lt;b&gt;&amp;;" in text
    assert f"invalid: runs/x: {HOSTILE}" in capsys.readouterr().err


def test_the_files_hold_every_run_and_difference(built) -> None:
    folder = built(runs(rope=[5.0], crope=[5.25]), runs(rope=[4.0], crope=[4.125]))
    assert pd.read_csv(folder / "runs.csv")["loss"].tolist() == [5.0, 5.25]
    lines = pd.read_csv(folder / "differences.csv").query("name == 'table1/crope - rope'")
    assert dict(zip(lines["runs"], lines["mean"], strict=True)) == {
        "yours": 0.25,
        "published": 0.125,
    }


def test_rows_of_the_papers_own_size_have_the_seeds_of_both_models() -> None:
    large = runs(rope=[4.0, 6.0], crope=[4.5], columns={"study": "paper_row"})
    assert page.paper_size(large)["loss"].tolist() == [4.0, 4.5]


def test_the_pictured_models_are_beside_rope() -> None:
    models = page.beside_rope()
    assert models["P1"] == "crope"
    assert models["cost/thin_ffn - rope"] == "thin_ffn"
    assert not {"nope", "rope"} & set(models.values())
