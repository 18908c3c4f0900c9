"""hydra/launcher=joblib and submitit_local: the same bits, failures told, a killed process costs its own run alone."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.engines.conftest import needs
from tests.engines.study import Sweep, differences

joblib = needs("hydra_joblib_launcher", "joblib")
submitit = needs("hydra_submitit_launcher", "slurm")
ENGINES = [
    pytest.param(("joblib", "hydra.launcher.n_jobs=2"), marks=joblib),
    pytest.param(("submitit_local",), marks=submitit),
]


def holder_of(run: Path) -> int:
    match = re.match(r"process (\d+) on ", (run / ".lock").read_text())
    assert match
    return int(match[1])


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine[0])
def test_the_same_bits_and_nothing_is_made_twice(engine, whole: Path, tmp_path: Path) -> None:
    sweep = Sweep(engine[0], tmp_path, *engine[1:])
    said = sweep.end()
    assert sweep.process.returncode == 0, said
    assert "3 of 3 runs are complete" in said
    assert differences(whole, tmp_path) == []
    before = {path: path.read_bytes() for path in tmp_path.glob("runs/*/summary.json")}
    again = Sweep(engine[0], tmp_path, *engine[1:])
    assert "3 of 3 runs are complete already" in again.end() and again.process.returncode == 0
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine[0])
def test_failures_are_told_and_the_others_made(engine, tmp_path: Path) -> None:
    sweep = Sweep(engine[0], tmp_path, *engine[1:], "model=crope", "train.lr=1e30,1e-3", "train.max_steps=20")
    said = sweep.end()
    assert sweep.process.returncode == 1
    assert "1 of 2 runs failed:" in said and "not finite at step" in said
    statuses = [json.loads(path.read_text())["status"] for path in tmp_path.glob("runs/*/summary.json")]
    assert sorted(statuses) == ["complete", "failed"]


@joblib
def test_a_killed_worker_is_told_in_one_line_and_the_same_command_goes_on(whole: Path, tmp_path: Path) -> None:
    sweep = Sweep("joblib", tmp_path, "hydra.launcher.n_jobs=2")
    run = sweep.run_at_work()
    os.kill(holder_of(run), signal.SIGKILL)
    said = sweep.end()
    assert sweep.process.returncode == 1
    assert f"{run.name}: its process ended without a word" in said
    again = Sweep("joblib", tmp_path)
    assert again.end() and again.process.returncode == 0
    assert differences(whole, tmp_path) == []


@joblib
def test_one_at_a_time_joblib_trains_in_the_sweeps_own_process_and_stops_with_it(whole: Path, tmp_path: Path) -> None:
    sweep = Sweep("joblib", tmp_path)
    run = sweep.run_at_work()
    sweep.process.terminate()
    assert "stopped: saved at step" in sweep.end() and sweep.process.returncode == 143
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run.name], "no other run was begun"
    again = Sweep("joblib", tmp_path)
    assert again.end() and again.process.returncode == 0
    assert differences(whole, tmp_path) == []


@submitit
def test_asked_by_sigusr2_a_job_saves_goes_back_into_the_queue_and_ends_in_the_same_bits(whole, tmp_path) -> None:
    sweep = Sweep("submitit_local", tmp_path)
    run = sweep.run_at_work()
    os.kill(holder_of(run), signal.SIGUSR2)
    said = sweep.end()
    assert sweep.process.returncode == 0, said
    (log,) = [text for path in tmp_path.glob(".submitit/*/*_log.out") if "Requeued" in (text := path.read_text())]
    assert log.index(f"{run.name} saved at step") < log.index("Requeued job")
    assert len(json.loads((run / "provenance.json").read_text())["resumed_from"]) == 1
    assert differences(whole, tmp_path) == []
