"""Status: what run folders say, and the same as text."""

import json
from unittest import mock

import pytest
import yaml

from crope.files import read_json, read_metrics
from crope.records.locks import lock_file, run_lock
from crope.records.status import (
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    RunState,
    list_runs,
    render_status,
    show,
    state_of,
)
from crope.records.store import read_record
from tests.conftest import begin, toy_run
from tests.toy_runs import toy_corpus, train_toy


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A results folder with one complete run of 12 steps and one that diverged."""
    results = tmp_path_factory.mktemp("trained")
    with toy_corpus(results / "tokens"):
        train_toy(results)
        with pytest.raises(AssertionError):
            train_toy(results, "train.lr=1e30")
    return results


def test_a_complete_run_is_done_with_its_last_full_loss_and_its_minutes(trained):
    path = toy_run(trained).path
    loss = read_metrics(path / "metrics.jsonl")[-1]["val_full/loss_nats"]
    minutes = read_json(path / "summary.json")["time"]["total_s"] / 60
    assert state_of(path) == RunState(DONE, 12, loss, minutes)


def test_a_run_of_other_code_is_listed_with_the_file(trained, monkeypatch):
    now = {"crope/train/loop.py": "000000"}
    monkeypatch.setattr("crope.records.sources.code_digests", lambda: now)
    assert "crope/train/loop.py" in list_runs(trained, "other code")


def test_a_failed_run_has_its_reason_until_it_is_tried_again(trained):
    path = toy_run(trained, "train.lr=1e30").path
    assert state_of(path).status == FAILED
    assert "not finite" in state_of(path).reason
    with run_lock(path):
        assert state_of(path).status == RUNNING


def test_a_corrupt_record_is_failed(tmp_path):
    path = begin(toy_run(tmp_path))
    (path / "summary.json").write_text("{\n")
    assert state_of(path).status == FAILED


def test_a_run_without_a_record_is_started_or_running(tmp_path):
    """The last line of its metrics is torn."""
    path = begin(toy_run(tmp_path), '{"step": 0}\n{"step": 20}\n{"st')
    assert state_of(path) == RunState(STOPPED, 20)
    with run_lock(path):
        assert state_of(path) == RunState(RUNNING, 20)


def test_a_lock_is_for_every_user_and_looked_at_without_writing(tmp_path):
    """Where it may not be read nothing is known."""
    path = begin(toy_run(tmp_path))
    with run_lock(path), mock.patch("os.open", side_effect=PermissionError):
        assert lock_file(path).stat().st_mode & 0o666 == 0o666
        assert state_of(path).status == RUNNING
        with mock.patch("pathlib.Path.open", side_effect=PermissionError):
            assert state_of(path).status == STOPPED


def test_the_list_has_the_newest_run_first_with_what_varies_and_why_it_failed(trained):
    header, failed, done, settings, reason = list_runs(trained).splitlines()
    assert header.split() == ["run", "scale", "status", "step", "loss", "min", "train.lr"]
    assert failed.split()[:3] == [toy_run(trained, "train.lr=1e30").run_id, "quick", "failed"]
    assert failed.split()[-1] == "1e+30"
    assert settings.startswith("all: ") and "train.max_steps=12" in settings
    assert "not finite" in reason
    run = toy_run(trained)
    state = state_of(run.path)
    loss, minutes = f"{state.loss:.4f}", f"{state.minutes:.1f}"
    assert done.split() == [
        run.run_id,
        "quick",
        "done",
        "12",
        loss,
        minutes,
        "0.001",
    ]  # the default
    best = list_runs(trained, by_loss=True).splitlines()[1]
    assert best == done


def test_the_list_is_of_lines_and_settings_that_have_the_pattern(trained):
    assert "done" not in list_runs(trained, "failed")
    assert "failed" in list_runs(trained, "lr=1e+30")
    assert "done" not in list_runs(trained, "lr=1e+30")
    assert "'halved'" in list_runs(trained, "halved")
    assert list_runs(trained / "none") == f"no runs in {trained / 'none' / 'runs'}"


def test_a_run_is_shown_with_its_losses_and_how_it_was_made(trained):
    record = read_record(toy_run(trained).path)
    shown = yaml.safe_load(show(record))
    assert shown["folder"] == str(record.path)
    assert shown["summary"]["val_full"] == record.summary["val_full"]
    assert shown["provenance"]["commit"] == record.provenance["commit"]
    assert "train.max_steps=12" in shown["run"]["settings"]


def counts(results, *studies, **options):
    return render_status(studies, results_dir=results, **options).splitlines()


def of_plan(results, scale, dataset, seed):
    """The beginning of a run of RoPE in Table 1."""
    from crope.plan.compose import load_run, quoted_override

    where = quoted_override("results_dir", results)
    run = load_run([where, "model=rope", f"data={dataset}", f"scale={scale}", f"seed={seed}"])
    path = begin(run, '{"step": 20}\n')
    (path / "run.json").write_text(json.dumps({"run_id": run.run_id, **run.names}))
    return run


def test_without_a_scale_it_is_the_studys_own_or_that_of_the_largest_run(tmp_path):
    lines = counts(tmp_path, "base", "paper_row", scale=None, seeds=1)
    assert [line.split(" runs")[0].split(f" {tmp_path}")[0] for line in lines] == [
        "base, quick: 4",
        "paper_row, paper: 2",
        "together 6",
        "0 others in",
    ]
    of_plan(tmp_path, "medium", "ptb", 0)
    assert counts(tmp_path, "base", scale=None, seeds=1)[0].startswith("base, medium: 4 runs")


def test_only_seeds_of_which_a_run_has_begun_are_counted(tmp_path):
    """And the runs beside the plan; one that two studies have is counted once."""
    run = of_plan(tmp_path, "quick", "pg19", 1)
    of_plan(tmp_path, "smoke", "ptb", 0)
    assert counts(tmp_path, "table1", "table2", scale="quick", seeds=None) == [
        "table1, quick: 9 runs: 1 stopped, 8 missing; 4 of the planned seeds not begun",
        "table2, quick: 12 runs: 1 stopped, 11 missing; 4 of the planned seeds not begun",
        f"  stopped {run.run_id}  step 20 of 800",
        "together 18 runs, those of two studies counted once",
        f"1 others in {tmp_path / 'runs'} (python scripts/tools.py list)",
    ]
