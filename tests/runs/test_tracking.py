"""wandb: a finished run in its offline files, once; online, with a wandb that fails or hangs, at no
cost to the run.
"""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import wandb

from crope.errors import UserError
from crope.runs.compose import load_run
from crope.runs.record import read_record
from crope.runs.run import execute
from crope.runs.tracking import Tracker, upload
from tests.conftest import during_step, stop, toy_run

ONLINE = ("tracker=wandb", "tracker.mode=online")
WANDB = Path(sys.executable).with_name("wandb")


@pytest.fixture
def fake(monkeypatch):
    """In place of wandb; `init` returns `fake.run`."""
    module = MagicMock()
    module.run = module.init.return_value
    module.run.starting_step = 0
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr("crope.runs.tracking.INIT_SECONDS", -4.5)  # 0.5 s in all
    monkeypatch.setattr("crope.runs.tracking.FINISH_SECONDS", 0.5)
    return module


def steps(fake):
    return [call.kwargs["step"] for call in fake.run.log.call_args_list]


def facts(fake, run):
    """What wandb.init gets for a run."""
    run.path.mkdir(parents=True)
    (run.path / "metrics.jsonl").write_text('{"step": 0, "train/loss_nats": 1e3}\n')
    Tracker(run).log({"step": 0})
    return fake.init.call_args.kwargs


def test_a_continued_run_is_whole_and_once_in_the_offline_files(toy_data, tmp_path, monkeypatch):
    """By the real wandb, stopped before its last validation; read by wandb's own reader."""
    for key in list(os.environ):
        if key.startswith("WANDB_"):
            monkeypatch.delenv(key)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    run = toy_run(tmp_path, "tracker=wandb", "train.max_steps=6")
    with during_step(4, stop):
        assert execute(run).status == "stopped"
    assert execute(run).status == "complete"
    (file,) = tmp_path.glob(f"wandb/offline-run-*-{run.run_id}/*.wandb")
    command = [WANDB, "leet", "inspect", "--json", file]
    lines = []
    for line in subprocess.check_output(command, text=True, timeout=60).splitlines():
        record = json.loads(line)
        if record["type"] == "history":
            lines.append(record["history"]["item"])
    metrics = read_record(run.path).metrics()
    assert [line["_step"] for line in lines] == [row["step"] for row in metrics]
    loss = metrics[-1]["val_full/loss_nats"]
    assert lines[-1]["val_full/loss_nats"] == loss
    assert lines[-1]["val_full/perplexity"] == math.exp(loss)
    assert "step" not in lines[-1]  # it would be charted


def test_a_live_run_is_logged_by_step_and_grouped(fake, toy_data, tmp_path):
    run = toy_run(tmp_path, *ONLINE, "model=rope", "tracker.project=mine")
    assert execute(run).status == "complete"
    record = read_record(run.path)
    given = fake.init.call_args.kwargs
    assert steps(fake) == [row["step"] for row in record.metrics()]
    assert given == given | {
        "id": run.run_id,
        "job_type": "rope",
        "group": "quick tiny base",
        "tags": ["rope", "tiny", "base", "quick"],
        "project": "mine",
        "mode": "online",
        "resume": "allow",
    }
    fake.run.finish.assert_called_once_with(exit_code=0)
    fake.teardown.assert_called_once_with()
    (summary,) = fake.run.summary.update.call_args.args
    assert summary["val_full"] == record.summary["val_full"]


def test_a_runs_name_says_what_was_special_and_its_config_what_was_used(fake, tmp_path):
    row = ("model=rope", "data=ptb", "ablation=b2_l512_g09_s1000", "train.lr=0.003")
    given = facts(fake, load_run([*row, f"results_dir={tmp_path}"]))
    assert given["name"] == "rope-ptb-b2_l512_g09_s1000-s0 train.lr=0.003"
    assert given["config"]["train"]["batch_size"] == 1
    assert given["config"]["names"]["row"] == "b2_l512_g09_s1000"
    assert "ablation" not in given["config"]
    assert fake.run.log.call_args.args[0]["train/perplexity"] == math.inf


