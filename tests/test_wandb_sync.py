"""Offline runs brought online, each once, against a service on the loopback; and the report of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from crope.compose import Run, load_run
from crope.config import ROOT
from crope.execute import execute
from crope.interrupt import Unstoppable
from crope.record import read_metrics
from crope.wandb_sync import offline_runs, sync
from tests.conftest import TOY_OVERRIDES
from tests.wandb_server import isolate, offline_files, plain, wandb_server

NO_EXTRA = pytest.mark.skipif(find_spec("wandb_workspaces") is None, reason="the extra wandb-report is not installed")


@pytest.fixture
def offline(toy_data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Two runs in offline files."""
    isolate(monkeypatch, tmp_path / "home")
    words = [*TOY_OVERRIDES, "tracker=wandb", f"results_dir={tmp_path}"]
    runs = [load_run([*words, f"seed={seed}"]) for seed in (0, 1)]
    for run in runs:
        assert execute(run, stop=Unstoppable()).status == "complete"
    assert offline_runs(tmp_path).keys() == {run.run_id for run in runs}
    return runs


def test_each_run_is_uploaded_once_and_whole(offline: list[Run], tmp_path: Path, monkeypatch, capsys) -> None:
    with wandb_server() as server:
        isolate(monkeypatch, tmp_path / "home", **server.environment())
        assert sync(tmp_path) == 0
        lines = {run_id: [plain(rows[n]) for n in range(len(rows))] for run_id, rows in server.lines.items()}
        server.runs.clear()
        assert sync(tmp_path) == 0
        assert server.runs == {}  # nobody was told of a run a second time
    assert lines == {run.run_id: read_metrics(run.path / "metrics.jsonl") for run in offline}
    assert offline_files(tmp_path) == []
    assert capsys.readouterr().out.splitlines()[-2:] == ["2 of 2 runs uploaded", "nothing to upload"]


def test_what_the_service_does_not_take_waits_for_the_next_time(offline, tmp_path: Path, capsys) -> None:
    assert sync(tmp_path) == 1  # no key
    said = capsys.readouterr()
    assert said.err.count("No API key configured") == 2
    assert said.err.endswith("stopped; 0 runs not tried, the same command goes on with them\n")
    assert said.out == "0 of 2 runs uploaded\n"
    assert len(offline_runs(tmp_path)) == 2


def test_without_a_record_or_synced_by_wandb_itself(offline: list[Run], tmp_path: Path, capsys) -> None:
    first, second = offline
    shutil.rmtree(first.path)
    folder = offline_runs(tmp_path)[second.run_id]
    (folder / f"run-{second.run_id}.wandb.synced").touch()
    assert offline_runs(tmp_path).keys() == {first.run_id}
    assert sync(tmp_path) == 1
    said = capsys.readouterr().err
    assert "no such run" in said and "`wandb sync " in said


@NO_EXTRA
def test_the_report_finds_the_runs_by_what_they_were_mirrored_with(offline, tmp_path: Path, monkeypatch) -> None:
    """Filters and groupings of the saved report, held against what the service was told of the runs."""
    with wandb_server() as server:
        isolate(monkeypatch, tmp_path / "home", **server.environment())
        command = [sys.executable, "scripts/wandb_report.py", "--scale", "quick", "--results-dir", str(tmp_path)]

        def save() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

        early = save()
        assert early.returncode == 1
        assert "not found" in early.stderr and "`make wandb-sync` uploads runs to crope first" in early.stderr
        assert sync(tmp_path) == 0
        done, again = save(), save()
        reports, told, lines = server.reports, list(server.runs.values()), server.lines
    assert done.returncode == 0, done.stderr
    assert "/tester/crope/reports/" in done.stdout and done.stdout == again.stdout
    assert [report["id"] for report in reports] == [None, "view1"]  # the second replaces the first
    grids = [block["metadata"] for block in json.loads(reports[0]["spec"])["blocks"] if block["type"] == "panel-grid"]
    table, *curves = grids
    assert [run_set["name"] for run_set in table["runSets"]] == ["PG-19", "Wikitext-2", "Penn Treebank"]
    facts = {"group": {run["groupName"] for run in told}, "tags": {tag for run in told for tag in run["tags"]}}
    assert facts == {"group": {"tiny"}, "tags": {"quick", "base"}}
    assert {run["jobType"] for run in told} == {"crope"}
    for grid, dataset in zip(curves, ("pg19", "wikitext2", "ptb"), strict=True):
        (run_set,) = grid["runSets"]
        assert filters(run_set) == [
            ("group", dataset), ("tags", ["quick"]), ("tags", ["base"]), ("state", "finished")
        ]  # fmt: skip
        assert run_set["grouping"] == [{"section": "run", "name": "jobType"}]
    logged = {key for rows in lines.values() for row in rows.values() for key in row}
    for grid in grids:
        for panel in grid["panelBankSectionConfig"]["panels"]:
            assert panel["config"]["groupBy"] == "jobType"
            assert {*panel["config"]["metrics"], panel["config"].get("xAxis", "step")} <= logged


def filters(run_set: dict[str, Any]) -> list[tuple[str, object]]:
    return [(each["key"]["name"], each["value"]) for each in run_set["filters"]["filters"]]


@pytest.mark.skipif(find_spec("wandb_workspaces") is not None, reason="the extra wandb-report is installed")
def test_without_the_extra_the_report_says_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/wandb_report.py", "--scale", "quick", "--results-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: pip install -e '.[wandb-report]'")
