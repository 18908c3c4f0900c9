"""`make report` from folders to files: which runs, the same bytes, what is printed, and what it may not import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crope.config import ROOT
from crope.errors import DataError
from crope.report import report_folder
from crope.report.sources import choose_source, load_published, load_unavailable
from tests.report.conftest import make_run
from tests.report.page import read_page

SCRIPT = """
import sys
from pathlib import Path
from crope.report import report_folder
report_folder(results_dir=Path(sys.argv[1]), out_dir=Path(sys.argv[2]), scale="quick")
print([name for name in ("torch", "wandb", "datasets") if name in sys.modules])
"""


def test_same_bytes_in_another_process_without_torch_or_wandb(whole_study, runs_dir) -> None:
    """Another hash seed, another time zone, a later moment: pictures, Parquet and page alike."""
    results, outputs = runs_dir.parent, []
    for name, seed, zone in (("one", "1", "UTC"), ("two", "2", "Asia/Tokyo")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
        command = [sys.executable, "-c", SCRIPT, results, results / name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout.splitlines()[-1] == "[]"
        outputs.append({path.name: path.read_bytes() for path in (results / name).iterdir()})
    assert {"index.html", "runs.parquet", "fig4.png", "forest.svg", "verdicts.tex"} <= outputs[0].keys()
    assert outputs[0].keys() == outputs[1].keys()
    assert [name for name in outputs[0] if outputs[0][name] != outputs[1][name]] == []


def test_picks_the_scale_and_prints_tables_and_verdicts(whole_study, runs_dir, capsys, no_pictures) -> None:
    page, damaged = report_folder(results_dir=runs_dir.parent)
    assert not damaged
    printed = capsys.readouterr().out
    assert page == runs_dir.parent / "report" / "index.html"
    assert "Table 1." in printed and "Table 2." in printed and "Scale: quick." in printed
    verdicts = printed.partition("Verdicts on the paper's claims (scale quick)\n")[2].splitlines()
    assert len(verdicts) == 12 + 2 and verdicts[-1] == str(page)
    assert all(line.startswith(("  supported ", "  cannot tell")) for line in verdicts[:12])


def test_a_fresh_clone_shows_the_committed_records_and_says_so(tmp_path, capsys, no_pictures) -> None:
    page, _ = report_folder(results_dir=tmp_path)
    first = capsys.readouterr().out.splitlines()[0]
    committed = next(found for scale in ("paper", "quick") if (found := load_published(scale)))
    assert first.startswith(f"no run in {tmp_path}/runs: these are the published records of {committed.machine};")
    text = read_page(page.parent).text
    assert "published records" in text and f"records of {committed.machine} that are committed with the code" in text
    assert "21 of 21 table cells complete" in text and "yours" not in text
    assert not (tmp_path / "runs").exists()


def test_own_runs_stand_beside_the_committed_ones_of_their_scale(tmp_path, capsys, no_pictures) -> None:
    committed = load_published("quick")
    for run in committed.runs:
        if run.path.name.startswith(("rope-ptb", "crope-ptb")):
            shutil.copytree(run.path, tmp_path / "runs" / run.path.name)
    page, _ = report_folder(results_dir=tmp_path)
    printed = capsys.readouterr().out
    assert "| published, full |" in printed and "| yours, full | missing" in printed
    assert f"Published runs of {committed.machine}, which the tables" in read_page(page.parent).text
    # Named themselves, they are reported as any runs are, and not beside themselves.
    report_folder(results_dir=tmp_path, folders=committed.folders, out_dir=tmp_path / "other")
    assert "published, full" not in capsys.readouterr().out


def test_which_runs_are_reported(tmp_path) -> None:
    def choose(**options):
        found = choose_source(results_dir=tmp_path, published=tmp_path / "published", **options)
        return found.scale, found.machine, len(found.runs)

    assert choose() == ("quick", "", 0)
    for machine, models in (("cpu", ["rope"]), ("gpu", ["rope", "crope"])):
        for model in models:
            make_run(tmp_path / "published" / machine, model, "ptb")
    assert choose() == ("quick", "gpu", 2)
    assert choose(scale="paper") == ("paper", "", 0)
    assert choose(folders=[tmp_path / "elsewhere"]) == ("quick", "", 0)
    make_run(tmp_path / "runs", "xpos", "ptb", scale="smoke")
    assert choose() == ("smoke", "", 1)
    assert choose(scale="quick") == ("quick", "gpu", 2)
    make_run(tmp_path / "runs", "xpos", "wikitext2", scale="paper")
    assert choose() == ("paper", "", 2)


def test_tables_and_studies_are_of_the_machine_that_has_most_of_each(tmp_path) -> None:
    for machine, models in (("cpu", ["xpos", "rope", "crope"]), ("gpu", ["rope", "lowrank", "alibi"])):
        for model in models:
            make_run(tmp_path / machine, model, "ptb")
    assert load_published("quick", tmp_path).machine == "cpu"
    assert load_published("quick", tmp_path, of_studies=True).machine == "gpu"
    assert load_published("paper", tmp_path, of_studies=True) is None


def test_a_folder_whose_only_run_cannot_be_read_is_not_passed_over(tmp_path) -> None:
    make_run(tmp_path / "published" / "gpu", "rope", "ptb")
    (make_run(tmp_path / "runs", "xpos", "ptb") / "summary.json").write_text("{", "utf-8")
    found = choose_source(results_dir=tmp_path, published=tmp_path / "published")
    assert (found.machine, len(found.damaged)) == ("", 1)


def test_script_without_runs_exits_0_and_says_what_to_do(tmp_path) -> None:
    (tmp_path / "unavailable.json").write_text('{"ptb": "not here"}', "utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), "--results-dir", str(tmp_path), "--scale", "smoke"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    first = done.stdout.splitlines()[0]
    assert first.startswith("no run of the smoke scale in ") and "make reproduce SCALE=smoke" in first
    assert "Penn Treebank: not here" in (tmp_path / "report" / "table1.md").read_text("utf-8")


def test_several_folders_are_linked_each_where_it_lies(write_run, runs_dir, tmp_path, no_pictures) -> None:
    run = write_run("rope", "ptb")
    other = write_run("crope", "ptb", folder=tmp_path / "published" / "a machine")
    page, _ = report_folder(
        results_dir=runs_dir.parent, folders=[runs_dir, other.parent], out_dir=tmp_path / "somewhere", scale="quick"
    )
    links = read_page(page.parent).links
    assert f"../published/a%20machine/{other.name}/summary.json" in links
    assert f"../results/runs/{run.name}/config.yaml" in links


def test_a_damaged_list_of_missing_data_is_an_error_of_one_line(tmp_path) -> None:
    (tmp_path / "unavailable.json").write_text("{", "utf-8")
    with pytest.raises(DataError, match=r"unavailable\.json: not JSON"):
        load_unavailable(tmp_path / "unavailable.json")


def test_what_is_not_made_any_more_does_not_stay_behind(write_run, build, runs_dir, no_pictures) -> None:
    for model in ("rope", "crope"):
        write_run(model, "ptb")
        write_run(model, "ptb", change={"eval": {"every": 10}})
    assert (build() / "choices.csv").exists()
    for path in Path(runs_dir).glob("crope-*"):
        shutil.rmtree(path)
    assert not (build() / "choices.csv").exists()
