"""The deep check: every number that does not follow from the others is found."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from crope.files import read_metrics
from crope.plan.identity import ADDED_LATER
from crope.records.store import read_set, set_folders
from crope.records.verify import verify_records
from tests.records.conftest import SET, edit, write_rows

# Runs of each set that are published and not stale; a set may grow.
PUBLISHED = """
cost-bf16 268
levels-bf16 36
linear-bf16 9
long-small-bf16 144
medium-bf16 16
medium-rate-bf16 64
medium-warmup-NVIDIA-H200-bf16 30
medium-warmup-bf16 42
paper-NVIDIA-H200-bf16 10
paper-rows-bf16 75
qkv-bf16 120
qkv-high-bf16 32
qkv-mid-bf16 60
quick-bf16 54
quick-fp32 489
quick-fp32-repeated 56
quick-fp32-two-threads 2
rate-mean-bf16 192
rates-bf16 24
rates-256-bf16 80
rates-64-bf16 128
rates-wide-bf16 240
table1-medium-NVIDIA-H200-bf16 48
table1-medium-bf16 9
tiny-bf16 3
tiny-fp32 3
width-256-bf16 64
width-64-bf16 64
"""


def test_every_published_record_is_there_and_valid_to_the_last_number():
    """And nothing in the project changes how what is published is read."""
    folders = {folder.name: folder for folder in set_folders()}
    for line in PUBLISHED.splitlines()[1:]:
        name, count = line.split()
        assert sum(run.status != "stale" for run in read_set(folders[name])) >= int(count), name
    assert verify_records(folders.values()) == []


def found(folder, word):
    """Whether the deep check names the record and the word in its only line."""
    (line,) = verify_records([folder.parent])
    return line.startswith(f"{folder}: ") and word in line and "\n" not in line


def edit_rows(folder, change):
    """Changes metrics.jsonl, and its SHA-256 in summary.json with it."""
    rows = read_metrics(folder / "metrics.jsonl")
    change(rows)
    edit(folder / "summary.json", "metrics_sha256", write_rows(folder, rows))


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("summary.json", "time.median_step_ms", 0.1),
        ("run.json", "seed", 5),
        ("run.json", "precision", "bf16"),
        ("run.json", "cell_key", "of another cell"),
    ],
)
def test_a_number_that_does_not_follow_is_named(file, key, value, folder):
    edit(folder / file, key, value)
    assert found(folder, f"{key} is {value}")


def test_what_an_earlier_version_did_not_derive_is_no_problem(folder):
    edit(folder / "summary.json", "val_full.best_step", None)
    assert verify_records([folder.parent]) == []


def test_keys_that_have_left_the_schema_are_no_problem(folder, monkeypatch):
    for section in ("model", "train", "eval"):
        monkeypatch.setitem(ADDED_LATER, section, {"old": 1, **ADDED_LATER.get(section, {})})
        edit(folder / "config.yaml", f"{section}.old", 1)
    assert verify_records([folder.parent]) == []


def scale_the_rates(rows):
    for row in rows:
        if "train/lr" in row:
            row["train/lr"] *= 1.2


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (scale_the_rates, "train/lr at step 0"),
        (lambda rows: rows.pop(8), "val/loss_nats is not at the steps"),
        (lambda rows: rows[1].update({"train_full/loss_nats": 5.0}), "train_full/loss_nats is not"),
        (lambda rows: rows.insert(5, dict(rows[5])), "repeated"),
        (
            lambda rows: rows[1].update({"val_full/loss_nats": 5.0}),
            "val_full/loss_nats is not at",
        ),
    ],
)
def test_rows_that_the_run_cannot_have_written(change, word, folder):
    edit_rows(folder, change)
    assert found(folder, word)


@pytest.mark.parametrize(
    ("loss", "key"),
    [
        ("val/loss_nats", "val_sampled.mean_nats"),
        ("val_full/loss_nats", "train_val_gap_nats"),
        ("train_full/loss_nats", "train_val_gap_nats"),
    ],
)
def test_a_changed_loss_of_a_published_curve_is_found(loss, key, tmp_path):
    """Each enters the summary at the last step."""
    copy = Path(shutil.copytree(SET, tmp_path / "set"))
    curves = pd.read_parquet(copy / "curves.parquet")
    last = curves[loss].last_valid_index()
    curves.loc[last, loss] += 1e-9
    curves.to_parquet(copy / "curves.parquet", index=False)
    (line,) = verify_records([copy])
    assert line.startswith(f"{copy / curves['run_id'][last]}: {key} is")
