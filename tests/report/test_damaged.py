"""A damaged run enters no number, hides no other, and is named wherever its cell is."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crope.config import ROOT
from crope.errors import DataError
from crope.report.frame import resolve_cells
from crope.report.published import publish, render_readme
from crope.verify import read_runs
from tests.report.page import read_page

ADVICE = "remove its directory and make the run again"
TORN = f"metrics.jsonl is cut short: it ends inside a line; {ADVICE}"
NAN = {"type": "NonFiniteLoss", "message": "loss is nan", "step": 17}


def tear(path: Path) -> Path:
    file = path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-10])
    return path


def retype(path: Path, key: str, value: object) -> Path:
    """A number or word typed into summary.json by hand."""
    summary = json.loads((path / "summary.json").read_text("utf-8"))
    (path / "summary.json").write_text(json.dumps(summary | {key: value}), "utf-8")
    return path


@pytest.fixture
def resolve(runs_dir, cells):
    def resolve(model: str, dataset: str = "ptb"):
        runs, damaged = read_runs(runs_dir)
        results = resolve_cells(runs, cells, unavailable={}, damaged=damaged)
        return next(found for found in results if (found.cell.model, found.cell.dataset) == (model, dataset))

    return resolve


def test_a_cell_whose_only_run_is_damaged_says_so(write_run, resolve) -> None:
    path = tear(write_run("crope", "ptb"))
    found = resolve("crope")
    assert (found.status, found.n, found.reason) == ("damaged", 0, f"{path.name} is damaged: {TORN}")
    assert resolve("rope").status == "missing"


def test_beside_complete_runs_it_is_noted_and_not_averaged(write_run, resolve) -> None:
    write_run("crope", "ptb", final=4.0)
    path = retype(write_run("crope", "ptb", seed=1, final=9.0), "train_val_gap_nats", 0.0)
    found = resolve("crope")
    assert (found.status, found.n, found.full.mean_nats) == ("complete", 1, 4.0)
    reason = "summary.json: train_val_gap_nats is 0.0, but 0.25 by metrics.jsonl; one was edited"
    assert found.notes == (f"{path.name} is damaged: {reason}; {ADVICE}",)


def test_beside_a_failed_run_both_are_named(write_run, resolve) -> None:
    failed, damaged = write_run("crope", "ptb", error=NAN), tear(write_run("crope", "ptb", seed=1))
    found = resolve("crope")
    texts = [f"{failed.name} failed: NonFiniteLoss: loss is nan (step 17)", f"{damaged.name} is damaged: {TORN}"]
    assert (found.status, found.reason) == ("failed", "; ".join(texts))


def test_it_is_placed_by_whatever_can_still_be_read(write_run, resolve) -> None:
    (tear(write_run("crope", "ptb", steps=200)) / "summary.json").write_text("{", "utf-8")
    assert resolve("crope").status == "missing"  # its config.yaml is whole, and of another cell
    (write_run("rope", "ptb", scale="paper") / "config.yaml").unlink()
    assert resolve("rope").status == "missing"  # its summary.json is whole, and of another scale
    unreadable = write_run("xpos", "ptb")
    for file in ("config.yaml", "summary.json"):
        (unreadable / file).write_text("{", "utf-8")
    assert resolve("xpos").status == "damaged"  # the directory's name is all there is
    copied = write_run("xpos", "wikitext2")
    copied.rename(copied.with_name("a copy"))
    assert resolve("xpos", "wikitext2").reason.startswith("a copy is damaged: summary.json is of the run 'xpos-wiki")


def test_page_and_files_name_it(write_run, build, no_pictures) -> None:
    write_run("rope", "ptb", final=4.0)
    assert "Damaged" not in read_page(build(name="sound")).text
    path = tear(write_run("crope", "ptb"))
    out_dir = build()
    page = read_page(out_dir)
    said = "Damaged runs This directory is not what the run wrote, and no number on this page is from there:"
    order = [f"{said} {path.name} {TORN}", "Verdicts The paper's claims", f"{path.name} is damaged: {TORN}"]
    places = [page.text.index(text) for text in order]
    assert places == sorted(places)
    text = (out_dir / "table1.md").read_text("utf-8")
    mark = re.search(r"\| full \| missing \[\d\] \| 4.0000 \| damaged \[(\d)\] \|", text)
    assert mark and f"- [{mark[1]}] {path.name} is damaged: {TORN}" in text.replace("\\_", "_")
    for name, key in (("table1.csv", "model"), ("runs.csv", "run_id")):
        rows = csv.DictReader(io.StringIO((out_dir / name).read_text("utf-8")))
        assert {row[key] for row in rows if row["status"] == "damaged"} == {"crope" if key == "model" else path.name}


def test_nothing_is_published_around_it(write_run, runs_dir, tmp_path) -> None:
    write_run("rope", "ptb")
    path = tear(write_run("crope", "ptb"))
    with pytest.raises(DataError) as caught:
        publish(runs_dir.parent, "here", scale="quick", published=tmp_path / "published")
    assert str(caught.value) == f"{path}: {TORN}"
    assert not (tmp_path / "published").exists()
    shutil.copytree(runs_dir, tmp_path / "published" / "here")
    with pytest.raises(DataError, match=rf"here/{path.name}: metrics.jsonl is cut short"):
        render_readme("", tmp_path / "published")


@pytest.fixture
def records(tmp_path) -> Path:
    """A results folder with the published records of one cell."""
    some = next((ROOT / "results" / "published").glob("*/crope-ptb-base-s0-*"))
    for path in some.parent.glob("crope-ptb-base-s*"):
        shutil.copytree(path, tmp_path / "runs" / path.name)
    return tmp_path


def report(results: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), "--results-dir", str(results)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_make_report_writes_its_files_says_one_line_and_exits_1(records) -> None:
    torn = tear(sorted((records / "runs").iterdir())[0])
    done = report(records)
    assert (done.returncode, done.stderr) == (1, f"damaged: {torn}: {TORN}\n")
    assert done.stdout.splitlines()[-1] == str(records / "report" / "index.html")
    sound = len(list((records / "runs").iterdir())) - 1
    with (records / "report" / "table1.csv").open() as file:
        counts = {(row["dataset"], row["model"]): row["n"] for row in csv.DictReader(file)}
    assert counts["ptb", "crope"] == str(sound)
    shutil.rmtree(torn)
    done = report(records)
    assert (done.returncode, done.stderr) == (0, "")


def test_make_report_refuses_two_texts_in_one_line(records) -> None:
    first, second, *_ = sorted((records / "runs").iterdir())
    facts = json.loads((second / "provenance.json").read_text("utf-8"))
    facts["data"]["splits"]["validation"]["sha256"] = "0" * 64
    (second / "provenance.json").write_text(json.dumps(facts), "utf-8")
    done = report(records)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: table1/base/ptb: runs of different data share no mean and no difference (")
    assert f"validation tokens 000000000000: {second.name}" in done.stderr and first.name in done.stderr
