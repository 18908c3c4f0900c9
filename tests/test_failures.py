"""What goes wrong in one run stays there, and is told in one line."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from crope import execute as execute_module
from crope import record, trainer, workers
from crope.compose import Run
from crope.config import ROOT
from crope.data.token_files import TokenSet
from crope.errors import StorageError
from crope.execute import execute, is_done, record_death
from crope.interrupt import Unstoppable
from crope.workers import execute_all
from tests.faults import first_difference
from tests.test_trainer import toy_run

FULL = OSError(errno.ENOSPC, "No space left on device")


def summary(run: Run) -> dict:
    return json.loads((run.path / "summary.json").read_text())


def test_a_failing_run_stops_no_other(toy_data: TokenSet, tmp_path: Path, monkeypatch) -> None:
    runs = [toy_run(tmp_path, f"seed={seed}") for seed in range(3)]
    alone = toy_run(tmp_path / "alone", "seed=2")
    execute(alone, stop=Unstoppable())
    real = trainer.train_step

    def broken(*args, config, step, **kwargs):
        if config.seed == 1 and step == 7:
            raise RuntimeError("a fault\nof two lines")
        return real(*args, config=config, step=step, **kwargs)

    monkeypatch.setattr(trainer, "train_step", broken)
    outcomes = list(execute_all(runs, workers=1))
    assert [outcome.status for outcome in outcomes] == ["complete", "failed", "complete"]
    assert outcomes[1].text == f"{runs[1].run_id}: failed: a fault of two lines"
    error = summary(runs[1])["error"]
    assert (error["type"], error["message"]) == ("RuntimeError", "a fault of two lines")
    assert "in broken" in error["traceback"] and summary(runs[1])["finished_utc"]
    assert first_difference(alone.path, runs[2].path) == "", "the run after a failure has its own bits"


def test_out_of_gpu_memory_names_the_batch_size_and_what_to_do(toy_data, tmp_path, monkeypatch) -> None:
    def starved(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.65 GiB")

    monkeypatch.setattr(trainer, "train_step", starved)
    run = toy_run(tmp_path)
    assert execute(run, stop=Unstoppable()).text == (
        f"{run.run_id}: failed: out of GPU memory at train.batch_size=2, train.seq_len=16; end what else uses the GPU, "
        "or take a smaller ablation.batch_size (another experiment: its losses do not compare)"
    )
    assert "Tried to allocate" in summary(run)["error"]["traceback"]


def test_out_of_memory_for_real(toy_data: TokenSet, tmp_path: Path) -> None:
    """A batch of 2^40 sequences is more than any machine holds."""
    outcome = execute(toy_run(tmp_path, f"train.batch_size={2**40}"), stop=Unstoppable())
    said = (
        f"failed: out of memory at train.batch_size={2**40}, train.seq_len=16; end what else uses the machine, or take"
    )
    assert said in outcome.text


@pytest.mark.parametrize("where", ["checkpoint", "metrics", "summary"])
def test_a_full_disk_ends_a_sweep_in_one_line_and_loses_nothing(where, toy_data, tmp_path, monkeypatch) -> None:
    runs = [toy_run(tmp_path, f"seed={seed}") for seed in range(3)]
    whole = [toy_run(tmp_path / "whole", f"seed={seed}") for seed in range(3)]
    for run in whole:
        execute(run, stop=Unstoppable())
    assert [outcome.status for outcome in execute_all(runs[:1], workers=1)] == ["complete"]
    before = {path.name: path.read_bytes() for path in runs[0].path.iterdir()}
    real_write, real_append = record.write_bytes, record.MetricsWriter.write

    def write(path: Path, data: bytes) -> None:
        if path.name.startswith(where):
            raise FULL
        real_write(path, data)

    def append(self, row):
        if where == "metrics" and row["step"] == 9:
            raise FULL
        real_append(self, row)

    with monkeypatch.context() as full:
        full.setattr(record, "write_bytes", write)
        full.setattr("crope.checkpoint.write_bytes", write)
        full.setattr(record.MetricsWriter, "write", append)
        with pytest.raises(StorageError) as error:
            list(execute_all(runs, workers=1))
    assert str(error.value) == (
        f"{runs[1].path}: No space left on device; make room or permission there, or name another results_dir; "
        "complete runs stay complete (1 runs not begun or not finished)"
    )
    assert {path.name: path.read_bytes() for path in runs[0].path.iterdir()} == before
    assert [outcome.status for outcome in execute_all(runs, workers=1)] == ["skipped", "complete", "complete"]
    assert [first_difference(a.path, b.path) for a, b in zip(whole, runs, strict=True)] == ["", "", ""]


def test_a_folder_without_write_permission(toy_data, tmp_path, monkeypatch) -> None:
    run = toy_run(tmp_path)
    denied = PermissionError(errno.EACCES, "Permission denied", str(run.path / ".lock"))
    monkeypatch.setattr(execute_module, "try_lock", lambda _: (_ for _ in ()).throw(denied))
    with pytest.raises(StorageError) as error:
        execute(run, stop=Unstoppable())
    assert str(error.value).startswith(f"{run.path}/.lock: Permission denied; make room or permission there, or name")


def test_a_file_where_the_results_should_go(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("mine")
    done = train("data=tiny", "scale=smoke", f"results_dir={tmp_path / 'results'}", cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines() == [
        f"error: {tmp_path / 'results'}: is a file where a folder should be; make room or permission there, or name "
        "another results_dir; complete runs stay complete"
    ]
    assert (tmp_path / "results").read_text() == "mine"


def test_a_working_folder_that_was_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = (
        f"cd {gone} && rmdir {gone} && {sys.executable} {ROOT}/scripts/train.py data=tiny scale=smoke tracker=none"
    )
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        "error: the working folder was removed; go to one that exists (cd) and type the command again"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        ("summary.json", lambda text: text[: len(text) // 2], "summary.json is cut short or damaged (Expecting"),
        ("summary.json", lambda text: text.replace('"final_nats": 5', '"final_nats": 4', 1), "summary.json"),
        ("metrics.jsonl", lambda text: text[:-5], "metrics.jsonl"),
    ],
)
def test_a_damaged_record_is_neither_believed_nor_overwritten(name, edit, said, toy_data, tmp_path) -> None:
    runs = [toy_run(tmp_path, f"seed={seed}") for seed in range(2)]
    execute(runs[0], stop=Unstoppable())
    path = runs[0].path / name
    text = path.read_text()
    path.write_text(edit(text))
    assert path.read_text() != text
    damaged = {file.name: file.read_bytes() for file in runs[0].path.iterdir()}
    outcomes = list(execute_all(runs, workers=1))
    assert [outcome.status for outcome in outcomes] == ["failed", "complete"]
    assert outcomes[0].text.startswith(f"{runs[0].run_id}: {runs[0].path}: {said}")
    assert outcomes[0].text.endswith("; remove the folder to make the run again")
    assert {file.name: file.read_bytes() for file in runs[0].path.iterdir()} == damaged


def test_a_killed_process_leaves_a_failed_summary_behind(toy_data: TokenSet, tmp_path: Path) -> None:
    """Written by the sweep for the process that could not, and only where the run is not complete or taken."""
    run = toy_run(tmp_path)
    message = "its process was killed by signal 9 (out of memory?); the same command goes on from the last checkpoint"
    execute(run, stop=Unstoppable())
    record_death(run, message)
    assert is_done(run.path)
    (run.path / "summary.json").unlink()
    record_death(run, message)
    assert (summary(run)["status"], summary(run)["error"]["message"]) == ("failed", message)
    assert execute(run, stop=Unstoppable()).status == "complete"


def test_a_run_that_failed_elsewhere_in_this_sweep_is_not_tried_twice(toy_data, tmp_path, monkeypatch) -> None:
    run = toy_run(tmp_path)
    monkeypatch.setattr(trainer, "train_step", lambda *a, **k: 1 / 0)
    assert execute(run, stop=Unstoppable()).status == "failed"
    monkeypatch.undo()
    monkeypatch.setattr("crope.execute.load_tokens", lambda *_, **__: pytest.fail("tried again"))
    outcome = execute(run, stop=Unstoppable(), since=0.0)
    assert outcome.text == f"{run.run_id}: failed in another process: division by zero"


def test_a_fault_of_the_pipeline_itself_is_an_outcome_too(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(workers, "execute", lambda *a, **k: {}["absent"])
    run = toy_run(tmp_path)
    assert [outcome.text for outcome in execute_all([run], workers=1)] == [f"{run.run_id}: KeyError: 'absent'"]


def train(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/train.py"), *arguments, "tracker=none"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env={**os.environ}
    )
