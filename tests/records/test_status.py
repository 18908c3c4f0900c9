"""Status: what run folders say, and the same as text."""

import json
import re
from dataclasses import replace

import pytest

from crope.plan.compose import load_run
from crope.records.locks import run_lock
from crope.records.status import (
    DONE,
    FAILED,
    MISSING,
    RUNNING,
    STARTED,
    RunState,
    render,
    states,
    study_states,
)
from tests.conftest import toy_run
from tests.toy_runs import toy_corpus, train_toy

RUN = load_run(["model=rope", "data=ptb", "scale=quick", "train.precision=fp32"])  # of 800 steps


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A results folder with one complete run of 12 steps and one that diverged."""
    results = tmp_path_factory.mktemp("trained")
    with toy_corpus(results / "tokens"):
        train_toy(results)
        with pytest.raises(AssertionError):
            train_toy(results, "train.lr=1e30")
    return results


def start(run, metrics=""):
    run.path.mkdir(parents=True)
    (run.path / "run.json").touch()
    (run.path / "metrics.jsonl").write_text(metrics)
    return run


def named(model, status, **more):
    """The state of a run of 800 steps."""
    return RunState(replace(RUN, model=model), status, **more)


def test_a_complete_run_is_done(trained):
    run = toy_run(trained)
    assert states([run]) == [RunState(run, DONE, 12)]


def test_a_failed_run_has_its_reason_until_it_is_tried_again(trained):
    run = toy_run(trained, "train.lr=1e30")
    (state,) = states([run])
    assert state.status == FAILED
    assert "not finite" in state.reason
    with run_lock(run):
        assert states([run])[0].status == RUNNING


def test_a_corrupt_record_is_failed(tmp_path):
    run = start(toy_run(tmp_path))
    (run.path / "summary.json").write_text("{\n")
    assert states([run])[0].status == FAILED


def test_a_run_without_a_record_is_started_or_running(tmp_path):
    """The last line of its metrics is torn."""
    run = start(toy_run(tmp_path), '{"step": 0}\n{"step": 20}\n{"st')
    assert states([run]) == [RunState(run, STARTED, 20)]
    with run_lock(run):
        assert states([run]) == [RunState(run, RUNNING, 20)]


def test_a_free_lock_means_nothing(tmp_path):
    run = toy_run(tmp_path)
    with run_lock(run):
        pass
    assert states([run]) == [RunState(run, MISSING)]


def test_text_of_two_studies_that_share_runs():
    """One line each: a run that both have is named once, in the order of STATUSES."""
    running = named("m1", RUNNING, step=20)
    failed = named("m2", FAILED, reason="no such luck")
    started = named("m3", STARTED, step=200)
    done = named("m4", DONE, step=800)
    text = render({"one, quick": [failed, started, running], "two, quick": [running, done]})
    lines = [re.sub("-[0-9a-f]{8}", "", line) for line in text.splitlines()]
    assert lines == [
        "one, quick: 3 runs: 1 running, 1 started, 1 failed",
        "two, quick: 2 runs: 1 done, 1 running",
        "  running m1-ptb-base-s0  step 20 of 800",
        "  started m3-ptb-base-s0  step 200 of 800",
        "  failed  m2-ptb-base-s0: no such luck",
    ]


def counts(results, *studies):
    """The number of runs by study and scale, of one seed."""
    found = study_states(studies, scale=None, seeds=1, results_dir=results)
    return {name: len(runs) for name, runs in found.items()}


def test_without_a_scale_it_is_the_studys_own_or_that_of_the_largest_run(tmp_path):
    assert counts(tmp_path, "base", "paper_row") == {"base, quick": 4, "paper_row, paper": 2}
    for scale in ("smoke", "medium"):
        options = [f"scale={scale}", "train.precision=bf16", f"results_dir={tmp_path}"]
        run = start(load_run(["model=rope", "data=ptb", *options]))
        (run.path / "run.json").write_text(json.dumps({"scale": scale}))
    assert counts(tmp_path, "base") == {"base, medium": 4}


def runs_of_table1(results):
    (found,) = study_states(["table1"], scale="smoke", seeds=1, results_dir=results).values()
    return [state.run for state in found]


def test_tiny_is_expected_in_place_of_a_dataset_until_that_is_there(tmp_path, monkeypatch):
    """In a folder of both results and data."""
    (tmp_path / "unavailable.json").write_text('{"ptb": "no network"}')
    monkeypatch.setattr("crope.data.corpora.RAW_DIR", tmp_path)
    monkeypatch.setenv("CROPE_DATA_DIR", str(tmp_path))
    assert {run.dataset for run in runs_of_table1(tmp_path)} == {"pg19", "wikitext2", "tiny"}
    (tmp_path / "ptb").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "ptb" / name).touch()
    assert {run.dataset for run in runs_of_table1(tmp_path)} == {"pg19", "wikitext2", "ptb"}


def test_a_corrupt_list_of_missing_datasets_is_read_over(tmp_path, capsys):
    (tmp_path / "unavailable.json").write_text("{")
    assert counts(tmp_path, "table1") == {"table1, quick": 9}
    assert "unavailable.json: corrupt" in capsys.readouterr().err
