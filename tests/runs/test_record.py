"""Records: atomic files, resumable metrics, the summary's numbers, and records that are refused."""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from crope import files
from crope.errors import DataError, InvalidRecord, UserError
from crope.files import MetricsWriter, read_metrics, write_bytes, write_json
from crope.runs import record
from crope.runs.compose import load_run
from crope.runs.identity import run_hash
from crope.runs.record import PUBLISHED, derive, find_record, read_record, read_records, run_status
from tests.conftest import raises_one_line


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"status": "complete"})

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"status": "other"})
    assert path.read_text() == '{\n  "status": "complete"\n}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_an_error_of_a_write_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_json(tmp_path / "summary.json", {})
    assert caught.value.filename == str(tmp_path / "summary.json")


def test_a_file_is_flushed_before_and_after_it_is_named(tmp_path: Path, monkeypatch) -> None:
    order = []
    monkeypatch.setattr(files.os, "fsync", lambda fd: order.append("fsync"))
    monkeypatch.setattr(files.os, "replace", lambda a, b: order.append("replace"))
    write_bytes(tmp_path / "x", b"1")
    assert order == ["fsync", "replace", "fsync"]


def test_an_incomplete_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n{"step": 2, "val/lo')
    assert read_metrics(path) == [{"step": 0}, {"step": 1}]


def test_a_resumed_writer_replaces_the_lines_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as metrics:
        for step in range(4):
            metrics.write({"step": step, "x": 0.1 * step})
            if step == 1:
                kept = metrics.sync()
    with MetricsWriter(path, keep=kept) as metrics:
        assert metrics.sync() == path.stat().st_size == kept
        metrics.write({"step": 2, "x": 7.0})
        assert metrics.sync() == path.stat().st_size
    assert read_metrics(path) == [
        {"step": 0, "x": 0.0},
        {"step": 1, "x": 0.1},
        {"step": 2, "x": 7.0},
    ]


def test_no_line_holds_a_nan(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "m") as metrics, pytest.raises(ValueError, match="JSON"):
        metrics.write({"step": 0, "x": float("nan")})


ROWS = [
    {
        "step": 0,
        "val/loss_nats": 9.0,
        "train/loss_nats": 9.1,
        "time/step_ms": 900.0,
        "speed/tokens_per_s": 1.0,
    },
    {"step": 10, "val/loss_nats": 4.0, "time/step_ms": 10.0, "speed/tokens_per_s": 70.0},
    {"step": 15, "train/loss_nats": 0.5, "time/step_ms": 30.0, "speed/tokens_per_s": 40.0},
    {"step": 20, "val/loss_nats": 2.9, "val_full/loss_nats": 2.8, "val_full/tokens": 100},
    {"step": 35, "val/loss_nats": 3.9, "time/step_ms": 14.0, "speed/tokens_per_s": 50.0},
    {"step": 36, "val/loss_nats": 3.0},
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
VALIDATION = {"tokens": 101, "bytes": 404}


def derived(
    rows: list[dict[str, Any]], *, max_steps: int, validation: dict[str, int] = VALIDATION
) -> dict[str, Any]:
    """At 2 sequences of 16 tokens per step."""
    options = (f"train.max_steps={max_steps}", "train.batch_size=2", "train.seq_len=16")
    config = load_run(["train.precision=fp32", *options]).container
    return derive(config, rows, {"train": {"tokens": 1000}, "validation": validation})


def test_every_number_of_a_summary_by_hand() -> None:
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
        "val_nats_per_byte": pytest.approx(3.1 / 4, rel=1e-12),  # four bytes per token
        "time": {"median_step_ms": 14.0, "tokens_per_s": 50.0},  # medians without the first line
        "memory_peak_gib": None,
    }


def test_a_subset_is_not_the_whole_split_and_one_measurement_has_no_spread() -> None:
    found = derived(
        [ROWS[0], {**ROWS[-1], "step": 10}], max_steps=10, validation={"tokens": 102, "bytes": 404}
    )
    assert found["val_full"]["whole_split"] is False
    assert (found["val_sampled"]["n"], found["val_sampled"]["std_nats"]) == (1, None)
    assert found["time"]["median_step_ms"] == 900.0


@pytest.mark.parametrize("max_steps", [10, 30, 70, 230, 10_000])
def test_the_step_at_nine_tenths_is_in(max_steps: int) -> None:
    """With a measurement at every step: those from 0.9 max_steps on, whatever 0.9 is in binary."""
    rows = [{**ROWS[0], "step": step} for step in range(max_steps)]
    rows.append({**ROWS[-1], "step": max_steps})
    found = derived(rows, max_steps=max_steps)["val_sampled"]
    assert (found["first_step"], found["n"]) == (9 * max_steps // 10, max_steps // 10 + 1)


FIRST = min(path.parent for path in PUBLISHED.glob("*/*/summary.json"))


def test_every_published_record_is_valid_and_of_committed_code() -> None:
    records, invalid = zip(*map(read_records, sorted(PUBLISHED.glob("*/"))), strict=True)
    every = [one for of_machine in records for one in of_machine]
    assert every and not any(invalid)
    assert not any(
        one.provenance["dirty"] or Path(one.config["data_dir"]).is_absolute() for one in every
    )


def edit(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Changes one of a record's JSON or YAML files."""

    def apply(folder: Path) -> None:
        value = yaml.safe_load((folder / name).read_text())
        change(value)
        dump = json.dumps if name.endswith(".json") else yaml.safe_dump
        (folder / name).write_text(dump(value))

    return apply


def set_key(key: str, value: Any, summary: dict[str, Any]) -> None:
    *sections, last = key.split(".")
    for section in sections:
        summary = summary[section]
    assert summary[last] != value
    summary[last] = value


def edit_rows(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], None]:
    """Changes metrics.jsonl, and its SHA-256 in summary.json with it."""

    def apply(folder: Path) -> None:
        rows = read_metrics(folder / "metrics.jsonl")
        change(rows)
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / "metrics.jsonl").write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        edit("summary.json", lambda summary: summary.update(metrics_sha256=digest))(folder)

    return apply


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (
            lambda folder: (folder / "summary.json").write_text('{"status": "comp'),
            "read.*summary.json",
        ),
        (lambda folder: (folder / "provenance.json").unlink(), "read"),
        (lambda folder: (folder / "metrics.jsonl").write_text('{"step": 0}\n'), "SHA-256"),
        (edit("config.yaml", lambda c: c["train"].update(lr=0.5)), "config.yaml"),
        (edit("config.yaml", lambda c: c.update(seed=7)), "config.yaml"),
        (edit_rows(lambda rows: rows[-1].update({"val_full/loss_nats": 1.0})), "final_nats"),
        # Numbers that follow from the other files, and values of a wrong type.
        *(
            (edit("summary.json", partial(set_key, key, value)), key)
            for key, value in {
                "steps": 801,
                "train_tokens": 1,
                "train_passes": 0.5,
                "parameters.qkv": 1000,
                "val_full.best_nats": 1.0,
                "val_sampled.mean_nats": 1.0,
                "train.final_nats": 1.0,
                "time.median_step_ms": 0.1,
                "seed": 5,
                "precision": "bf16x",
                "device_kind": "cuda",
                "val_full.final_nats": 4.5,
                "status": "done",
                "parameters": None,
            }.items()
        ),
        (edit("provenance.json", lambda p: p["data"]["splits"].pop("train")), "train"),
        (edit("provenance.json", lambda p: p.update(dirty="no")), "dirty"),
        (lambda folder: (folder / "summary.json").write_text("[" * 100_000), "read"),
        # Rows that the run cannot have written.
        (edit_rows(lambda rows: rows.pop(8)), "steps"),
        (edit_rows(lambda rows: rows.insert(5, dict(rows[4]))), "steps"),
        (edit_rows(lambda rows: rows[2].update({"val/loss_nats": -5.0})), "positive"),
        (edit_rows(lambda rows: rows[2].update({"val/loss_nats": "5.0"})), "positive"),
        (edit_rows(lambda rows: rows[0].update({"train/lr": 0.01})), "train/lr"),
    ],
)
def test_an_invalid_record_is_named_in_one_line(
    spoil: Callable[[Path], object], word: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(FIRST, tmp_path / FIRST.name))
    spoil(folder)
    with raises_one_line(InvalidRecord, word):
        read_record(folder)
    valid, invalid = read_records(tmp_path)
    assert valid == [] and [error.path for error in invalid] == [folder]


