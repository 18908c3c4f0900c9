"""wandb: what it is given, that nothing leaves the machine unasked, and that a resumed run is mirrored whole."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crope import tracking
from crope.config import ROOT
from crope.execute import execute
from crope.interrupt import Unstoppable
from crope.record import read_metrics
from crope.tracking import build_tracker
from tests.wandb_server import history, inspect, isolate, offline_files, plain, wandb_run, wandb_server, write_lines


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path / "home")


@contextmanager
def listening_proxy() -> Iterator[tuple[str, list[object]]]:
    """A loopback proxy that answers nobody and counts who calls."""
    calls: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                try:
                    connection, address = server.accept()
                except TimeoutError:
                    continue
                calls.append(address)
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", calls
        finally:
            over.set()
            thread.join()


def test_offline_files_hold_the_run_and_nothing_leaves(toy_data, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("WANDB_BASE_URL")
    run = wandb_run(tmp_path)
    with listening_proxy() as (proxy, calls):
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy)
        assert execute(run, stop=Unstoppable()).status == "complete"
        assert calls == []
        # wandb by itself sends error reports even then: the proxy would have seen traffic.
        code = (
            f"import wandb; run = wandb.init(mode='offline', dir={str(tmp_path)!r}, project='control'); "
            "run.define_metric('*', step_metric='step'); run.log({'step': 0, 'loss': 7.0}); run.finish()"
        )
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
        assert calls

    assert capsys.readouterr().err == ""
    (file,) = tmp_path.glob(f"wandb/offline-run-*/run-{run.run_id}.wandb")
    records = inspect(file)
    (started,) = [record["run"] for record in records if record["type"] == "run"]
    assert started["run_id"] == started["display_name"] == run.run_id
    assert (started["run_group"], started["job_type"], started["project"]) == ("tiny", "crope", "crope")
    assert started["tags"] == ["quick", "base"]
    assert started["config"]["update"]["train"]["lr"] == 0.001
    assert started["git"]["commit"] == json.loads((run.path / "provenance.json").read_text())["commit"]
    axes = [record["metric"] for record in records if record["type"] == "metric"]
    assert any(axis.get("glob_name") == "*" and axis.get("step_metric") == "step" for axis in axes)
    assert history(file) == read_metrics(run.path / "metrics.jsonl")
    assert records[-1]["exit"]["exit_code"] == 0


def test_wandb_is_imported_in_no_training_process(tmp_path: Path) -> None:
    code = (
        "import sys; from crope.compose import load_run; from crope.tracking import build_tracker; "
        f"tracker = build_tracker(load_run(['tracker='+sys.argv[1], 'results_dir={tmp_path}'])); "
        "tracker.finish({'status': 'complete'}); sys.exit('wandb' in sys.modules)"
    )
    for name in ("none", "wandb"):
        assert subprocess.run([sys.executable, "-c", code, name], check=False, cwd=ROOT).returncode == 0
        assert (tmp_path / "wandb").exists() == (name == "wandb")


def test_online_the_server_has_every_line_once(toy_data, tmp_path: Path, monkeypatch, capsys) -> None:
    run = wandb_run(tmp_path, "tracker.mode=online")
    with wandb_server() as server:
        isolate(monkeypatch, tmp_path / "home", **server.environment())
        assert execute(run, stop=Unstoppable()).status == "complete"
        assert (server.runs[run.run_id]["groupName"], server.runs[run.run_id]["jobType"]) == ("tiny", "crope")
        lines = server.lines[run.run_id]
    assert [plain(lines[number]) for number in range(len(lines))] == read_metrics(run.path / "metrics.jsonl")
    assert capsys.readouterr().err == ""


def test_a_resumed_run_ends_as_one_whole_folder(tmp_path: Path, monkeypatch, capsys) -> None:
    """The record is cut at the last checkpoint, here after step 20; a folder that was synced is left alone."""
    monkeypatch.setattr(tracking, "STOP_SECONDS", 30.0)  # stopped before wandb has begun
    run = wandb_run(tmp_path)
    metrics = run.path / "metrics.jsonl"
    other = tmp_path / "wandb" / f"offline-run-20260101_000000-x{run.run_id}"
    synced = tmp_path / "wandb" / f"offline-run-20260101_000000-{run.run_id}"
    for folder in (other, synced):
        folder.mkdir(parents=True)
    (synced / f"run-{run.run_id}.wandb.synced").touch()

    tracker = build_tracker(run)
    write_lines(run, range(0, 50, 10), tracker)
    tracker.finish({"status": "stopped"})
    (first,) = offline_files(tmp_path)
    assert [line["step"] for line in history(first)] == [0, 10, 20, 30, 40]

    tracker = build_tracker(run)
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]))
    write_lines(run, range(30, 80, 10), tracker)
    tracker.finish({"status": "complete"})
    (second,) = offline_files(tmp_path)
    assert history(second) == read_metrics(metrics)
    assert not first.parent.exists()
    assert other.exists()
    assert synced.exists()
    assert capsys.readouterr().err == ""
