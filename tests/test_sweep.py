"""What a sweep by other processes knows before and after; the launchers themselves are in tests/engines."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from crope import job as job_module
from crope import sweep, trainer
from crope.compose import compose_config, load_run
from crope.config import ROOT
from crope.data.token_files import TokenSet
from crope.errors import ConfigError, UserError
from crope.execute import Outcome, execute
from crope.interrupt import REQUEUE, StopRequest, Unstoppable
from crope.lock import LOCK, try_lock
from crope.sweep import LAUNCHERS, check_launcher, plan, run_sweep
from tests.conftest import TOY_OVERRIDES

FILES = sorted((ROOT / "conf/hydra/launcher").glob("*.yaml"))


@pytest.fixture
def launched(toy_data: TokenSet, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A launcher in this process, which returns nothing; the overrides of what it was given."""
    given: list[str] = []

    def launch(fixed, jobs):
        for made in jobs:
            given.append(made.run.run_id)
            execute(load_run(made.overrides), stop=Unstoppable())
        return {}, ""

    monkeypatch.setattr(sweep, "launch", launch)
    monkeypatch.setattr(sweep, "check_launcher", lambda *_: None)
    return given


def options(folder: Path, *more: str) -> list[str]:
    return [*TOY_OVERRIDES, f"results_dir={folder}", *more]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_launcher_composes_whether_its_plugin_is_there_or_not(path: Path) -> None:
    node = compose_config([f"hydra/launcher={path.stem}"]).hydra.launcher
    assert path.stem in LAUNCHERS
    assert LAUNCHERS[path.stem][0] in OmegaConf.to_container(node)["_target_"]


@pytest.mark.skipif(importlib.util.find_spec("hydra_plugins") is not None, reason="an extra is installed here")
@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_missing_extra_is_one_line(name: str) -> None:
    extra = LAUNCHERS[name][1]
    with pytest.raises(
        ConfigError, match=rf"hydra/launcher={name} needs a package more: pip install -e '.\[{extra}\]'"
    ):
        check_launcher(name, ["scale=paper", "train.precision=bf16"])


@pytest.mark.parametrize("key", ["scale", "train.precision"])
def test_what_other_machines_could_choose_otherwise_has_to_be_named(key: str, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    named = ["scale=paper", "train.precision=bf16"]
    check_launcher("submitit_slurm", named)
    with pytest.raises(ConfigError, match=f"hydra/launcher=submitit_slurm: name {key} "):
        check_launcher("submitit_slurm", [text for text in named if not text.startswith(f"{key}=")])


def test_the_plan_is_hydras_grid_with_each_run_once_and_nothing_left_open(tmp_path: Path) -> None:
    fixed, jobs = plan(options(tmp_path, "hydra/launcher=basic", "model=rope,crope", "seed=0,1,0"))
    assert [(job.run.model, job.run.config.seed) for job in jobs] == [
        ("rope", 0),
        ("rope", 1),
        ("crope", 0),
        ("crope", 1),
    ]
    assert "hydra/launcher=basic" in fixed and not any(text.startswith("model=") for text in fixed)
    for job in jobs:
        assert "train.precision=fp32" in job.overrides and f"results_dir='{tmp_path}'" in job.overrides
        assert load_run(job.overrides).run_id == job.run.run_id


def test_a_study_brings_its_axes_and_paths_become_whole(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    fixed, jobs = plan(["study=table1", "scale=smoke", "train.precision=fp32", "seed=0,1", "results_dir='it\\'s here'"])
    assert len(jobs) == 18 and jobs[0].run.dataset == "pg19"
    again = load_run(jobs[0].overrides).config
    assert again.results_dir == str(tmp_path / "it's here") and Path(again.data_dir).is_absolute()
    assert compose_config(fixed).results_dir == str(tmp_path / "it's here")


def test_a_text_that_is_no_override_is_one_line(launched) -> None:
    with pytest.raises(ConfigError, match="'seed:3' is not of the form key=value"):
        run_sweep("joblib", ["seed:3"])


def test_a_mistake_in_one_run_stops_the_sweep_before_it_begins(tmp_path: Path, launched) -> None:
    with pytest.raises(ConfigError, match=r"model\.d_model=18"):
        run_sweep("joblib", options(tmp_path, "model.d_model=16,18"))
    assert launched == [] and not (tmp_path / "runs").exists()


def test_the_records_decide_and_complete_runs_are_not_launched(tmp_path: Path, launched: list[str]) -> None:
    overrides = options(tmp_path, "train.lr=1e-3,1e30", "seed=0,1")
    _, outcomes = run_sweep("joblib", overrides)
    assert [outcome.status for outcome in outcomes] == ["complete", "complete", "failed", "failed"]
    assert "not finite at step" in outcomes[2].text
    assert len(launched) == 4
    assert sorted(outcome.status for outcome in run_sweep("joblib", overrides)[1]) == ["failed"] * 2 + ["skipped"] * 2
    assert launched[4:] == launched[2:4], "only what failed is tried again"


def test_a_damaged_record_stops_no_other_run(tmp_path: Path, launched, monkeypatch) -> None:
    overrides = options(tmp_path, "seed=0,1")
    assert [outcome.status for outcome in run_sweep("joblib", overrides)[1]] == ["complete", "complete"]
    (tmp_path / "runs" / launched[0] / "metrics.jsonl").write_text("")
    monkeypatch.setattr(sweep, "launch", lambda *_: ({}, ""))
    outcomes = {outcome.run_id: outcome for outcome in run_sweep("joblib", overrides)[1]}
    assert outcomes[launched[1]].status == "skipped"
    assert outcomes[launched[0]].status == "failed" and "remove the folder" in outcomes[launched[0]].text


def test_a_run_that_says_complete_and_has_no_record_here_is_a_failure(tmp_path, launched, monkeypatch) -> None:
    def elsewhere(fixed, jobs):
        return {jobs[0].run.run_id: Outcome(jobs[0].run.run_id, "complete", "")}, ""

    monkeypatch.setattr(sweep, "launch", elsewhere)
    (outcome,) = run_sweep("joblib", options(tmp_path))[1]
    assert outcome.status == "failed" and "all machines must share results_dir" in outcome.text


def test_lost_runs_are_told_and_a_launcher_that_made_none_is_an_error(tmp_path, launched, monkeypatch) -> None:
    overrides, real = options(tmp_path, "seed=0,1"), sweep.launch

    def half(fixed, jobs):
        real(fixed, jobs[:1])
        return {}, "a worker was killed"

    monkeypatch.setattr(sweep, "launch", half)
    first, second = run_sweep("joblib", overrides)[1]
    assert (first.status, second.status) == ("complete", "lost")
    assert second.text.endswith(
        "without a word (a worker was killed); the same command goes on from its last checkpoint"
    )
    monkeypatch.setattr(sweep, "launch", lambda *_: ({}, "no srun here"))  # nothing is begun
    with pytest.raises(UserError, match="hydra/launcher=joblib: no srun here"):
        run_sweep("joblib", options(tmp_path / "other", "seed=0,1"))


def test_a_run_that_another_process_has_is_waited_for(tmp_path: Path, launched, monkeypatch, capsys) -> None:
    """The job that was launched found it taken and ended; the holder makes it meanwhile."""
    run = load_run(options(tmp_path))
    lock = try_lock(run.path / LOCK)
    assert lock

    def let_go() -> None:
        lock.release()
        execute(run, stop=Unstoppable())

    monkeypatch.setattr(sweep, "launch", lambda *_: ({}, ""))
    taken = iter([True, True, False])
    monkeypatch.setattr(sweep, "is_taken", lambda _: next(taken) or let_go())
    assert [outcome.status for outcome in run_sweep("joblib", options(tmp_path))[1]] == ["complete"]
    assert "trains it; waiting" in capsys.readouterr().out


def hydra_config(overrides: list[str], monkeypatch):
    cfg = compose_config(overrides)
    monkeypatch.setattr(job_module.HydraConfig, "get", lambda: cfg.hydra)
    return OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])


