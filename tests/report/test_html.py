"""The whole report: one page that stands alone, escapes what it is given, and has the same bytes every time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote

import pytest

from crope.config import ROOT
from crope.errors import DataError
from crope.report import build_report, load_unavailable, report_folder
from tests.report.page import read_page

FILES = {
    "table1.md", "table1.csv", "table1.tex", "table2.md", "table2.csv", "table2.tex", "details.md", "details.csv",
    "runs.csv", "fig4.svg", "fig4.png", "index.html",
}  # fmt: skip


@pytest.fixture
def build(read_sound, runs_dir, cells):
    def build(*, unavailable=None, name="report", scale="quick", expected=None) -> Path:
        out_dir = runs_dir.parent / name
        files = build_report(
            read_sound(),
            expected or cells,
            unavailable=unavailable or {},
            out_dir=out_dir,
            scale=scale,
            runs_link="../runs",
        )
        assert files[-1].name == "index.html"
        assert {path.name for path in files} == {path.name for path in out_dir.iterdir()} == FILES
        return out_dir

    return build


def test_page_stands_alone_and_its_links_lead_somewhere(whole_study, build, runs_dir) -> None:
    out_dir = build()
    page = read_page(out_dir)
    assert not {"script", "link", "iframe"} & set(page.tags)
    links = [value for _, name, value in page.attributes if name in ("href", "src", "srcset")]
    files = [link for link in links if not link.startswith("data:image/svg+xml;base64,")]
    assert len(links) - len(files) == 2 * 3  # a light and a dark picture a dataset
    assert not [link for link in files if ":" in link]
    assert not [link for link in files if not (out_dir / unquote(link)).exists()]
    (run,) = runs_dir.glob("crope-ptb-base-s0-*")
    assert f"../runs/{run.name}/summary.json" in files
    style = (out_dir / "index.html").read_text("utf-8").partition("</style>")[0]
    assert "@import" not in style and "url(" not in style


def test_page_says_what_was_found(whole_study, build) -> None:
    text = read_page(build()).text
    assert "scale: quick" in text and "21 of 21 table cells complete" in text
    assert "levels do not compare with the paper's" in text
    # Seeds 0 and 1 at 4.0 and 4.1: mean 4.05, CRoPE 0.01 above at each seed, so an interval of no width.
    assert "full 4.3500 ± 0.0707 4.0500 ± 0.0707 4.0600 ± 0.0707" in text
    assert "Table 1: Penn Treebank +0.0100 −0.0054 +0.0100 to +0.0100 2" in text
    # 4 layers of width 128 with biases outside Q/K/V, 4096 tied embeddings; CRoPE lacks half of 4 x 3 x 128^2.
    total = 4 * (12 * 128**2 + 6 * 128) + 9 * 2 * 128 + 4096 * 128
    share = 100 * 4 * 1.5 * 128**2 / total
    assert "Q/K/V 50.0 % (paper: 50 %), attention 37.5 % (paper: 37.5 %), block 12.5 % (paper: 12.5 %)" in text
    assert f"whole model with embeddings {share:.1f} % ({total:,} to {total - 98_304:,} parameters)" in text
    assert "complete 4.0000 0123456789 a CPU fp32 2 min 31 s" in text


def test_page_without_runs_says_what_to_do(build) -> None:
    text = read_page(build(unavailable={"pg19": "the hub is not there"})).text
    assert "0 of 21 table cells complete" in text
    assert "make reproduce SCALE=quick" in text
    assert "PG-19: the hub is not there" in text


def test_runs_of_other_scales_are_counted_not_shown(write_run, build) -> None:
    write_run("rope", "ptb", final=4.0)
    write_run("rope", "ptb", "b2_l512_d64", scale="smoke")
    out_dir = build()
    assert "1 run of other scales is not on this page" in read_page(out_dir).text
    assert (out_dir / "runs.csv").read_text("utf-8").count("\n") == 2


def test_a_run_of_a_cell_is_shown_whatever_scale_it_was_made_under(write_run, build) -> None:
    """A sweep's overrides can turn another scale into this one: the same configuration, the same run id."""
    run = write_run("rope", "ptb", final=4.0, scale="smoke")
    text = read_page(build()).text
    assert f"{run.name} 0 complete 4.0000" in text and "not on this page" not in text


