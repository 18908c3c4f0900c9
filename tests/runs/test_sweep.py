"""Sweeps: data first, then several runs at a time, each in a process: order, failures, kills,
other commands, GPUs, signals, and what is left on disk.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from crope.errors import ConfigError, DataError, DataUnavailable, StorageError, UserError
from crope.files import write_json
from crope.plan.compose import load_run
from crope.records.locks import run_lock
from crope.runs import sweep
from crope.runs.run import Outcome, stop_on_signal
from crope.runs.sweep import Plan, default_jobs, run_all, train_all, with_data
from tests.conftest import toy_run


def toy_runs(folder, count, *more):
    return [toy_run(folder, f"seed={seed}", *more) for seed in range(count)]


def mark_start(run):
    """Leaves a file named after the run's seed; returns the folder of these files."""
    folder = Path(run.config.results_dir)
    (folder / str(run.config.seed)).touch()
    return folder


def wait_for(condition):
    """Waits for at most a minute, which only a failure takes."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def wait_for_starts(folder, count):
    wait_for(lambda: len(list(folder.glob("[0-9]"))) == count)


def work(run):
    """Stands in for `execute`: what happens depends on the seed."""
    if run.config.seed == 1:
        signal.raise_signal(signal.SIGKILL)
    if run.config.seed == 2:
        raise UserError("no such luck")
    if run.config.seed == 3:
        raise RuntimeError("a bug")
    return Outcome(run.run_id, "complete", "")


def test_a_run_that_fails_or_is_killed_stops_no_other(tmp_path):
    runs = toy_runs(tmp_path, 5)
    by_id = {outcome.run_id: outcome for outcome in run_all(runs, jobs=2, work=work)}
    outcomes = [by_id[run.run_id] for run in runs]
    statuses = [outcome.status for outcome in outcomes]
    assert statuses == ["complete", "failed", "failed", "failed", "complete"]
    assert "signal 9" in outcomes[1].text
    assert "no such luck" in outcomes[2].text


def work_until_stopped(run):
    with stop_on_signal() as stop:
        mark_start(run)
        wait_for(stop.requested)
    return Outcome(run.run_id, "stopped", "saved")


def work_on_a_full_disk(run):
    """Seed 1 finds it full when seed 0 trains, which saves and stops."""
    if run.config.seed != 1:
        return work_until_stopped(run)
    wait_for_starts(Path(run.config.results_dir), 1)
    raise StorageError("a/file: No space left on device")


def test_a_disk_that_fails_ends_all_runs_after_saving(tmp_path):
    outcomes = run_all(toy_runs(tmp_path, 3), jobs=2, work=work_on_a_full_disk)
    assert next(outcomes).text == "saved"
    with pytest.raises(StorageError, match="No space"):
        next(outcomes)
    assert not (tmp_path / "2").exists()


def test_a_run_of_another_command_waits(tmp_path):
    first, second = toy_runs(tmp_path, 2)
    with run_lock(first.path):
        assert sweep._next_run([first, second]) == second


def test_it_is_said_whose_run_is_waited_for(tmp_path, capsys):
    (run,) = toy_runs(tmp_path, 1)
    with ExitStack() as other:
        other.enter_context(run_lock(run.path))
        ended = run_all(
            [run], jobs=1, work=work_beside_another_command, show=lambda _: other.close()
        )
        next(ended)
    assert f"another command trains: {run.run_id}" in capsys.readouterr().err


def work_beside_another_command(run):
    """The other command has the run of seed 0 at first, and completes it."""
    started = list(Path(run.config.results_dir).iterdir())
    mark_start(run)
    return Outcome(run.run_id, "skipped" if started else "busy", "")


def test_a_run_that_another_command_completes_meanwhile_has_one_outcome(tmp_path):
    first, second = toy_runs(tmp_path, 2)
    outcomes = run_all([first, second], jobs=1, work=work_beside_another_command)
    assert [outcome.run_id for outcome in outcomes] == [second.run_id, first.run_id]


def work_with_a_gpu(run):
    """Ends when all three runs have one."""
    wait_for_starts(mark_start(run), 3)
    return Outcome(run.run_id, "complete", os.environ["CUDA_VISIBLE_DEVICES"])


def test_runs_are_spread_over_the_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_visible_gpus", lambda: ["3", "5"])
    outcomes = run_all(toy_runs(tmp_path, 3), jobs=3, work=work_with_a_gpu)
    assert sorted(outcome.text for outcome in outcomes) == ["3", "3", "5"]


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_one_run_at_a_time_on_each_gpu(two_gpus):
    assert default_jobs([load_run(["runtime.device=cuda"])]) == 2


def test_one_run_at_a_time_on_each_usable_core(monkeypatch):
    monkeypatch.setattr(sweep, "usable_cores", lambda: 3)
    assert default_jobs([load_run(["runtime.device=cpu"])]) == 3


def test_a_process_is_given_its_device_and_its_share_of_the_cores(two_gpus, monkeypatch):
    """One that lost its GPU must not go on without it."""
    monkeypatch.setattr(sweep, "usable_cores", lambda: 8)
    run = sweep._resolved(load_run(["runtime.device=cuda"]), jobs=3)
    assert run.config.runtime.device == "cuda"
    assert run.config.runtime.threads == 2


def test_visible_gpus(two_gpus, monkeypatch):
    """Those of CUDA_VISIBLE_DEVICES, of which torch sees two."""
    assert sweep._visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5,6")
    assert sweep._visible_gpus() == ["7", "5"]


def work_forever(run):
    folder = mark_start(run)
    (folder / f"pid-{os.getpid()}").touch()
    threading.Event().wait()


def test_a_killed_command_leaves_no_processes(tmp_path):
    code = f"""if True:
        from pathlib import Path
        from crope.runs.sweep import run_all
        from tests.runs.test_sweep import toy_runs, work_forever
        list(run_all(toy_runs(Path({str(tmp_path)!r}), 2), jobs=2, work=work_forever))
    """
    command = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
    command.kill()
    command.wait()
    for path in tmp_path.glob("pid-*"):
        wait_for(lambda path=path: not Path("/proc", path.name.removeprefix("pid-")).exists())


def stop_when_two_have_started(folder):
    """Sends SIGTERM to this process then."""

    def wait_and_send():
        wait_for_starts(folder, 2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_and_send).start()


def test_a_signal_stops_every_process_after_saving(tmp_path):
    """A third run, which waits, is not started."""
    stop_when_two_have_started(tmp_path)
    outcomes = run_all(toy_runs(tmp_path, 3), jobs=2, work=work_until_stopped)
    assert next(outcomes).text == "saved"
    assert next(outcomes).text == "saved"
    with pytest.raises(KeyboardInterrupt, match=str(int(signal.SIGTERM))):
        next(outcomes)


def work_that_counts_signals(run):
    """Seed 1 saves until there is a file `go`."""
    signals = []
    signal.signal(signal.SIGTERM, lambda *_: signals.append("SIGTERM"))
    folder = mark_start(run)
    wait_for(lambda: signals)
    if run.config.seed == 1:
        wait_for((folder / "go").exists)
        (folder / " ".join(signals)).touch()
    return Outcome(run.run_id, "stopped", "saved")


def test_processes_that_are_stopping_get_no_second_signal(tmp_path):
    """It would end them before they have saved. The reader of the outcomes fails after the first,
    as on a closed terminal.
    """
    stop_when_two_have_started(tmp_path)
    outcomes = run_all(toy_runs(tmp_path, 2), jobs=2, work=work_that_counts_signals)
    next(outcomes)
    outcomes.close()
    (tmp_path / "go").touch()
    wait_for((tmp_path / "SIGTERM").exists)


def plan(folder, *studies):
    return Plan(studies, "smoke", 1, folder, ["tracker=none", "runtime.jobs=3"])


@pytest.fixture
def errors():
    """By dataset, set by the test."""
    return {}


@pytest.fixture
def made(errors, monkeypatch):
    """`dataset vocabulary` of each token file, of which none is written."""
    made = []

    def make_tokens(corpora, tokenizer, **_):
        names = [data.corpus for data in corpora]
        made.extend(f"{name} {tokenizer.vocab_size}" for name in names)
        return {name: errors[name] for name in names if name in errors}

    monkeypatch.setattr(sweep, "make_tokens", make_tokens)
    return made


@pytest.mark.parametrize("option", ["train.lr=1", "runtime.jobs=a"])
def test_a_plan_takes_no_option_that_is_wrong_or_changes_a_number(option, tmp_path):
    with pytest.raises(ConfigError, match=option.partition("=")[0]):
        Plan(["table1"], "smoke", 1, tmp_path, [option])


def test_runs_of_a_plan(tmp_path):
    results = tmp_path / "räs, a=b"
    run, *_ = plan(results, "pilot").runs()
    assert run.scale == "smoke"
    assert run.path.parent == results / "runs"
    assert run.config.runtime.jobs == 3


def test_a_run_that_two_studies_spell_otherwise_is_trained_once(own_conf, tmp_path):
    text = (own_conf / "study/pilot.yaml").read_text()
    often = "    params:\n      runtime.log_every: 5"
    (own_conf / "study/again.yaml").write_text(text.replace("    params:", often))
    ids = [run.run_id for run in plan(tmp_path, "pilot", "again").runs()]
    assert len(ids) == len(set(ids)) > 0


def test_data_is_made_once_for_each_dataset(made, tmp_path):
    with_data(plan(tmp_path, "table1", "table2"))
    assert made == ["pg19 4096", "wikitext2 4096", "ptb 4096"]


def test_complete_runs_need_no_data(made, monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "is_complete", lambda path: "-ptb-" in path.name)
    with_data(plan(tmp_path, "base"))
    assert made == ["wikitext2 4096"]


def test_a_complete_run_on_text_of_another_source_is_a_problem_before_any_is_trained(
    made, monkeypatch, tmp_path, capsys
):
    """Its dataset is left out; others are trained."""
    record = SimpleNamespace(provenance={"data": {"source": {"sha256": {"train": "x"}}}})
    monkeypatch.setattr("crope.runs.run.read_record", lambda path: record)
    monkeypatch.setattr(sweep, "is_complete", lambda path: "rope-ptb-" in path.name)
    prepared, (problem,) = with_data(plan(tmp_path, "base"))
    assert "another source" in problem
    assert {run.dataset for run in prepared.runs()} == {"wikitext2"}
    assert set(made) == {"wikitext2 4096"}
    assert "another source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("studies", "failing", "error", "trained", "problems"),
    [
        ("table1", ["pg19"], DataUnavailable, {"wikitext2", "ptb"}, []),
        ("table1", ["pg19", "wikitext2", "ptb"], DataUnavailable, {"tiny"}, []),
        ("table2", ["pg19", "tiny"], DataError, set(), ["no", "no"]),
        ("table2", ["pg19", "tiny"], DataUnavailable, set(), ["no", "no"]),
        ("base", ["wikitext2"], DataUnavailable, {"ptb"}, ["no"]),
        ("table2 fair_lr", ["pg19", "ptb", "wikitext2"], DataUnavailable, {"tiny"}, ["no", "no"]),
    ],
)
def test_tiny_is_trained_where_no_dataset_of_the_tables_can_be_had(
    studies, failing, error, trained, problems, made, errors, tmp_path
):
    """Any other fault of a dataset is a problem."""
    errors |= dict.fromkeys(failing, error("no"))
    prepared, found = with_data(plan(tmp_path, *studies.split()))
    assert {run.dataset for run in prepared.runs()} == trained
    assert ("tiny 4096" in made) == ("tiny" in {*trained, *failing})
    assert found == problems


def outcomes(runs, *, jobs, show):
    """Stands in for `run_all`."""
    for run, status in zip(runs, ("complete", "failed", "skipped"), strict=True):
        yield Outcome(run.run_id, status, f"{status}, {jobs} at a time")


def test_every_run_that_is_neither_complete_nor_skipped_is_a_problem(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "run_all", outcomes)
    assert train_all(toy_runs(tmp_path, 3, "runtime.jobs=3")) == ["failed, 3 at a time"]
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "scale quick: 3 runs, 3 to train, 3 at a time"
    assert len(lines) == 3


def test_a_run_of_other_code_is_said_and_trained_on_demand(tmp_path, capsys):
    run = toy_run(tmp_path)
    write_json(run.path / "run.json", {"code": {"a.py": "000000"}})
    write_json(run.path / "summary.json", {"status": "complete"})
    assert train_all([run]) == []
    assert "1 of them: trained by other code (a.py" in capsys.readouterr().out
    again = toy_run(tmp_path, "runtime.again=true")
    assert sweep.incomplete([run, again]) == [again]


def test_a_run_with_a_corrupt_record_is_to_be_trained(tmp_path):
    """Which fails: no other run may hide it."""
    run = toy_run(tmp_path)
    run.path.mkdir(parents=True)
    (run.path / "summary.json").touch()
    assert sweep.incomplete([run]) == [run]
