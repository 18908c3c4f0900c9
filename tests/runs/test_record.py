"""Records: the summary's numbers by hand, and records that are refused."""

import math
import re
import shutil
from pathlib import Path

import pytest

from crope.config import PUBLISHED
from crope.errors import DataError, InvalidRecord, UserError
from crope.files import write_json
from crope.runs import record
from crope.runs.compose import load_run
from crope.runs.record import (
    derive,
    find_record,
    is_complete,
    read_record,
    read_records,
    run_status,
    with_extrapolation,
)
from tests.conftest import raises_one_line
from tests.runs.conftest import edit

ROWS = [
    {
        "step": 0,
        "val/loss_nats": 9.0,
        "train/loss_nats": 9.1,
        "time/step_ms": 900.0,
        "speed/tokens_per_s": 1.0,
    },
    {
        "step": 10,
        "val/loss_nats": 4.0,
        "time/step_ms": 10.0,
        "speed/tokens_per_s": 70.0,
    },
    {"step": 12, "memory/peak_gib": 2.5},
    {
        "step": 15,
        "train/loss_nats": 0.5,
        "time/step_ms": 30.0,
        "speed/tokens_per_s": 40.0,
    },
    {
        "step": 20,
        "val/loss_nats": 2.9,
        "val_full/loss_nats": 2.8,
        "val_full/tokens": 100,
    },
    {
        "step": 35,
        "val/loss_nats": 3.9,
        "time/step_ms": 14.0,
        "speed/tokens_per_s": 50.0,
    },
    {"step": 36, "val/loss_nats": 3.0, "memory/peak_gib": 1.5},
    {"step": 38, "val/loss_nats": 3.2},
    {
        "step": 40,
        "val/loss_nats": 3.7,
        "val_full/loss_nats": 3.1,
        "val_full/tokens": 100,
        "train_full/loss_nats": 2.6,
        "train_full/tokens": 96,
    },
]


def derived(rows, *, max_steps, tokens=101):
    """At 2 sequences of 16 tokens per step; four bytes per token of the validation split."""
    options = (
        f"train.max_steps={max_steps}",
        "train.batch_size=2",
        "train.seq_len=16",
    )
    config = load_run(["train.precision=fp32", *options]).container
    splits = {
        "train": {"tokens": 1000},
        "validation": {"tokens": tokens, "bytes": 4 * tokens},
    }
    return derive(config, rows, splits)


def test_every_number_of_a_summary_by_hand():
    """The last 10 % of 40 steps are 36 to 40: 3.0, 3.2, 3.7, mean 3.3, variance (0.09 + 0.01 +
    0.16) / 2 = 0.13.
    """
    found = derived(ROWS, max_steps=40)
    assert found.pop("parameters")["total"] > 0
    assert found == {
        "steps": 40,
        "train_tokens": 1280,
        "train_passes": 1.28,
        "val_sampled": {
            "mean_nats": pytest.approx(3.3, rel=1e-12),
            "std_nats": pytest.approx(math.sqrt(0.13), rel=1e-12),
            "n": 3,
            "first_step": 36,
            "last_step": 40,
            "best_nats": 2.9,
            "best_step": 20,
        },
        "val_full": {
            "final_nats": 3.1,
            "best_nats": 2.8,
            "best_step": 20,
            "tokens": 100,
            "whole_split": True,
        },
        "train": {"final_nats": 2.6, "tokens": 96},
        "train_val_gap_nats": pytest.approx(0.5, rel=1e-12),
        "val_nats_per_byte": pytest.approx(3.1 / 4, rel=1e-12),
        "time": {
            "median_step_ms": 14.0,
            "tokens_per_s": 50.0,
        },  # medians without the first line
        "memory_peak_gib": 2.5,
    }


def test_a_subset_is_not_the_whole_split():
    assert derived(ROWS, max_steps=40, tokens=102)["val_full"]["whole_split"] is False


def test_one_measurement_has_no_spread():
    found = derived([ROWS[0], ROWS[-1] | {"step": 10}], max_steps=10)
    assert found["val_sampled"]["n"] == 1
    assert found["val_sampled"]["std_nats"] is None
    assert found["time"]["median_step_ms"] == 900.0


def test_without_a_clock_there_is_no_step_time():
    found = derived([ROWS[-1]], max_steps=40)
    assert found["time"] == {"median_step_ms": None, "tokens_per_s": None}


@pytest.mark.parametrize(
    ("max_steps", "first", "count"),
    [(10, 9, 2), (70, 63, 8), (230, 207, 24)],
)
def test_the_step_at_nine_tenths_is_in(max_steps, first, count):
    """With a measurement at every step: those from 0.9 max_steps on, whatever 0.9 is in binary."""
    rows = [ROWS[0] | {"step": step} for step in range(max_steps)]
    rows.append(ROWS[-1] | {"step": max_steps})
    found = derived(rows, max_steps=max_steps)["val_sampled"]
    assert found["first_step"] == first
    assert found["n"] == count


def refused(folder, word):
    """The record is refused in one line, by itself and among others."""
    with raises_one_line(InvalidRecord, word):
        read_record(folder)
    valid, invalid = read_records(folder.parent)
    assert valid == [] and [error.path for error in invalid] == [folder]


def test_a_record_as_it_was_written_is_valid(folder):
    assert is_complete(folder)
    assert [one.path for one in read_records(folder.parent)[0]] == [folder]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", '{"status": "comp'),
        ("summary.json", "[]"),
        ("summary.json", "[" * 100_000),
        ("config.yaml", "model: {"),
        ("provenance.json", ""),
        ("metrics.jsonl", '{"step": 0}\n'),
    ],
)
def test_a_damaged_file_is_named(name, content, folder):
    (folder / name).write_text(content)
    refused(folder, f"{name}.*; remove the folder")


