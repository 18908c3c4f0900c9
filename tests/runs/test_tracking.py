"""wandb: a finished run in its offline files, once; online, with a wandb that fails or hangs, at no
cost to the run.
"""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import wandb

from crope.files import read_metrics
from crope.plan.compose import load_run
from crope.records.run_json import describe
from crope.records.store import read_record
from crope.runs.run import execute
from crope.runs.tracking import Tracker
from tests.conftest import begin, during_step, stop, toy_run

ONLINE = ("tracker=wandb", "tracker.mode=online")
WANDB = Path(sys.executable).with_name("wandb")


@pytest.fixture
def fake(monkeypatch):
    """In place of wandb; `init` returns `fake.run`."""
    module = MagicMock()
    module.run = module.init.return_value
    module.run.starting_step = 0
    monkeypatch.setitem(sys.modules, "wandb", module)
    module.run.dir = "wandb/offline-run-20250102_030405-abc/files"
    return module


def steps(fake):
    return [call.kwargs["step"] for call in fake.run.log.call_args_list]


def facts(fake, run):
    """What wandb.init gets for a run."""
    begin(run, '{"step": 0, "train/loss_nats": 1e3}\n')
    Tracker(run, describe(run, "cpu")).log({"step": 0})
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
    metrics = read_metrics(run.path / "metrics.jsonl")
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
    assert steps(fake) == [row["step"] for row in read_metrics(run.path / "metrics.jsonl")]
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
    row = ["model=rope", "data=ptb", "ablation=b2_l512_g09_s1000", "scale=quick", "train.lr=0.003"]
    given = facts(fake, load_run([*row, f"results_dir={tmp_path}"]))
    assert given["name"] == "rope-ptb-b2_l512_g09_s1000-s0 train.lr=0.003"
    assert given["config"]["train"]["batch_size"] == 1
    assert given["config"]["names"]["row"] == "b2_l512_g09_s1000"
    assert "ablation" not in given["config"]
    assert fake.run.log.call_args.args[0]["train/perplexity"] == math.inf


def test_a_continued_run_logs_no_line_twice(fake, tmp_path):
    fake.run.starting_step = 5
    run = toy_run(tmp_path, *ONLINE)
    begin(run, '{"step": 0}\n{"step": 4}\n')
    tracker = Tracker(run, describe(run, "cpu"))
    for step in (4, 5, 6):
        tracker.log({"step": step})
    assert steps(fake) == [5, 6]
    tracker.finish({"status": "stopped", "error": "of this machine"})
    fake.run.summary.update.assert_called_once_with({"status": "stopped"})
    fake.run.finish.assert_called_once_with(exit_code=1)


def test_long_names_and_reserved_characters_are_what_wandb_takes(fake, tmp_path):
    run = replace(toy_run(tmp_path, *ONLINE), dataset="corpus" * 25, model="a:b#c")
    given = facts(fake, run)
    wandb.Settings(run_tags=given["tags"], run_id=given["id"])  # raises what `wandb.init` would
    assert len(given["tags"][1]) == 64
    assert len(given["name"]) == len(given["group"]) == 128


def test_a_run_whose_folder_was_replaced_is_another_one(fake, tmp_path):
    run = toy_run(tmp_path, *ONLINE)
    (tmp_path / "replaced" / f"{run.run_id}.0").mkdir(parents=True)
    assert facts(fake, run)["id"] == f"{run.run_id}.1"


@pytest.mark.parametrize("call", ["init", "run.log", "run.finish"])
def test_a_wandb_that_fails_costs_one_line(call, fake, toy_data, tmp_path, capsys):
    fault = RuntimeError("lost the service\nwith advice")
    fake.configure_mock(**{f"{call}.side_effect": fault})
    run = toy_run(tmp_path, *ONLINE)
    assert execute(run).status == "complete"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{run.run_id}: not logged to wandb: lost the service with advice"


def test_the_waits_for_wandb_are_bounded(fake, tmp_path):
    facts(fake, toy_run(tmp_path, *ONLINE))
    settings = fake.Settings.call_args.kwargs
    assert (settings["init_timeout"], settings["finish_timeout"]) == (20, 30)


@pytest.mark.parametrize(
    "tracker",
    [
        ["tracker=none"],
        ["tracker=wandb", "tracker.mode=disabled"],
    ],
)
def test_without_a_tracker_wandb_is_not_imported(tracker, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would raise
    run = Tracker(toy_run(tmp_path, *tracker), {})
    run.log({"step": 0})
    run.finish({"status": "complete"})
    assert not (tmp_path / "wandb").exists()