def test_a_continued_run_logs_no_line_twice(fake, tmp_path):
    fake.run.starting_step = 5
    run = toy_run(tmp_path, *ONLINE)
    run.path.mkdir(parents=True)
    (run.path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 4}\n')
    tracker = Tracker(run)
    for step in (4, 5, 6):
        tracker.log({"step": step})
    assert steps(fake) == [5, 6]
    tracker.finish({"status": "stopped", "error": "of this machine"})
    fake.run.summary.update.assert_called_once_with({"status": "stopped"})
    fake.run.finish.assert_called_once_with(exit_code=1)


def test_the_offline_files_of_another_run_stay(fake, tmp_path):
    """Whose id ends in that of this run, as `my-rope` in `rope`."""
    run = toy_run(tmp_path, "tracker=wandb", "model=rope")
    start = f"{tmp_path}/wandb/offline-run-20250102_030405"
    earlier, other = Path(f"{start}-{run.run_id}"), Path(f"{start}-my-{run.run_id}")
    earlier.mkdir(parents=True)
    other.mkdir()
    facts(fake, run)
    assert not earlier.exists()
    assert other.exists()


def test_long_names_and_reserved_characters_are_what_wandb_takes(fake, tmp_path):
    run = replace(toy_run(tmp_path, *ONLINE), dataset="corpus" * 12, model="a:b#c")
    given = facts(fake, run)
    wandb.Settings(run_tags=given["tags"], run_id=given["id"])  # raises what `wandb.init` would
    other = facts(fake, replace(run, dataset="corpus" * 25))
    assert len(given["tags"][1]) == len(other["tags"][1]) == 64
    assert len(other["name"]) == len(other["group"]) == 128
    assert given["tags"][1] != other["tags"][1]


def hang(*_, **__):
    time.sleep(60)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("init", hang),
        ("run.log", RuntimeError("lost the service\nwith advice")),
        ("run.finish", hang),
    ],
)
def test_a_wandb_that_fails_or_hangs_costs_one_line(call, fault, fake, toy_data, tmp_path, capsys):
    fake.configure_mock(**{f"{call}.side_effect": fault})
    run = toy_run(tmp_path, *ONLINE)
    assert execute(run).status == "complete"
    (line,) = capsys.readouterr().err.splitlines()
    assert run.run_id in line
    assert "tools.py upload" in line


def test_a_value_that_wandb_refuses_is_named_without_advice(fake, tmp_path, capsys):
    with pytest.raises(ValueError) as refused:
        wandb.Settings(run_tags=["x" * 65])
    fake.init.side_effect = refused.value
    facts(fake, toy_run(tmp_path, *ONLINE))
    line = capsys.readouterr().err
    assert "run_tags: " in line
    assert "65 characters" in line
    assert "upload" not in line


def test_upload_sends_any_finished_record(fake, toy_data, tmp_path):
    run = toy_run(tmp_path)
    execute(run)
    upload(read_record(run.path), results_dir=tmp_path)
    given = fake.init.call_args.kwargs
    assert steps(fake) == [0, 3, 4, 6, 8, 9, 12]
    expected = {"id": run.run_id, "group": "quick tiny base", "mode": "online", "resume": None}
    assert given == given | expected
    fake.init.side_effect = RuntimeError("no such key")
    with pytest.raises(UserError, match="no such key"):
        upload(read_record(run.path), results_dir=tmp_path)


@pytest.mark.parametrize(
    "tracker",
    [
        ["tracker=none"],
        ["tracker=wandb", "tracker.mode=disabled"],
    ],
)
def test_without_a_tracker_wandb_is_not_imported(tracker, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would raise
    run = Tracker(toy_run(tmp_path, *tracker))
    run.log({"step": 0})
    run.finish({"status": "complete"})
    assert not (tmp_path / "wandb").exists()