def test_a_job_returns_whatever_ends_it(toy_data, tmp_path: Path, monkeypatch, capsys) -> None:
    cfg = hydra_config(options(tmp_path), monkeypatch)
    monkeypatch.setattr(trainer, "train_step", lambda *a, **k: 1 / 0)
    assert job_module.job(cfg).text.endswith("failed: division by zero")
    assert "ZeroDivisionError" in capsys.readouterr().err, "its log has the traceback"
    monkeypatch.undo()
    cfg = hydra_config(options(tmp_path), monkeypatch)
    monkeypatch.setattr(job_module, "execute", lambda *a, **k: {}["absent"])
    outcome = job_module.job(cfg)
    assert (outcome.status, outcome.text.split(": ", 1)[1]) == ("failed", "KeyError: 'absent'")
    assert "Traceback" in capsys.readouterr().err


def test_asked_by_sigusr2_a_job_saves_before_the_batch_system_hears_of_it(toy_data, tmp_path, monkeypatch) -> None:
    cfg = hydra_config(options(tmp_path), monkeypatch)
    run, heard, real = load_run(options(tmp_path)), [], trainer.train_step

    def put_back(number, frame):
        heard.append([path.name for path in run.path.glob("checkpoint-*")])
        signal.raise_signal(REQUEUE)  # a scheduler may send it again; the library's handler cannot be entered twice
        raise SystemExit(75)

    def step(*args, step, **kwargs):
        if step == 7:
            signal.raise_signal(REQUEUE)
        return real(*args, step=step, **kwargs)

    before = signal.signal(REQUEUE, put_back)
    try:
        monkeypatch.setattr(trainer, "train_step", step)
        with pytest.raises(SystemExit):
            job_module.job(cfg)
    finally:
        signal.signal(REQUEUE, before)
    assert len(heard) == 1 and any(name.startswith("checkpoint-8-") for name in heard[0])
    assert not (run.path / "summary.json").exists()


def test_sigterm_stays_with_a_batch_systems_library_that_has_taken_sigusr2() -> None:
    before = signal.signal(REQUEUE, lambda *_: None)
    try:
        term = signal.getsignal(signal.SIGTERM)
        with StopRequest() as stop:
            assert signal.getsignal(signal.SIGTERM) is term
            signal.raise_signal(REQUEUE)
            signal.raise_signal(REQUEUE)  # may come twice; leaving at once would lose the place in the queue
            assert stop.signal_number == REQUEUE
    finally:
        signal.signal(REQUEUE, before)
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) is not term
