"""Whatever goes wrong with wandb costs no run, and is told in one line when it happens and in one at the end."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from crope import tracking
from crope.config import ROOT
from crope.execute import execute
from crope.interrupt import StopRequest, Unstoppable
from crope.record import read_metrics
from crope.tracking import WandbTracker, build_tracker
from crope.verify import damage_of
from tests.wandb_server import history, inspect, isolate, offline_files, wandb_run, wandb_server, write_lines

NO_KEY = "No API key configured. Use `wandb login` to log in"


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path / "home")


@pytest.mark.parametrize("trouble", ["no key", "no network", "a key that is none", "500", "silence"])
def test_online_that_cannot_begin_falls_back_to_offline_files(trouble, toy_data, tmp_path, monkeypatch, capsys) -> None:
    run = wandb_run(tmp_path, "tracker.mode=online")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    with wandb_server(trouble if trouble in ("500", "silence") else "") as server:
        if trouble in ("500", "silence"):
            isolate(monkeypatch, tmp_path / "home", **server.environment(), WANDB_INIT_TIMEOUT="1")
        elif trouble != "no key":
            monkeypatch.setenv("WANDB_API_KEY", "k" * 40 if trouble == "no network" else "short")
        assert execute(run, stop=Unstoppable()).status == "complete"
        url = os.environ["WANDB_BASE_URL"]
    reason = {
        "no key": NO_KEY,
        "no network": f'Timed out while retrying: Post "{url}/graphql": dial tcp {url[7:]}: '
        "connect: connection refused",
        "a key that is none": "WANDB_API_KEY invalid: API key must have 40+ characters, has 5",
        "500": "Timed out while retrying: HTTP 500: {}",
        "silence": f"Timed out initializing run: POST {url}/graphql giving up after 1 attempt(s): "
        "context deadline exceeded",
    }[trouble]
    assert capsys.readouterr().err.splitlines() == [
        f"{run.run_id}: wandb: {reason}; offline files are written instead",
        f"{run.run_id}: not mirrored to wandb online from step 0 on: {reason}; "
        f"`python scripts/replay.py --mode online {run.path}` mirrors it later",
    ]
    assert damage_of(run.path) is None
    assert history(offline_files(tmp_path)[0]) == read_metrics(run.path / "metrics.jsonl")


@pytest.mark.parametrize("fault", ["uploads refused", "uploads unanswered"])
def test_uploads_that_fail_later(fault, toy_data, tmp_path, monkeypatch, capsys) -> None:
    """wandb returns from `finish` as if all were well where uploads are refused, and never where none is answered."""
    if fault == "uploads unanswered":
        monkeypatch.setattr(tracking, "FINISH_SECONDS", 4.0)
    run = wandb_run(tmp_path, "tracker.mode=online")
    with wandb_server(fault) as server:
        isolate(monkeypatch, tmp_path / "home", **server.environment())
        assert execute(run, stop=Unstoppable()).status == "complete"
        assert server.lines == {}
    reasons = {
        "uploads refused": "Fatal error while uploading data",
        "uploads unanswered": "wandb did not finish within 4 s",
    }
    assert capsys.readouterr().err.splitlines() == [
        f"{run.run_id}: not mirrored to wandb online from step 0 on: {reasons[fault]}; "
        f"`python scripts/replay.py --mode online {run.path}` mirrors it later"
    ]
    assert damage_of(run.path) is None


def test_a_folder_that_cannot_be_written(toy_data, tmp_path: Path, capsys) -> None:
    """wandb would turn to the system's temporary folder and say nothing."""
    (tmp_path / "wandb").write_text("a file of the user's")
    run = wandb_run(tmp_path)
    assert execute(run, stop=Unstoppable()).status == "complete"
    reason = f"[Errno 17] File exists: '{tmp_path}/wandb'"
    assert capsys.readouterr().err.splitlines() == [
        f"{run.run_id}: wandb: {reason}",
        f"{run.run_id}: not mirrored to wandb offline from step 0 on: {reason}; "
        f"`python scripts/replay.py {run.path}` mirrors it later",
    ]
    assert damage_of(run.path) is None
    assert (tmp_path / "wandb").read_text() == "a file of the user's"


