"""Published sets: two files that hold every run."""

import os
from dataclasses import replace

import pytest

from crope.config import ROOT
from crope.errors import DataError
from crope.records.store import add_runs, curve_rows, read_curves, read_set
from tests.report.records import CONFIG, METRICS, record

RUN, LATER = "rope-ptb-base-s0-1", {"lengths": []}


@pytest.fixture
def one(tmp_path):
    """A set of one run, which was measured later, too."""
    add_runs(tmp_path / "one", [replace(record(tmp_path / "runs"), extrapolation=LATER)])
    return tmp_path / "one"


def test_a_run_is_read_with_its_metrics(one, tmp_path):
    (run,) = read_set(one)
    original = record(tmp_path / "again")
    assert run == replace(original, folder=one, extrapolation=LATER)
    assert curve_rows(read_curves(one, [RUN])) == METRICS


def test_runs_join_a_set_or_replace_the_one_of_their_id(one, tmp_path):
    """With the curves of their own execution, which may have a metric that earlier runs lack."""
    again = record(tmp_path / "more", loss=4.5)
    (again.path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 7, "train/new": 1.0}\n')
    add_runs(one, [again, record(tmp_path / "more", "another")])
    first, second = read_set(one)
    assert (first.run_id, second.run_id) == ("another", RUN)
    assert second.summary["val_full"] == {"final_nats": 4.5}
    assert curve_rows(read_curves(one, ["another"])) == METRICS
    assert curve_rows(read_curves(one, [RUN])) == [{"step": 0}, {"step": 7, "train/new": 1.0}]


def test_absolute_paths_are_left_out(tmp_path):
    """The results folder lies in the repository, the data in the results folder."""
    folders = {"results_dir": f"{ROOT}/out", "data_dir": f"{ROOT}/out/text/"}
    config = CONFIG | folders | {"data": {"hub": {"path": "/home/me/text"}}}
    told = {"command": f"{ROOT}/scripts/train.py data_dir={ROOT}/out/text"}
    add_runs(tmp_path / "set", [replace(record(tmp_path), config=config, provenance=told)])
    (published,) = read_set(tmp_path / "set")
    assert published.provenance["command"] == "./scripts/train.py data_dir=data"
    assert published.config["results_dir"] == "results"
    assert published.config["data"]["hub"]["path"] == "local"


def test_a_path_is_left_out_only_where_one_begins(tmp_path):
    kept = "/database /data-2 /data.old owner/dataset https://host/data **/data/x"
    told = {"command": f"{kept} data_dir=/data/ '/data/x' /data"}
    config = CONFIG | {"data_dir": "/data"}
    add_runs(tmp_path / "set", [replace(record(tmp_path), config=config, provenance=told)])
    (published,) = read_set(tmp_path / "set")
    assert published.provenance["command"] == f"{kept} data_dir=data/ 'data/x' data"


def test_a_damaged_line_is_named(one):
    with (one / "runs.jsonl").open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(DataError, match=r"runs\.jsonl, line 2.*restore"):
        read_set(one)


def test_damaged_curves_are_named(one):
    (one / "curves.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"curves\.parquet.*restore"):
        read_curves(one, [RUN])


def test_an_interrupted_publication_names_no_run_without_its_curve(one, tmp_path, monkeypatch):
    """The process ends after the first of the two files, whichever that is."""
    real, written = os.replace, []

    def replace_once(old, new):
        if written:
            raise KeyboardInterrupt
        written.append(new)
        real(old, new)

    monkeypatch.setattr(os, "replace", replace_once)
    with pytest.raises(KeyboardInterrupt):
        add_runs(one, [record(tmp_path / "more", "another")])
    with_curve = set(read_curves(one, [RUN, "another"])["run_id"])
    assert {run.run_id for run in read_set(one)} <= with_curve
