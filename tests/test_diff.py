"""Two run directories written by hand: each difference, and nothing but the differences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from crope.config import ROOT
from crope.diff import curve_lines, differences, render_diff
from crope.errors import DataError, UserError
from crope.lookup import find_run
from crope.record import read_record

CONFIG = {"model": {"projection": "complex", "d_model": 128}, "train": {"lr": 0.001}, "seed": 0}
PROVENANCE = {
    "commit": "a" * 40, "dirty": False, "device": "a CPU", "packages": {"torch": "2.13.0"}, "started_utc": "early",
    "data": {"splits": {"train": {"sha256": "1" * 64}}},
}  # fmt: skip
CURVE = [
    {"step": 0, "val/loss_nats": 8.0, "train/loss_nats": 8.5, "time/step_ms": 40.0},
    {"step": 20, "val/loss_nats": 6.0, "train/loss_nats": 6.5, "time/step_ms": 41.0},
    {"step": 40, "val/loss_nats": 5.0, "val_full/loss_nats": 5.25},
]


def summary(final: float, best: float) -> dict[str, object]:
    return {
        "status": "complete", "numerics_version": 1, "steps": 40, "precision": "fp32", "device_kind": "cpu",
        "val_full": {"final_nats": final, "best_nats": best}, "val_sampled": {"mean_nats": 5.0},
        "parameters": {"total": 100},
    }  # fmt: skip


def write(path: Path, *, config=CONFIG, provenance=PROVENANCE, curve=CURVE, final=5.25, best=5.125, **changes) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    (path / "provenance.json").write_text(json.dumps(provenance), "utf-8")
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curve), "utf-8")
    (path / "summary.json").write_text(json.dumps(summary(final, best) | changes), "utf-8")
    return path


def diff(first: Path, second: Path) -> str:
    return render_diff(read_record(first), read_record(second))


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_run_does_not_differ_from_itself_whenever_it_was_made(tmp_path) -> None:
    first = write(tmp_path / "a")
    second = write(tmp_path / "b", provenance=PROVENANCE | {"started_utc": "late"})
    lines = squeezed(diff(first, second))
    assert [line for line in lines if line in ("configuration", "provenance", "run", "no difference")] == [
        "configuration", "no difference", "provenance", "no difference", "run", "no difference",
    ]  # fmt: skip
    assert "full, final 5.250000 5.250000 +0.000000" in lines
    assert "val/loss_nats: equal at 3 shared steps" in lines
    assert "val_full/loss_nats: equal at 1 shared step" in lines
    assert not [line for line in lines if line.startswith("time/")]


def test_each_difference_is_told_once(tmp_path) -> None:
    first = write(tmp_path / "a")
    second = write(
        tmp_path / "b",
        config={"model": {"projection": "real", "d_model": 128}, "train": {"lr": 0.002, "eps": 1e-8}, "seed": 0},
        provenance=PROVENANCE
        | {"commit": "b" * 40, "packages": {"torch": "2.11.0"}, "data": {"splits": {"train": {"sha256": "2" * 64}}}},
        curve=[CURVE[0], CURVE[1] | {"train/loss_nats": 6.5000001}, CURVE[2] | {"val_full/loss_nats": 5.5}],
        final=5.5,
        parameters={"total": 150},
    )
    lines = squeezed(diff(first, second))
    assert lines[0] == f"A {first}" and lines[1] == f"B {second}"
    assert lines[3:] == [
        "configuration A B", "model.projection complex real", "train.lr 0.001 0.002", "train.eps (absent) 1e-08", "",
        "provenance A B", f"commit {'a' * 12} {'b' * 12}", "packages.torch 2.13.0 2.11.0",
        f"data.splits.train.sha256 {'1' * 12} {'2' * 12}", "",
        "run A B", "parameters.total 100 150", "",
        "losses, nats per token A B B − A", "full, final 5.250000 5.500000 +0.250000",
        "full, best 5.125000 5.125000 +0.000000", "sampled, mean 5.000000 5.000000 +0.000000", "",
        "curves", "val/loss_nats: equal at 3 shared steps",
        "train/loss_nats: first differ at step 20: 6.5 and 6.5000001; 2 shared steps",
        "val_full/loss_nats: first differ at step 40: 5.25 and 5.5; 1 shared step",
    ]  # fmt: skip


def test_leaves_that_are_lists_empty_or_null() -> None:
    one, two = {"a": [1, 2], "b": {}, "c": None}, {"a": [1, 3], "b": {"d": 1}, "c": False}
    assert [(line.name, line.first, line.second) for line in differences(one, two)] == [
        ("a", "[1, 2]", "[1, 3]"), ("b", "{}", "(absent)"), ("c", "null", "false"), ("b.d", "(absent)", "1"),
    ]  # fmt: skip


def test_curves_of_other_steps_and_a_failed_run(tmp_path) -> None:
    first = write(tmp_path / "a")
    later = [{"step": 30, "val/loss_nats": 1.0}, {"step": 40, "val/loss_nats": 5.0, "train_full/loss_nats": 4.0}]
    second = write(tmp_path / "b", curve=later, status="failed", val_full=None)
    assert curve_lines(read_record(first), read_record(second)) == [
        "val/loss_nats: equal at 1 shared step (3 in A, 2 in B)",
        "train/loss_nats: no shared step (2 in A, 0 in B)",
        "val_full/loss_nats: no shared step (1 in A, 0 in B)",
        "train_full/loss_nats: no shared step (0 in A, 1 in B)",
    ]
    lines = squeezed(diff(first, second))
    assert "status complete failed" in lines and "full, final 5.250000 (absent)" in lines


def test_runs_are_found_by_path_id_or_start(tmp_path) -> None:
    results, published = tmp_path / "results", tmp_path / "published"
    mine = write(results / "runs" / "crope-ptb-base-s0-aaaa")
    write(published / "gpu" / "crope-ptb-base-s0-aaaa")
    theirs = write(published / "gpu" / "rope-ptb-base-s0-bbbb")
    find = {"results_dir": results, "published": published}
    assert find_run(str(theirs), **find).path == theirs
    assert find_run("crope-ptb-base-s0-aaaa", **find).path == mine  # the user's own first
    assert find_run("rope", **find).path == theirs
    write(results / "runs" / "crope-ptb-base-s1-cccc")
    with pytest.raises(UserError, match="2 runs start so: crope-ptb-base-s0-aaaa, crope-ptb-base-s1-cccc"):
        find_run("crope", **find)
    with pytest.raises(UserError, match=r"did you mean rope-ptb-base-s0-bbbb") as caught:
        find_run("rop-ptb-base-s0-bbbb", **find)
    assert "\n" not in str(caught.value)


def test_records_that_are_not_whole_are_one_line(tmp_path) -> None:
    path = write(tmp_path / "a")
    (path / "metrics.jsonl").write_text("{\n", "utf-8")
    with pytest.raises(DataError, match=r"metrics\.jsonl: cannot be read"):
        diff(path, path)
    (path / "provenance.json").write_text("{", "utf-8")
    with pytest.raises(DataError, match="cannot be read") as caught:
        find_run(str(path), results_dir=tmp_path)
    assert "\n" not in str(caught.value)
    (path / "summary.json").unlink()
    with pytest.raises(DataError, match="not finished"):
        find_run(str(path), results_dir=tmp_path)


def test_the_script_needs_no_torch(tmp_path) -> None:
    paths = [str(write(tmp_path / "a")), str(write(tmp_path / "b", final=6.0))]
    command = [sys.executable, "-X", "importtime", str(ROOT / "scripts" / "diff.py")]
    done = subprocess.run([*command, *paths], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "full, final 5.250000 6.000000 +0.750000" in squeezed(done.stdout)
    assert not [line for line in done.stderr.splitlines() if line.rsplit("|", 1)[-1].strip() in ("torch", "wandb")]
    failed = subprocess.run([*command[:1], *command[3:], "nowhere", paths[0]], capture_output=True, text=True, cwd=ROOT)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: run 'nowhere': no such directory") and failed.stderr.count("\n") == 1