def test_what_an_earlier_version_did_not_derive_is_added(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIRST, tmp_path / FIRST.name))
    for change in (lambda s: s.pop("parameters"), lambda s: s["val_full"].pop("best_step")):
        edit("summary.json", change)(folder)
    assert read_record(folder).summary == read_record(FIRST).summary


def test_a_copy_under_another_seed_is_refused_with_its_original(tmp_path: Path) -> None:
    """A record whose configuration, summary and folder were adjusted, but not its metrics."""
    original = Path(shutil.copytree(FIRST, tmp_path / "a" / FIRST.name))
    config = yaml.safe_load((original / "config.yaml").read_text()) | {"seed": 9}
    version = read_record(original).summary["numerics_version"]
    name = f"{FIRST.name.split('-s0-')[0]}-s9-{run_hash(config, version=version)}"
    for folder in (tmp_path / "a", tmp_path / "b"):
        copy = Path(shutil.copytree(FIRST, folder / name))
        edit("config.yaml", lambda c: c.update(seed=9))(copy)
        edit("summary.json", lambda s: s.update(seed=9, run_id=name))(copy)
        assert read_record(copy).summary["seed"] == 9
        valid, invalid = read_records(*{tmp_path / "a", folder})
        assert valid == [] and original in [error.path for error in invalid]
        assert all("same" in error.reason for error in invalid)
        shutil.rmtree(copy)
    shutil.copytree(FIRST, tmp_path / "b" / FIRST.name)  # the same record twice is no copy
    assert len(read_records(tmp_path / "a", tmp_path / "b")[0]) == 2


