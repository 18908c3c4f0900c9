"""Several runs at a time, each in a process: order, failures, kills, other commands, signals."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crope import sweep
from crope.compose import Run, load_run
from crope.errors import ConfigError, DataError, DataUnavailable, UserError
from crope.run import Outcome, run_lock, stop_on_signal
from crope.sweep import reproduce, run_all
from tests.conftest import TOY_OVERRIDES


def toy_runs(folder: Path, count: int) -> list[Run]:
    return [
        load_run([*TOY_OVERRIDES, f"seed={seed}", f"results_dir={folder}"]) for seed in range(count)
    ]


def work(run: Run) -> Outcome:
    """Stands in for `execute`: what happens depends on the seed."""
    with (Path(run.config.results_dir) / "order").open("a") as file:
        file.write(f"{run.config.seed}\n")
    if run.config.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if run.config.seed == 2:
        raise UserError("no such luck")
    if run.config.seed == 3:
        raise RuntimeError("a bug")
    return Outcome(run.run_id, "complete", f"{run.config.runtime.threads} threads")


def work_until_stopped(run: Run) -> Outcome:
    with stop_on_signal() as stop:
        (Path(run.config.results_dir) / str(run.config.seed)).touch()
        while not stop.requested():
            time.sleep(0.01)
    return Outcome(run.run_id, "stopped", "saved")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_or_is_killed_stops_no_other(jobs: int, tmp_path: Path) -> None:
    runs = toy_runs(tmp_path, 5)
    outcomes = {outcome.run_id: outcome for outcome in run_all(runs, jobs=jobs, work=work)}
    assert [outcomes[run.run_id].status for run in runs] == [
        "complete",
        "failed",
        "failed",
        "failed",
        "complete",
    ]
    assert "signal 9" in outcomes[runs[1].run_id].text and "luck" in outcomes[runs[2].run_id].text
    order = (tmp_path / "order").read_text().split()
    assert order == sorted(order) if jobs == 1 else sorted(order) == ["0", "1", "2", "3", "4"]
    cores = len(os.sched_getaffinity(0))
    assert outcomes[runs[0].run_id].text == f"{max(1, cores // jobs)} threads"


def test_runs_of_another_command_are_left_for_last(tmp_path: Path) -> None:
    runs = [run for run in toy_runs(tmp_path, 6) if run.config.seed in (0, 4, 5)]
    lock = run_lock(runs[0])
    with lock:
        outcomes = run_all(runs, jobs=1, work=work)
        assert [next(outcomes).run_id, next(outcomes).run_id] == [runs[1].run_id, runs[2].run_id]
    assert next(outcomes).run_id == runs[0].run_id
    assert next(outcomes, None) is None


def test_sigterm_stops_every_process_after_saving(tmp_path: Path) -> None:
    def kill_when_started() -> None:
        while not (tmp_path / "0").exists() or not (tmp_path / "1").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=kill_when_started).start()
    outcomes = []
    with pytest.raises(KeyboardInterrupt):
        for outcome in run_all(toy_runs(tmp_path, 3), jobs=2, work=work_until_stopped):
            outcomes.append(outcome)
    assert [outcome.text for outcome in outcomes] == ["saved", "saved"], "the third was not started"


@pytest.mark.parametrize(("seeds", "override"), [([], "tracker=none"), ([0], "train.lr=1")])
def test_reproduce_takes_no_option_that_changes_a_number(
    seeds: list[int], override: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="SEEDS" if not seeds else "train.lr"):
        reproduce(scale="smoke", seeds=seeds, results_dir=tmp_path, overrides=[override])


def test_reproduce_trains_the_studies_at_the_seeds_and_reports_the_scale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In place of training, runs are noted; without WikiText-2, `tiny` joins."""
    trained: list[Run] = []
    measured: list[Run] = []
    reported: list[dict[str, object]] = []

    def train(runs: list[Run], jobs: int) -> Iterator[Outcome]:
        assert jobs == 3
        trained.extend(runs)
        yield from (Outcome(run.run_id, "complete", run.run_id) for run in runs)

    def prepare(corpora: list[str], *_: object, **__: object) -> dict[str, UserError]:
        return {name: DataUnavailable("no network") for name in corpora if name == "wikitext2"}

    monkeypatch.setattr(sweep, "run_all", train)
    monkeypatch.setattr(sweep, "prepare", prepare)
    monkeypatch.setattr(
        sweep, "_is_complete", lambda run: run.run_id in {r.run_id for r in trained}
    )
    monkeypatch.setattr(sweep, "_extrapolate", lambda runs: measured.extend(runs) or [])
    monkeypatch.setattr(
        "crope.report.build.build_report", lambda **options: reported.append(options) or []
    )

    def call(*studies: str) -> int:
        options = {"overrides": ["tracker=none", "runtime.jobs=3"], "results_dir": tmp_path}
        return reproduce(scale="smoke", seeds=[2, 5], studies=studies, **options)

    def listed(runs: list[Run]) -> list[tuple[int, str, str]]:
        return [(run.config.seed, run.dataset, run.model) for run in runs]

    length = ["xpos", "learned", "relative_bias", "alibi", "nope", "rope", "crope"]
    horizon = ["rope", "crope", "halved", "lowrank"]
    both = [("tiny", model) for model in length]
    both += [(dataset, model) for dataset in ("ptb", "tiny") for model in horizon]
    assert call("length", "horizon") == 0
    assert sorted(listed(trained)) == sorted((seed, *names) for seed in (2, 5) for names in both)
    assert listed(measured) == [(seed, "tiny", model) for seed in (2, 5) for model in length]
    assert {(run.scale, run.config.results_dir) for run in trained} == {("smoke", str(tmp_path))}
    assert reported == [{"results_dir": tmp_path, "scale": "smoke"}]
    assert call("horizon") == 0
    assert (len(trained), len(measured)) == (30, 14), "nothing is trained or measured twice"


def test_reproduce_ends_with_status_1_after_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    problems: set[str] = set()

    def ended(runs: list[Run], jobs: int) -> Iterator[Outcome]:
        status = "failed" if "a run" in problems else "complete"
        yield from (Outcome(run.run_id, status, run.run_id) for run in runs)

    corrupt = {"wikitext2": DataError("corrupt")}
    monkeypatch.setattr(sweep, "run_all", ended)
    monkeypatch.setattr(sweep, "prepare", lambda *_, **__: corrupt if "data" in problems else {})
    monkeypatch.setattr(sweep, "_extrapolate", lambda runs: list(problems & {"a length"}))
    monkeypatch.setattr(
        "crope.report.build.build_report", lambda **_: list(problems & {"a record"})
    )
    options = {"scale": "smoke", "seeds": [0], "results_dir": tmp_path, "overrides": []}
    for problem in ("", "a run", "data", "a length", "a record"):
        problems.clear()
        problems.add(problem)
        assert reproduce(studies=["length"], **options) == bool(problem), problem
