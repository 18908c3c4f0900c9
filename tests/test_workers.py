"""Several processes, one results folder: shared work, killed workers, requests to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from crope.checkpoint import checkpoints
from crope.compose import Run, load_run
from crope.config import ROOT
from crope.execute import LOCK, is_done
from crope.interrupt import Stopped
from crope.lock import holder, locked
from crope.workers import execute_all, worker_count
from tests.conftest import TOY_OVERRIDES
from tests.faults import first_difference


def runs_in(folder: Path, *more: str, seeds: int = 3) -> list[Run]:
    options = [*TOY_OVERRIDES, f"results_dir={folder}", "train.max_steps=200", "eval.every=50", *more]
    return [load_run([*options, f"seed={seed}"]) for seed in range(seeds)]


def test_how_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As asked; else a core each by the threads of a run on a CPU, and one where a run has the GPU."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))

    def count(*more: str) -> int:
        return worker_count(load_run([*TOY_OVERRIDES, f"results_dir={tmp_path}", *more]))

    assert (count("runtime.jobs=3"), count(), count("runtime.threads=4")) == (3, 8, 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert (count("runtime.device=cuda", "train.precision=fp32"), count("runtime.jobs=2")) == (
        1,
        2,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Three runs made by two workers."""
    runs = runs_in(tmp_path_factory.mktemp("whole"))
    assert {outcome.status for outcome in execute_all(runs, workers=2)} == {"complete"}
    return runs


def equal(whole: list[Run], runs: list[Run]) -> bool:
    return [first_difference(one.path, other.path) for one, other in zip(whole, runs, strict=True)] == [""] * len(runs)


def worker_of(run: Run) -> int:
    """The process that trains a run, once it has written a checkpoint."""
    deadline = time.monotonic() + 60
    while not checkpoints(run.path) and time.monotonic() < deadline:
        time.sleep(0.01)
    match = re.match(r"process (\d+) on ", holder(run.path / LOCK))
    assert match
    return int(match[1])


def test_a_killed_worker_takes_its_run_and_no_other(whole: list[Run], tmp_path: Path) -> None:
    runs = runs_in(tmp_path)
    killer = threading.Thread(target=lambda: os.kill(worker_of(runs[0]), signal.SIGKILL))
    killer.start()
    outcomes = {outcome.run_id: outcome for outcome in execute_all(runs, workers=2)}
    killer.join()
    assert [outcomes[run.run_id].status for run in runs] == ["failed", "complete", "complete"]
    assert outcomes[runs[0].run_id].text == (
        f"{runs[0].run_id}: its process was killed by signal 9 (out of memory?); "
        "the same command goes on from the last checkpoint"
    )
    assert json.loads((runs[0].path / "summary.json").read_text())["error"]["type"] == "Killed"
    assert [outcome.status for outcome in execute_all(runs, workers=2)].count("complete") == 1
    assert equal(whole, runs)


@pytest.mark.parametrize("workers", [1, 2])
def test_asked_to_stop_runs_are_saved_and_the_same_command_goes_on(workers: int, whole, tmp_path: Path) -> None:
    runs = runs_in(tmp_path)

    def ask() -> None:
        worker_of(runs[0])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask).start()
    with pytest.raises(Stopped, match=rf"{runs[0].run_id} saved at step \d+; .*\d runs left") as stopped:
        list(execute_all(runs, workers=workers))
    assert stopped.value.signal_number == signal.SIGTERM
    assert checkpoints(runs[0].path) and not is_done(runs[0].path)
    assert {outcome.status for outcome in execute_all(runs, workers=workers)} <= {"complete", "skipped"}
    if workers == 2:  # one process takes torch's own number of threads, and other sums
        assert equal(whole, runs)


def test_nobody_waits_for_a_run_while_another_is_free(whole: list[Run], tmp_path: Path) -> None:
    """The first run is held elsewhere: it comes last, when its holder lets go without having made it."""
    runs, order = runs_in(tmp_path), []
    with locked(runs[0].path / LOCK) as lock:
        for outcome in execute_all(runs, workers=2):
            order.append(outcome.run_id)
            if len(order) == 2:
                assert sorted(order) == sorted(run.run_id for run in runs[1:])
                lock.release()
                lock.descriptor = os.open(os.devnull, os.O_RDONLY)  # for the block's own release
    assert order[2] == runs[0].run_id
    assert equal(whole, runs)


def test_two_sweeps_share_the_work(whole: list[Run], tmp_path: Path) -> None:
    """Two command lines started together: every run is made once, by one of them, and both end well."""
    options = [text for text in TOY_OVERRIDES if not text.startswith("train.max_steps")]
    command = [sys.executable, "scripts/train.py", "-m", *options, f"results_dir={tmp_path}", "seed=0,1,2"]
    command += ["train.max_steps=200", "eval.every=50", "runtime.threads=1", "scale=quick"]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        for _ in range(2)
    ]
    texts = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], texts
    runs = runs_in(tmp_path)
    trained = [re.findall(r"^(\S+): validation", text, flags=re.MULTILINE) for text in texts]
    assert sorted(trained[0] + trained[1]) == sorted(run.run_id for run in runs)
    makers = {json.loads((run.path / "provenance.json").read_text())["pid"] for run in runs}
    assert makers <= {process.pid for process in processes}
    assert equal(whole, runs)


def test_a_second_signal_leaves_at_once(tmp_path: Path) -> None:
    """The first one is not heard (nothing looks at it), so that only the second can end the process."""
    code = (
        "import time\nfrom crope.interrupt import StopRequest\n"
        "with StopRequest() as stop:\n    print('ready', flush=True)\n    time.sleep(0.2)\n"
        "    while True:\n        try: time.sleep(60)\n        except BaseException: pass\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said == "left at once; the same command goes on from the last checkpoint\n"
