"""Records: the summary's numbers by hand, and records that are refused."""

import shutil
from pathlib import Path

import pytest
import yaml

from crope.errors import DataError, InvalidRecord, UserError
from crope.files import write_json
from crope.records.derive import derive
from crope.records.store import find_record, read_record
from tests.conftest import raises_one_line, toy_run
from tests.records.conftest import edit

ROWS = yaml.safe_load("""
- {step: 0, val/loss_nats: 9.0, time/step_ms: 900.0, speed/tokens_per_s: 1.0}
- {step: 10, val/loss_nats: 2.25, time/step_ms: 10.0, speed/tokens_per_s: 70.0}
- {step: 20, val_full/loss_nats: 2.5, time/step_ms: 30.0, speed/tokens_per_s: 40.0,
   memory/peak_gib: 2.5}
- {step: 35, val/loss_nats: 5.0, time/step_ms: 14.0, speed/tokens_per_s: 50.0}
- {step: 36, val/loss_nats: 3.0, memory/peak_gib: 1.5}
- {step: 38, val/loss_nats: 3.6875}
- {step: 40, val/loss_nats: 3.8125, val_full/loss_nats: 3.25, val_full/tokens: 100,
   train_full/loss_nats: 2.75, train_full/tokens: 96}
""")


def derived(rows, *, tokens=101):
    """40 steps of 2 sequences of 16 tokens; four bytes per token of the validation split."""
    config = toy_run("results", "train.max_steps=40").container
    validation = {"tokens": tokens, "bytes": 4 * tokens}
    return derive(config, rows, {"train": {"tokens": 1000}, "validation": validation})


def test_every_number_of_a_summary_by_hand():
    """The last 10 % of 40 steps are 36 to 40: 3, 3 + 11/16 and 3 + 13/16, with the mean 3 + 8/16
    and, in units of 1/16, the variance (8^2 + 3^2 + 5^2) / 2 = 7^2.
    """
    found = derived(ROWS)
    assert found == {
        "steps": 40,
        "train_tokens": 1280,
        "train_passes": 1.28,
        "val_sampled": {
            "mean_nats": 3.5,
            "std_nats": 7 / 16,
            "n": 3,
            "first_step": 36,
            "last_step": 40,
            "best_nats": 2.25,
            "best_step": 10,
        },
        "val_full": {
            "final_nats": 3.25,
            "best_nats": 2.5,
            "best_step": 20,
            "tokens": 100,
            "whole_split": True,
        },
        "train": {"final_nats": 2.75, "tokens": 96},
        "train_val_gap_nats": 0.5,
        "val_nats_per_byte": 3.25 / 4,
        "time": {"median_step_ms": 14.0, "tokens_per_s": 50.0},  # without the first line
        "memory_peak_gib": 2.5,
    }


def test_a_subset_is_not_the_whole_split():
    assert derived(ROWS, tokens=102)["val_full"]["whole_split"] is False


def test_one_measurement_has_no_spread():
    found = derived([ROWS[0], ROWS[-1]])
    assert found["val_sampled"]["std_nats"] is None
    assert found["time"]["median_step_ms"] == 900.0


def test_without_a_clock_there_is_no_step_time():
    assert derived([ROWS[-1]])["time"] == {"median_step_ms": None, "tokens_per_s": None}


def refused(folder, word):
    with raises_one_line(InvalidRecord, word):
        read_record(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", '{"status": "comp'),
        ("config.yaml", "model: {"),
        ("metrics.jsonl", '{"step": 0}\n'),
    ],
)
def test_a_damaged_file_is_named(name, content, folder):
    (folder / name).write_text(content)
    refused(folder, f"{name}.*; move the folder")


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "metrics.jsonl"])
def test_a_missing_file_is_named(name, folder):
    (folder / name).unlink()
    refused(folder, name)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("summary.json", "status", "failed"),  # without an error
        ("run.json", "seed", -1),
        ("provenance.json", "dirty", "no"),
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
        ("run.json", "numerics_version", 99),
        ("run.json", "model", "rope"),
    ],
)
def test_a_record_that_names_another_run_is_refused(name, key, value, folder):
    edit(folder / name, key, value)
    refused(folder, "edited, or made by code")


def test_a_renamed_record_is_refused(folder):
    renamed = folder.with_name(folder.name.replace("-s0-", "-s1-"))
    refused(folder.rename(renamed), "edited, or made by code")


def test_what_follows_from_the_metrics_is_computed(folder):
    """Whatever summary.json has of it: another number, or none as in an earlier version."""
    before = read_record(folder).summary
    edit(folder / "summary.json", "val_full.final_nats", 1.0)
    edit(folder / "summary.json", "train_passes", None)
    assert read_record(folder).summary == before


@pytest.fixture
def own(folder, tmp_path):
    """The only run of the results folder tmp_path."""
    return Path(shutil.copytree(folder, tmp_path / "runs" / folder.name))


def test_a_record_is_found_by_folder_id_and_unique_start(own, tmp_path, monkeypatch):
    monkeypatch.chdir(own)
    for name in (str(own), ".", own.name, own.name[:-3]):
        assert find_record(name, results_dir=tmp_path).path == own


def test_a_name_of_no_run_or_of_several_is_refused(own, tmp_path):
    shutil.copytree(own, own.with_name(f"{own.name}-copy"))
    for name, error in (
        ("rope", "0 runs match"),
        ("crope-", f"2 runs match.*\n  {own.name}\n  {own.name}-copy"),
    ):
        with pytest.raises(UserError, match=error):
            find_record(name, results_dir=tmp_path)


def test_a_run_that_is_not_finished_is_refused(own, tmp_path):
    (own / "summary.json").unlink()
    with pytest.raises(DataError, match="not finished"):
        find_record(own.name, results_dir=tmp_path)


EXTRAPOLATION = {"weights_sha256": "w", "lengths": [{"seq_len": 16, "loss_nats": None}]}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"weights_sha256": "of another run"}, "other weights"),
        ({"lengths": [{"seq_len": 16, "loss_nats": -1.0}]}, "lengths.0.loss_nats"),
    ],
)
def test_an_extrapolation_that_is_not_the_runs_is_refused(change, word, folder):
    write_json(folder / "extrapolation.json", EXTRAPOLATION | change)
    with raises_one_line(InvalidRecord, f"{word}.*remove that file"):
        read_record(folder)


def test_code_in_a_configuration_is_not_executed(folder, tmp_path):
    call = f"!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [{tmp_path}/executed]]"
    (folder / "config.yaml").write_text(call)
    refused(folder, "config.yaml")
    assert not (tmp_path / "executed").exists()