@pytest.mark.parametrize("name", ["config.yaml", "provenance.json", "metrics.jsonl"])
def test_a_missing_file_is_named(name, folder):
    (folder / name).unlink()
    refused(folder, name)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("summary.json", "status", "done"),
        ("summary.json", "status", "failed"),  # without an error
        ("summary.json", "metrics_sha256", None),
        ("summary.json", "seed", -1),
        ("provenance.json", "dirty", "no"),
        ("provenance.json", "data.splits.validation.tokens", 0),
        ("config.yaml", "data", "ptb"),
        ("config.yaml", "train", None),
    ],
)
def test_a_field_of_another_kind_is_named(name, key, value, folder):
    edit(folder / name, key, value)
    refused(folder, f"{name}: ")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("config.yaml", "train.lr", 0.5),
        ("config.yaml", "seed", 7),
        ("summary.json", "numerics_version", 99),
        ("summary.json", "model", "rope"),
        ("summary.json", "run_id", "crope-ptb-base-s0-00000000"),
    ],
)
def test_a_record_that_names_another_run_is_refused(name, key, value, folder):
    edit(folder / name, key, value)
    refused(folder, "by its name another")


def test_a_renamed_record_is_refused(folder):
    renamed = folder.with_name(folder.name.replace("-s0-", "-s1-"))
    refused(folder.rename(renamed), "by its name another")


def test_a_published_record_is_never_removed():
    error = str(InvalidRecord(PUBLISHED / "quick-bf16" / "crope", "is not valid"))
    assert "restore it with git" in error
    assert "remove" not in error


def test_what_follows_from_the_metrics_is_computed(folder):
    """Whatever summary.json has of it: another number, or none as in an earlier version."""
    before = read_record(folder).summary
    edit(folder / "summary.json", "val_full.final_nats", 1.0)
    edit(folder / "summary.json", "parameters", None)
    edit(folder / "summary.json", "val_sampled.best_step", None)
    assert read_record(folder).summary == before


def test_a_failing_disk_makes_no_record_invalid(folder, monkeypatch):
    """Nobody should remove the folder for it."""

    def read(path):
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(Path, "read_bytes", read)
    with pytest.raises(OSError, match="Input/output"):
        is_complete(folder)
    valid, (error,) = read_records(folder.parent)
    assert not valid and "mend the disk" in str(error) and "remove" not in str(error)


def test_a_folder_without_permission_is_among_the_invalid(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    valid, invalid = read_records(folder.parent)
    assert valid == [] and [error.path for error in invalid] == [folder]


def test_a_record_of_other_numerics_is_stale(folder, monkeypatch):
    assert run_status(read_record(folder)) == "complete"
    monkeypatch.setattr(record, "numerics_version", lambda model: 99)
    assert run_status(read_record(folder)) == "stale"


@pytest.fixture
def own(folder, tmp_path):
    """The only run of the results folder tmp_path."""
    return Path(shutil.copytree(folder, tmp_path / "runs" / folder.name))


def test_a_record_is_found_by_folder_id_and_unique_start(own, tmp_path):
    for name in (str(own), own.name, own.name[:-3], "crope"):
        assert find_record(name, results_dir=tmp_path).path == own


@pytest.mark.parametrize("name", ["nothing", "/nothing", "*rope", "["])
def test_a_name_of_no_run_is_named(name, own, tmp_path):
    with pytest.raises(UserError, match=re.escape(f"'{name}': 0 runs match")):
        find_record(name, results_dir=tmp_path)


def test_a_start_of_several_runs_is_refused_an_id_is_not(own, tmp_path):
    """Of a run and a copy beside it."""
    shutil.copytree(own, own.with_name(f"{own.name}-copy"))
    with pytest.raises(UserError, match="2 runs match"):
        find_record("crope-", results_dir=tmp_path)
    assert find_record(own.name, results_dir=tmp_path).path == own


def test_a_run_that_is_not_finished_is_refused(own, tmp_path):
    (own / "summary.json").unlink()
    with pytest.raises(DataError, match="not finished"):
        find_record(own.name, results_dir=tmp_path)


EXTRAPOLATION = {
    "weights_sha256": "d" * 64,
    "lengths": [
        {"seq_len": 16, "loss_nats": 5.25},
        {"seq_len": 32, "loss_nats": None},
    ],
}


def test_an_extrapolation_is_read_with_its_run(folder):
    record = read_record(folder)
    assert with_extrapolation(record).extrapolation is None
    edit(folder / "summary.json", "weights_sha256", "d" * 64)
    write_json(folder / "extrapolation.json", EXTRAPOLATION)
    assert with_extrapolation(read_record(folder)).extrapolation == EXTRAPOLATION


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (EXTRAPOLATION | {"weights_sha256": "e" * 64}, "other weights"),
        (
            EXTRAPOLATION | {"lengths": [{"seq_len": 16, "loss_nats": -1.0}]},
            "lengths.0.loss_nats",
        ),
        ([], "no keys"),
    ],
)
def test_an_extrapolation_that_is_not_the_runs_is_refused(content, word, folder):
    write_json(folder / "extrapolation.json", content)
    with raises_one_line(InvalidRecord, f"{word}.*tools.py extrapolate"):
        with_extrapolation(read_record(folder))
