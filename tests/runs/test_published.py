"""Published sets: two files from which every run can be rebuilt."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from crope.config import ROOT
from crope.errors import DataError, InvalidRecord
from crope.runs.published import (
    add_runs,
    metrics_bytes,
    metrics_sha256,
    read_curves,
    read_set,
    set_folders,
)
from tests.report.records import CONFIG, record

RUN = "rope-ptb-base-s0-1"


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A set of one run."""
    add_runs(tmp_path / "one", [record(tmp_path / "runs")])
    return tmp_path / "one"


def test_a_run_is_rebuilt_with_the_bytes_of_its_metrics(one: Path, tmp_path: Path) -> None:
    (run,) = read_set(one)
    assert (run.run_id, run.config, run.provenance["commit"]) == (RUN, CONFIG, "c")
    assert run.summary["val_full"] == {"final_nats": 5.0}
    assert (
        metrics_bytes(read_curves(one)) == (tmp_path / "runs" / RUN / "metrics.jsonl").read_bytes()
    )


def test_another_run_joins_a_set(one: Path, tmp_path: Path) -> None:
    add_runs(one, [record(tmp_path / "more", "another")])
    assert [run.run_id for run in read_set(one)] == ["another", RUN]
    assert read_curves(one)["run_id"].value_counts().to_dict() == {"another": 3, RUN: 3}


def test_a_run_of_the_same_id_is_replaced(one: Path, tmp_path: Path) -> None:
    add_runs(one, [record(tmp_path / "again", loss=4.5)])
    (run,) = read_set(one)
    assert run.summary["val_full"] == {"final_nats": 4.5}
    assert len(read_curves(one)) == 3


def test_absolute_paths_are_left_out(tmp_path: Path) -> None:
    """The results folder lies in the repository, the data in the results folder."""
    folders = {"results_dir": f"{ROOT}/out", "data_dir": f"{ROOT}/out/text"}
    run = record(tmp_path / "runs")
    told = {"command": f"{ROOT}/scripts/train.py data_dir={ROOT}/out/text", "commit": "c"}
    add_runs(tmp_path / "set", [replace(run, config=CONFIG | folders, provenance=told)])
    (published,) = read_set(tmp_path / "set")
    assert published.provenance["command"] == "./scripts/train.py data_dir=data"
    assert published.config["results_dir"] == "results"
    assert str(ROOT) not in (tmp_path / "set/runs.jsonl").read_text()


def test_metrics_that_cannot_be_rebuilt_are_refused(tmp_path: Path) -> None:
    run = record(tmp_path / "runs", metrics_sha256="of other bytes")
    with pytest.raises(InvalidRecord, match=r"metrics\.jsonl"):
        add_runs(tmp_path / "set", [run])
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"run_id": "x"}', b"\xff"])
def test_a_damaged_line_is_named(one: Path, line: bytes) -> None:
    with (one / "runs.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(DataError, match=r"runs\.jsonl, line 2.*restore"):
        read_set(one)


def test_damaged_curves_are_named(one: Path) -> None:
    (one / "curves.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"curves\.parquet.*restore"):
        read_curves(one)


def test_what_was_measured_later_is_published_too(tmp_path: Path) -> None:
    run = record(tmp_path / "runs")
    lengths = [{"seq_len": 16, "loss_nats": 5.0}]
    measured = {"weights_sha256": "w", "lengths": lengths, "by_position": []}
    (run.path / "extrapolation.json").write_text(json.dumps(measured))
    add_runs(tmp_path / "set", [run])
    (published,) = read_set(tmp_path / "set")
    assert published.extrapolation == measured


@pytest.mark.parametrize("folder", set_folders(), ids=lambda folder: folder.name)
def test_every_published_run_has_the_metrics_that_its_summary_states(folder: Path) -> None:
    curves: dict[str, pd.DataFrame] = dict(list(read_curves(folder).groupby("run_id")))
    for run in read_set(folder):
        if run.summary["status"] == "complete":
            assert metrics_sha256(curves[run.run_id]) == run.summary["metrics_sha256"], run.run_id
