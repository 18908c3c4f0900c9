"""`make reproduce` without data and without network, on `tiny`: both tables, reasons, and nothing trained twice."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crope.config import ROOT
from crope.study import study_axes


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    folder = tmp_path_factory.mktemp("reproduce")
    return folder, reproduce(folder), folder / "report"


def reproduce(folder: Path, *options: str) -> str:
    """A smoke reproduction where no text and no token file is at hand and the hub is off."""
    command = [sys.executable, "scripts/reproduce.py", "--scale", "smoke", "--results-dir", str(folder), "tracker=none"]
    command += options
    hidden = {
        "CROPE_DATA_DIR": str(folder / "no-text"),
        "CROPE_CACHE_DIR": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        command,
        capture_output=True, text=True, timeout=400, check=False, cwd=ROOT, env={**os.environ, **hidden},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cells(report: Path, table: str) -> list[dict[str, str]]:
    with (report / f"{table}.csv").open() as file:
        return list(csv.DictReader(file))


def test_tiny_is_there_and_the_papers_rows_are_missing(results: tuple[Path, str, Path]) -> None:
    folder, output, report = results
    assert output.startswith("scale smoke (as asked): 12 runs, 12 to train, about ")
    assert len(list((folder / "runs").iterdir())) == 12
    for table, tiny_cells in (("table1", 3), ("table2", 12)):
        status = {(row["dataset"] == "tiny", row["status"]) for row in cells(report, table)}
        assert status == {(True, "complete"), (False, "missing")}
        assert sum(row["dataset"] == "tiny" for row in cells(report, table)) == 2 * tiny_cells
    page = (report / "index.html").read_text()
    assert "HF_HUB_OFFLINE is set" in page and "CROPE_DATA_DIR" in page


def test_typed_again_nothing_trains(results: tuple[Path, str, Path]) -> None:
    folder, _, report = results
    before = {path: path.read_bytes() for path in [*folder.glob("runs/*/*"), *report.iterdir()]}
    output = reproduce(folder)
    assert "12 runs, 0 to train" in output
    assert {path: path.read_bytes() for path in before} == before


def test_only_what_changes_no_number_can_be_set(tmp_path: Path) -> None:
    from crope.errors import ConfigError
    from crope.reproduce import reproduce as run_reproduce

    with pytest.raises(ConfigError, match="only tracker and runtime can be set here"):
        run_reproduce(scale="smoke", why="", seeds=[0], results_dir=tmp_path, overrides=["train.lr=1"])
    with pytest.raises(ConfigError, match="SEEDS"):
        run_reproduce(scale="smoke", why="", seeds=[], results_dir=tmp_path)


def test_two_workers_and_one_give_the_same_losses(results: tuple[Path, str, Path]) -> None:
    """Runs were made by as many processes as there are cores, a thread each; here one again in this process."""
    import torch

    from crope.compose import load_run
    from crope.execute import execute
    from crope.interrupt import StopRequest
    from crope.record import read_metrics

    folder, _, _ = results
    made = load_run(["model=crope", "data=tiny", "scale=smoke", f"results_dir={folder}"])
    again = load_run(["model=crope", "data=tiny", "scale=smoke", f"results_dir={folder / 'alone'}", "tracker=none"])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    assert execute(again, stop=StopRequest()).status == "complete"
    torch.set_num_threads(before)
    keep = ("val/loss_nats", "train/loss_nats", "val_full/loss_nats")
    first, second = (read_metrics(run.path / "metrics.jsonl") for run in (made, again))
    assert [[row.get(key) for key in keep] for row in first] == [[row.get(key) for key in keep] for row in second]


def test_another_study_is_trained_and_length_is_measured_beyond_its_length(tmp_path: Path) -> None:
    reproduce(tmp_path, "--study", "length")
    runs = list((tmp_path / "runs").iterdir())
    assert {run.name.split("-")[0] for run in runs} == set(study_axes("length")["model"])
    assert all((run / "extrapolation.json").exists() for run in runs)


def test_a_run_without_weights_costs_no_other_its_measurement(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from crope import reproduce as module
    from crope.compose import load_run
    from crope.errors import UserError

    measured = []

    def extrapolate(path: Path) -> None:
        if "rope-" in path.name:
            raise UserError(f"{path.name}: no weights.pt")
        measured.append(path.name)

    monkeypatch.setattr(module, "_is_done", lambda run: True)
    monkeypatch.setattr("crope.extrapolate.extrapolate", extrapolate)
    runs = [load_run([f"model={model}", "data=tiny", "scale=smoke"]) for model in ("rope", "alibi")]
    assert module._extrapolate(runs) == [f"{runs[0].run_id}: no weights.pt"]
    assert measured == [runs[1].run_id]
    assert f"error: {runs[0].run_id}: no weights.pt" in capsys.readouterr().out