def test_runs_that_no_table_uses_are_said(write_run, build) -> None:
    write_run("rope", "ptb", final=4.0)
    assert "in no table" not in read_page(build(name="before")).text
    write_run("rope", "ptb", "b2_l512_d64", final=4.0)  # Table 2 is on PG-19
    assert "1 of these runs stands in no table" in read_page(build()).text


SCRIPT = """
import sys
from pathlib import Path
from crope.report import report_folder
report_folder(results_dir=Path(sys.argv[1]), out_dir=Path(sys.argv[2]), scale="quick")
print([name for name in ("torch", "wandb", "datasets") if name in sys.modules])
"""


def test_same_bytes_in_another_process_without_torch_or_wandb(whole_study, runs_dir, tmp_path) -> None:
    """Another hash seed, another time zone, a later moment."""
    results, outputs = runs_dir.parent, []
    for name, seed, zone in (("one", "1", "UTC"), ("two", "2", "Asia/Tokyo")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, results, results / name],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "[]"
        outputs.append({path.name: path.read_bytes() for path in (results / name).iterdir()})
    assert outputs[0].keys() == FILES
    assert [name for name in FILES if outputs[0][name] != outputs[1][name]] == []


def test_ninety_runs_take_seconds(write_run, build, cells_of) -> None:
    """90 runs with 1,501 lines each; the budget is 10 s of processor time, whatever else the machine does."""
    cells = cells_of(15_000)
    for dataset, row in {(cell.dataset, cell.row) for cell in cells}:
        for model in ("xpos", "rope", "crope"):
            for seed in range(5):
                path = write_run(model, dataset, row, seed=seed, steps=15_000)
    assert (path / "metrics.jsonl").read_text("utf-8").count("\n") == 1501
    started = time.process_time()
    assert "21 of 21 table cells complete" in read_page(build(expected=cells)).text
    assert time.process_time() - started < 10


def test_report_folder_picks_the_scale_and_prints_tables(whole_study, runs_dir, capsys) -> None:
    page, damaged = report_folder(results_dir=runs_dir.parent)
    assert not damaged
    printed = capsys.readouterr().out
    assert page == runs_dir.parent / "report" / "index.html"
    assert "Table 1." in printed and "Table 2." in printed and "Scale: quick." in printed
    assert printed.splitlines()[-1] == str(page)


def test_script_without_runs_exits_0_and_says_what_to_do(tmp_path) -> None:
    (tmp_path / "unavailable.json").write_text('{"ptb": "not here"}', "utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), "--results-dir", str(tmp_path), "--scale", "smoke"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    first = done.stdout.splitlines()[0]
    assert first.startswith("no run of the smoke scale in ") and "make reproduce SCALE=smoke" in first
    assert {path.name for path in (tmp_path / "report").iterdir()} == FILES
    assert "Penn Treebank: not here" in (tmp_path / "report" / "table1.md").read_text("utf-8")


def test_several_folders_are_linked_each_where_it_lies(write_run, runs_dir, cells, tmp_path) -> None:
    run = write_run("rope", "ptb")
    other = write_run("crope", "ptb", folder=tmp_path / "published" / "a machine")
    page, _ = report_folder(
        results_dir=runs_dir.parent, folders=[runs_dir, other.parent], out_dir=tmp_path / "somewhere", scale="quick"
    )
    links = [value for _, name, value in read_page(page.parent).attributes if name == "href"]
    assert f"../published/a%20machine/{other.name}/summary.json" in links
    assert f"../results/runs/{run.name}/config.yaml" in links


def test_a_damaged_list_of_missing_data_is_an_error_of_one_line(tmp_path) -> None:
    (tmp_path / "unavailable.json").write_text("{", "utf-8")
    with pytest.raises(DataError, match=r"unavailable\.json: not JSON"):
        load_unavailable(tmp_path / "unavailable.json")