def test_a_folder_without_permission_is_no_valid_record(tmp_path: Path, monkeypatch) -> None:
    folder = Path(shutil.copytree(FIRST, tmp_path / FIRST.name))

    def refuse(path: Path) -> bool:
        if path.parent == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return True

    monkeypatch.setattr(Path, "exists", refuse)
    valid, invalid = read_records(tmp_path)
    assert valid == [] and [error.path for error in invalid] == [folder]


def test_a_renamed_record_is_invalid(tmp_path: Path) -> None:
    other = FIRST.name.replace("-s0-", "-s1-")
    with pytest.raises(InvalidRecord, match="folder"):
        read_record(Path(shutil.copytree(FIRST, tmp_path / other)))


def test_a_record_of_other_numerics_is_stale(monkeypatch) -> None:
    assert run_status(read_record(FIRST)) == "complete"
    monkeypatch.setattr(record, "numerics_version", lambda model: 99)
    assert run_status(read_record(FIRST)) == "stale"


def test_find_record_by_folder_id_and_unique_start(tmp_path: Path) -> None:
    own = Path(shutil.copytree(FIRST, tmp_path / "runs" / FIRST.name))
    for name in (str(own), FIRST.name, FIRST.name[:-3]):
        assert find_record(name, results_dir=tmp_path).path == own
    assert find_record(FIRST.name, results_dir=tmp_path / "none").path == FIRST
    for name in ("nothing", "crope-", "/nothing", "**", "[", f"*{FIRST.name[1:]}"):
        with pytest.raises(UserError, match=re.escape(name)):
            find_record(name, results_dir=tmp_path)
    (own / "summary.json").unlink()
    with pytest.raises(DataError, match="finished"):
        find_record(FIRST.name, results_dir=tmp_path)