def test_a_full_disk_that_wandb_does_not_speak_of(tmp_path: Path) -> None:
    """For real: results/wandb is a file system of 64 KiB. wandb itself ends with status 0 and not a word."""
    (tmp_path / "wandb").mkdir()
    mount = f"mount -t tmpfs -o size=64k none {tmp_path}/wandb"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False).returncode:
        pytest.skip("no small file system can be mounted here: unshare -rm is not allowed")
    code = (
        "from tests.wandb_server import *; from crope.tracking import build_tracker; "
        f"run = wandb_run(Path({str(tmp_path)!r})); tracker = build_tracker(run); "
        "write_lines(run, range(2000), tracker); tracker.finish({'status': 'complete'})"
    )
    copy = f"cat {tmp_path}/wandb/offline*/*.wandb > {tmp_path}/copy.wandb"
    command = f'{mount} && cd {ROOT} && {sys.executable} -c "$0" && {copy}'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command, code], capture_output=True, text=True, check=True, timeout=120
    )
    steps = [line["step"] for line in history(tmp_path / "copy.wandb")]
    assert steps == list(range(len(steps)))
    assert 0 < len(steps) < 2000
    run = wandb_run(tmp_path)
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"{run.run_id}: not mirrored to wandb offline from step {len(steps)} on: {tmp_path}/wandb/offline-run-"
    )
    assert line.endswith(f" is cut short; is the disk full?; `python scripts/replay.py {run.path}` mirrors it later")
    assert len(read_metrics(run.path / "metrics.jsonl")) == 2000


def test_a_killed_mirror_is_told_of(tmp_path: Path, capsys) -> None:
    run = wandb_run(tmp_path)
    tracker = WandbTracker(run, Unstoppable())
    write_lines(run, range(0, 20, 10), tracker)
    assert tracker.mirror.process is not None
    tracker.mirror.process.kill()
    tracker.mirror.process.wait()
    write_lines(run, range(20, 40, 10), tracker)
    tracker.finish({"status": "complete"})
    assert capsys.readouterr().err.splitlines() == [
        f"{run.run_id}: not mirrored to wandb offline from step 0 on: its process ended (exit status -9); "
        f"`python scripts/replay.py {run.path}` mirrors it later"
    ]


def test_a_killed_run_leaves_offline_files_behind(tmp_path: Path) -> None:
    """The record is not finished, but the curves up to there can be looked at."""
    code = (
        "import os, signal; from tests.wandb_server import *; from crope.tracking import build_tracker; "
        f"run = wandb_run(Path({str(tmp_path)!r})); tracker = build_tracker(run); write_lines(run, range(5), tracker); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    wait_until(lambda: offline_files(tmp_path) and inspect(offline_files(tmp_path)[0])[-1]["type"] == "exit")
    assert [line["step"] for line in history(offline_files(tmp_path)[0])] == [0, 1, 2, 3, 4]


def test_a_missing_key_is_not_asked_for_at_a_terminal(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.wandb_server import *; from crope.tracking import build_tracker; "
        f"run = wandb_run(Path({str(tmp_path)!r}), 'tracker.mode=online'); tracker = build_tracker(run); "
        "write_lines(run, range(3), tracker); tracker.finish({'status': 'complete'})"
    )
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-c", code]
        subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, check=True, timeout=60)
        os.close(theirs)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
    assert f"wandb: {NO_KEY}; offline files are written instead" in shown
    assert len(history(offline_files(tmp_path)[0])) == 3


def test_a_stop_is_not_held_up_and_nothing_is_left_running(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(tracking, "STOP_SECONDS", 0.5)
    run = wandb_run(tmp_path, "tracker.mode=online")
    with wandb_server("uploads unanswered") as server:
        isolate(monkeypatch, tmp_path / "home", **server.environment(), WANDB_NOTES=str(tmp_path))
        tracker = build_tracker(run, Unstoppable())
        write_lines(run, range(0, 30, 10), tracker)
        wait_until(lambda: run.run_id in server.runs)
        assert marked_processes(str(tmp_path))
        tracker.finish({"status": "stopped"})
        wait_until(lambda: not marked_processes(str(tmp_path)))
    assert capsys.readouterr().err.splitlines() == [
        f"{run.run_id}: not mirrored to wandb online from step 0 on: wandb did not finish within 0.5 s; "
        "the same command goes on with the run and mirrors it whole"
    ]


def test_a_request_to_stop_cuts_the_wait_at_the_end_of_a_complete_run_short(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(tracking, "STOP_SECONDS", 0.5)
    monkeypatch.setattr(tracking, "FINISH_SECONDS", 600.0)
    run = wandb_run(tmp_path, "tracker.mode=online")
    stop = StopRequest()
    with wandb_server("silence") as server:
        isolate(monkeypatch, tmp_path / "home", **server.environment(), WANDB_INIT_TIMEOUT="600")
        tracker = build_tracker(run, stop)
        write_lines(run, range(0, 30, 10), tracker)
        threading.Timer(0.5, lambda: setattr(stop, "signal_number", signal.SIGTERM)).start()
        tracker.finish({"status": "complete"})
    assert "online from step 0 on: wandb did not finish within 0.5 s; `python scripts/" in capsys.readouterr().err


def wait_until(condition: Any) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("not within 20 s")


def marked_processes(mark: str) -> list[str]:
    """Processes other than this one with `mark` in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes() and entry.name != str(os.getpid()):
                found.append((entry / "cmdline").read_text())
        except OSError:  # it has ended
            continue
    return found
