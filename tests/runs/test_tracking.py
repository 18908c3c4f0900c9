"""wandb: a finished run in its offline files, once; online, with a wandb that fails or hangs, at no
cost to the run.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crope.errors import UserError
from crope.runs import tracking
from crope.runs.record import PUBLISHED, Record, read_record
from crope.runs.run import execute
from crope.runs.tracking import Tracker, upload
from tests.conftest import toy_run

ONLINE = ("tracker=wandb", "tracker.mode=online")


class FakeWandb:
    """Records its calls; `init` or `finish` may raise or hang."""

    def __init__(self, fault: str = "", starting_step: int = 0) -> None:
        self.fault, self.starting_step = fault, starting_step
        self.lines: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.exit_code: int | None = None
        self.axes: dict[str, Any] = {}

    def Settings(self, **settings: Any) -> SimpleNamespace:
        return SimpleNamespace(**settings)

    def init(self, **facts: Any) -> "FakeWandb":
        self.facts = facts
        if self.fault == "init hangs":
            time.sleep(60)
        if self.fault == "init fails":
            raise RuntimeError("no such key\nwith advice")
        return self

    def define_metric(self, name: str, **options: Any) -> None:
        self.axes[name] = options.get("step_metric")

    def log(self, line: dict[str, Any], step: int) -> None:
        if self.fault == "log fails":
            raise RuntimeError("lost the service")
        self.lines.append(line)

    def finish(self, exit_code: int) -> None:
        if self.fault == "finish hangs":
            time.sleep(60)
        self.exit_code = exit_code

    def teardown(self) -> None:
        pass


@pytest.fixture
def no_wandb_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for key in [key for key in os.environ if key.startswith("WANDB_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")


def use(fake: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> "FakeWandb":
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(tracking, "INIT_SECONDS", -4.5)  # 0.5 s in all
    monkeypatch.setattr(tracking, "FINISH_SECONDS", 0.5)
    return fake


def finished_run(folder: Path) -> Record:
    """A copy of a published record as a run of `folder`."""
    source = next(PUBLISHED.glob("*/crope-ptb-base-s0-*"))
    shutil.copytree(source, folder / "runs" / source.name)
    return read_record(folder / "runs" / source.name)


def history(file: Path) -> list[dict[str, Any]]:
    """The lines of a .wandb file by wandb's own reader, without wandb's own keys."""
    command = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", file]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    records = [json.loads(line) for line in shown.splitlines() if line.strip()]
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    return [
        {key: value for key, value in item.items() if not key.startswith("_")} for item in items
    ]


@pytest.mark.usefixtures("toy_data", "no_wandb_settings")
def test_a_continued_run_is_whole_and_once_in_the_offline_files(
    monkeypatch, tmp_path: Path
) -> None:
    """Stopped before its last validation, then run to its end."""
    run = toy_run(tmp_path, "tracker=wandb", "train.max_steps=6")
    log = Tracker.log

    def log_and_stop(tracker: Tracker, line: dict[str, Any]) -> None:
        log(tracker, line)
        if line["step"] == 3:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "log", log_and_stop)
        assert execute(run).status == "stopped"
    assert execute(run).status == "complete"
    (file,) = tmp_path.glob(f"wandb/offline-run-*-{run.run_id}/*.wandb")
    metrics = read_record(run.path).metrics()
    lines = history(file)
    assert [
        {key: line[key] for key in row} for line, row in zip(lines, metrics, strict=True)
    ] == metrics
    assert lines[-1]["val_full/perplexity"] == math.exp(metrics[-1]["val_full/loss_nats"])


@pytest.mark.usefixtures("toy_data")
def test_a_live_run_is_named_grouped_and_drawn_over_its_steps(monkeypatch, tmp_path: Path) -> None:
    fake = use(FakeWandb(), monkeypatch)
    run = toy_run(tmp_path, *ONLINE, "model=rope")
    assert execute(run).status == "complete"
    metrics = read_record(run.path).metrics()
    assert [line["step"] for line in fake.lines] == [row["step"] for row in metrics]
    assert (fake.facts["id"], fake.facts["name"]) == (run.run_id, f"{run.run_id} quick")
    assert (fake.facts["group"], fake.facts["job_type"]) == ("quick tiny base", "rope")
    assert (fake.facts["mode"], fake.facts["resume"]) == ("online", "allow")
    assert fake.axes["*"] == "step"
    assert fake.exit_code == 0
    assert fake.summary["val_full"] == read_record(run.path).summary["val_full"]


def test_a_continued_run_logs_no_line_twice(monkeypatch, tmp_path: Path) -> None:
    fake = use(FakeWandb(starting_step=5), monkeypatch)
    run = toy_run(tmp_path, *ONLINE)
    run.path.mkdir(parents=True)
    (run.path / "metrics.jsonl").write_text("".join(f'{{"step": {n}}}\n' for n in range(5)))
    tracker = Tracker(run)
    for step in (4, 5, 6):
        tracker.log({"step": step})
    assert [line["step"] for line in fake.lines] == [5, 6]


@pytest.mark.usefixtures("toy_data")
@pytest.mark.parametrize("fault", ["init fails", "init hangs", "log fails", "finish hangs"])
def test_a_wandb_that_fails_costs_one_line(fault: str, monkeypatch, tmp_path: Path, capsys) -> None:
    use(FakeWandb(fault), monkeypatch)
    run = toy_run(tmp_path, *ONLINE)
    assert execute(run).status == "complete"
    (line,) = capsys.readouterr().err.splitlines()
    assert run.run_id in line and "tools.py upload" in line


def test_upload_sends_any_finished_record(monkeypatch, tmp_path: Path) -> None:
    fake, record = use(FakeWandb(), monkeypatch), finished_run(tmp_path)
    upload(record, results_dir=tmp_path)
    assert [line["step"] for line in fake.lines] == [row["step"] for row in record.metrics()]
    assert (fake.facts["mode"], fake.facts["resume"]) == ("online", None)
    assert fake.facts["group"] == "quick ptb base"
    use(FakeWandb("init fails"), monkeypatch)
    with pytest.raises(UserError, match="no such key"):
        upload(record, results_dir=tmp_path)


def test_without_a_tracker_wandb_is_not_imported(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would raise
    tracker = Tracker(toy_run(tmp_path))
    tracker.log({"step": 0})
    tracker.finish({"status": "complete"})
    offline = Tracker(toy_run(tmp_path, "tracker=wandb"))
    offline.finish({"status": "stopped"})
    assert not (tmp_path / "wandb").exists()
