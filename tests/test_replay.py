"""Mirroring from the record alone: the same run as was mirrored live, once, and clear words where that cannot be."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crope.compose import Run
from crope.config import ROOT
from crope.execute import execute
from crope.interrupt import Unstoppable
from crope.lock import LOCK, locked
from crope.record import read_metrics
from crope.replay import replay
from tests.test_trainer import toy_run
from tests.wandb_server import history, inspect, isolate, offline_files, plain, wandb_server

PUBLISHED = next((ROOT / "results" / "published").glob("*/crope-ptb-base-s0-*"))


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path / "home")


@pytest.fixture
def untracked(toy_data, tmp_path: Path) -> Run:
    """A complete run of tracker=none."""
    run = toy_run(tmp_path)
    assert execute(run, stop=Unstoppable()).status == "complete"
    return run


def test_a_replayed_run_is_the_run_that_was_mirrored_live(toy_data, tmp_path: Path) -> None:
    live = toy_run(tmp_path / "live", "tracker=wandb")
    assert execute(live, stop=Unstoppable()).status == "complete"
    record = tmp_path / "later" / "runs" / live.run_id
    shutil.copytree(live.path, record)
    assert replay([live.run_id], results_dir=tmp_path / "later") == 0

    def facts(results_dir: Path) -> tuple[object, ...]:
        (file,) = offline_files(results_dir)
        records = inspect(file)
        started = next(record["run"] for record in records if record["type"] == "run")
        axes = [record["metric"] for record in records if record["type"] == "metric"]
        summary: dict[str, object] = {}
        for record in records:
            summary |= record.get("summary", {}).get("update", {})
        summary = {key: value for key, value in summary.items() if not key.startswith("_")}
        told = {key: started[key] for key in ("run_id", "display_name", "run_group", "job_type", "tags", "config")}
        told["commit"] = started["git"]["commit"]  # the clone's remote is told while a run trains, and not later
        return told, axes, history(file), summary, records[-1]["exit"]["exit_code"]

    assert facts(tmp_path / "later") == facts(tmp_path / "live")


def test_a_published_record_is_replayed_and_left_as_it_is(tmp_path: Path, capsys) -> None:
    before = {path.name: path.read_bytes() for path in PUBLISHED.iterdir()}
    shutil.copytree(PUBLISHED, tmp_path / "published" / "cpu" / PUBLISHED.name)
    assert replay([PUBLISHED.name], results_dir=tmp_path) == 0
    (file,) = offline_files(tmp_path)
    assert history(file) == read_metrics(PUBLISHED / "metrics.jsonl")
    assert capsys.readouterr().out == f"{PUBLISHED.name}: 81 lines mirrored offline, {file.parent}\n"
    copy = tmp_path / "published" / "cpu" / PUBLISHED.name
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_twice_is_once(untracked: Run, tmp_path: Path, capsys) -> None:
    for _ in range(2):
        assert replay([str(untracked.path)], results_dir=tmp_path) == 0
    (first,) = offline_files(tmp_path)
    assert f"{untracked.run_id}: mirrored already (offline, 7 lines, " in capsys.readouterr().out
    assert replay([untracked.run_id], results_dir=tmp_path, again=True) == 0
    (second,) = offline_files(tmp_path)
    assert history(second) == read_metrics(untracked.path / "metrics.jsonl")
    assert first != second
    shutil.rmtree(second.parent)  # as `wandb sync --clean` does
    assert replay([untracked.run_id], results_dir=tmp_path) == 0
    assert len(offline_files(tmp_path)) == 1


def test_a_record_that_is_made_anew_is_mirrored_anew(untracked: Run, toy_data, tmp_path: Path) -> None:
    replay([untracked.run_id], results_dir=tmp_path)
    (first,) = offline_files(tmp_path)
    shutil.rmtree(untracked.path)
    execute(untracked, stop=Unstoppable())  # its times differ
    assert replay([untracked.run_id], results_dir=tmp_path) == 0
    assert offline_files(tmp_path) != [first]


def test_online_twice_has_no_point_twice(untracked: Run, tmp_path: Path, monkeypatch, capsys) -> None:
    with wandb_server() as server:
        isolate(monkeypatch, tmp_path / "home", **server.environment())
        for again in (False, False, True):
            assert replay([untracked.run_id], results_dir=tmp_path, mode="online", again=again) == 0
        lines = server.lines[untracked.run_id]
        facts = server.runs[untracked.run_id]
    assert [plain(lines[number]) for number in range(len(lines))] == read_metrics(untracked.path / "metrics.jsonl")
    assert (facts["groupName"], facts["jobType"], facts["tags"]) == ("tiny", "crope", ["quick", "base"])
    said = [line.split(" lines")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == [f"{untracked.run_id}: {text}" for text in ("7", "mirrored already (online, 7", "7")]


def test_a_run_that_could_not_be_uploaded_is_uploaded_later(toy_data, tmp_path: Path, monkeypatch, capsys) -> None:
    """By the very command that the run named at its end."""
    run = toy_run(tmp_path, "tracker=wandb", "tracker.mode=online")
    execute(run, stop=Unstoppable())
    command = capsys.readouterr().err.split("`")[-2]
    assert command == f"python scripts/replay.py --mode online {run.path}"
    with wandb_server() as server:
        environment = {**os.environ, **server.environment()}
        done = subprocess.run(
            [sys.executable, *command.split()[1:]],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        lines = server.lines[run.run_id]
    assert (done.returncode, done.stderr) == (0, "")
    assert [plain(lines[number]) for number in range(len(lines))] == read_metrics(run.path / "metrics.jsonl")
    assert offline_files(tmp_path) == []  # what the server has now


def test_online_without_a_key(untracked: Run, tmp_path: Path, capsys) -> None:
    assert replay([untracked.run_id], results_dir=tmp_path, mode="online") == 1
    assert capsys.readouterr().err == (
        f"error: {untracked.run_id}: not mirrored to wandb online: No API key configured. Use `wandb login` to log in\n"
    )
    assert offline_files(tmp_path) == []


def test_online_that_never_answers(untracked: Run, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("crope.replay.REPLAY_SECONDS", 4.0)
    with wandb_server("uploads unanswered") as server:
        isolate(monkeypatch, tmp_path / "home", **server.environment())
        assert replay([untracked.run_id], results_dir=tmp_path, mode="online") == 1
    assert capsys.readouterr().err == (
        f"error: {untracked.run_id}: not mirrored to wandb online: wandb did not finish within 4 s\n"
    )


def edit(name: str, change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda path: (path / name).write_text(change((path / name).read_text()))


REMEDY = "take it from a copy, or remove the folder and train the run again"


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (
            lambda path: (path / "summary.json").unlink(),
            "no summary.json, the run is not finished; its training command goes on with it",
        ),
        (
            edit("metrics.jsonl", lambda text: text.replace('{"step": 3', '{"step" 3')),
            f"metrics.jsonl, line 2: not readable; {REMEDY}",
        ),
        (
            edit("metrics.jsonl", lambda text: text.replace("0.001", "0.002")),
            f"metrics.jsonl was edited or damaged: its sha256 is not metrics_sha256 of summary.json; {REMEDY}",
        ),
        (lambda path: (path / "config.yaml").unlink(), f"config.yaml is missing; {REMEDY}"),
    ],
)
def test_what_is_not_a_whole_record(harm, text, untracked: Run, tmp_path: Path, capsys) -> None:
    harm(untracked.path)
    assert replay([untracked.run_id], results_dir=tmp_path) == 1
    assert capsys.readouterr().err == f"error: {untracked.path}: {text}\n"
    assert not (tmp_path / "wandb").exists()


def test_a_run_that_failed_and_is_trained_again_right_now(untracked: Run, tmp_path: Path, capsys) -> None:
    """Its mirror writes files of its own, which a replay would take for superseded ones."""
    with locked(untracked.path / LOCK):
        assert replay([untracked.run_id], results_dir=tmp_path) == 1
        who = f"process {os.getpid()} on {socket.gethostname()}"
        assert capsys.readouterr().err == f"error: {untracked.path}: {who} trains it, and mirrors it\n"
    assert replay([untracked.run_id], results_dir=tmp_path) == 0


def test_a_name_that_is_none_stops_no_other(untracked: Run, tmp_path: Path, capsys) -> None:
    near = untracked.run_id.replace("tiny", "tin")
    assert replay([near, untracked.run_id], results_dir=tmp_path) == 1
    said = capsys.readouterr()
    assert said.err == (
        f"error: {near}: no such run in {tmp_path}/runs or {tmp_path}/published; did you mean {untracked.run_id}?\n"
    )
    assert said.out.startswith(f"{untracked.run_id}: 7 lines mirrored offline, ")


def test_a_name_that_is_published_twice(tmp_path: Path, capsys) -> None:
    folders = [tmp_path / "published" / machine / PUBLISHED.name for machine in ("cpu", "gpu")]
    for folder in folders:
        shutil.copytree(PUBLISHED, folder)
    assert replay([PUBLISHED.name], results_dir=tmp_path) == 1
    text = f"{PUBLISHED.name}: published more than once; name a folder, {folders[0]} or {folders[1]}"
    assert capsys.readouterr().err == f"error: {text}\n"


def test_the_script_on_a_run_of_tracker_none(untracked: Run, tmp_path: Path) -> None:
    command = [sys.executable, "scripts/replay.py", untracked.run_id, "--results-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    (file,) = offline_files(tmp_path)
    assert done.stdout == f"{untracked.run_id}: 7 lines mirrored offline, {file.parent}\n"
