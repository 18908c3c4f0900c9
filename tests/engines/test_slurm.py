"""hydra/launcher=submitit_slurm on a cluster of this machine: preempted, requeued, the same bits."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crope.lock import LOCK, holder
from tests.engines.conftest import needs
from tests.engines.slurm_cluster import cluster, missing
from tests.engines.study import Sweep, differences

pytestmark = [
    needs("hydra_submitit_launcher", "slurm"),
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())} (Debian: slurm-wlm munge)"),
]

RESOURCES = ("hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1", "train.precision=fp32")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


def job_of(run: Path) -> tuple[str, str]:
    """(submitit's name of the job that trains a run, SLURM's name of its step), from the process that has the lock."""
    process = re.match(r"process (\d+) on ", holder(run / LOCK))
    assert process
    entries = Path(f"/proc/{process[1]}/environ").read_text().split("\0")
    values = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    task = f"{values['SLURM_ARRAY_JOB_ID']}_{values['SLURM_ARRAY_TASK_ID']}" if "SLURM_ARRAY_JOB_ID" in values else ""
    return task or values["SLURM_JOB_ID"], f"{values['SLURM_JOB_ID']}.0"


def log_of(results: Path, job: str) -> str:
    (log,) = (results / ".submitit" / job).glob("*_log.out")
    return log.read_text()


def test_a_preempted_job_saves_is_requeued_and_ends_in_the_same_bits(slurm, whole: Path, tmp_path: Path) -> None:
    sweep = Sweep("submitit_slurm", tmp_path, *RESOURCES, environment=slurm)
    run = sweep.run_at_work()
    job, step = job_of(run)
    # The step, not the job: where a job is back in the queue before it answers, scancel signals the next attempt.
    told = subprocess.run(["scancel", "--signal=USR2", step], env=slurm, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    said = sweep.end()
    assert sweep.process.returncode == 0, said
    assert "3 of 3 runs are complete" in said
    log = log_of(tmp_path, job)
    saved = re.search(rf"{run.name} saved at step (\d+)", log)
    assert saved and f"Requeued job {job}" in log
    assert log.index(saved[0]) < log.index("Requeued job"), "saved first, then put back into the queue"
    provenance = json.loads((run / "provenance.json").read_text())
    assert len(provenance["resumed_from"]) == 1
    assert differences(whole, tmp_path) == []

    again = Sweep("submitit_slurm", tmp_path, *RESOURCES, environment=slurm)
    assert "3 of 3 runs are complete already" in again.end() and again.process.returncode == 0
    assert len(list((tmp_path / ".submitit").glob(f"{job.split('_')[0]}_*"))) == 3, "nothing was submitted again"


def test_a_failing_run_is_told_with_the_others_made_and_its_traceback_in_its_log(slurm, tmp_path: Path) -> None:
    sweep = Sweep("submitit_slurm", tmp_path, *RESOURCES, "model=crope", "train.lr=1e30,1e-3", environment=slurm)
    said = sweep.end()
    assert sweep.process.returncode == 1
    assert "1 of 2 runs failed:" in said and "not finite at step" in said and "Traceback" not in said
    logs = [path.read_text() for path in tmp_path.glob(".submitit/*/*_log.out")]
    assert ["NonFiniteLoss" in log and "Traceback" in log for log in logs].count(True) == 1


def test_a_sweep_that_is_stopped_leaves_its_jobs_to_slurm_and_the_same_command_waits_for_them(slurm, tmp_path) -> None:
    sweep = Sweep("submitit_slurm", tmp_path, *RESOURCES, "model=crope", environment=slurm)
    run = sweep.run_at_work()
    sweep.process.terminate()
    assert "the same command goes on from there" in sweep.end()
    assert sweep.process.returncode == 143
    again = Sweep("submitit_slurm", tmp_path, *RESOURCES, "model=crope", environment=slurm)
    said = again.end()
    assert again.process.returncode == 0 and "1 of 1 runs are complete" in said
    assert "resumed_from" not in json.loads((run / "provenance.json").read_text()), "made once, by the first job"
