"""Status, plan and clean-failed from run folders made by hand, and the words of each."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from crope.clean import clean_failed
from crope.compose import Run, load_run
from crope.config import ROOT
from crope.errors import ConfigError
from crope.execute import execute
from crope.interrupt import Unstoppable
from crope.lock import LOCK, try_lock
from crope.model.counting import train_flops_per_token
from crope.state import BEGUN, DAMAGED, DONE, FAILED, MISSING, RUNNING, find_runs, read_last, read_state, seconds_left
from crope.status import render_status, study_jobs, study_runs, watch
from crope.work import run_flops, run_tokens
from tests.conftest import TOY_OVERRIDES
from tests.test_progress import Terminal


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def toy_runs(tmp_path: Path) -> list[Run]:
    """Five seeds: done, to be run by a test, begun, failed, missing."""
    return [load_run([*TOY_OVERRIDES, f"seed={seed}", f"results_dir={tmp_path}"]) for seed in range(5)]


def begin(run: Run, *rows: dict[str, object], torn: str = "") -> None:
    run.path.mkdir(parents=True)
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)


def fail(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run fails: its own summary."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr("crope.execute.train", broken)
        assert execute(run, stop=Unstoppable()).status == "failed"


@pytest.fixture
def mixed(toy_runs: list[Run], toy_data: object, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    assert execute(toy_runs[0], stop=Unstoppable()).status == "complete"
    begin(toy_runs[1], {"step": 3, "time/step_ms": 2.0, "train/loss_nats": 6.5}, {"step": 6}, torn='{"step": 9')
    begin(toy_runs[2], {"step": 3, "val/loss_nats": 6.25})
    fail(toy_runs[3], monkeypatch)
    return toy_runs


def test_each_status(mixed: list[Run]) -> None:
    lock = try_lock(mixed[1].path / LOCK)
    assert lock is not None
    with lock:
        states = [read_state(run) for run in mixed]
    assert [state.status for state in states] == [DONE, RUNNING, BEGUN, FAILED, MISSING]
    assert [state.step for state in states] == [12, 6, 3, 0, 0]
    assert [state.share for state in states] == [1, 0.5, 0.25, 0, 0]
    assert states[3].why == "no such luck"
    assert read_state(mixed[1]).status == BEGUN  # its process has ended


def test_a_damaged_record_says_why(mixed: list[Run]) -> None:
    with (mixed[0].path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13}\n')
    (mixed[0].path / "summary.json").touch()
    state = read_state(mixed[0])
    assert state.status == DAMAGED
    assert "metrics.jsonl" in state.why


def test_the_status_names_every_run_that_is_not_done(mixed: list[Run]) -> None:
    lines = render_status([read_state(run) for run in mixed], stream=io.StringIO()).splitlines()
    assert re.fullmatch(
        r"quick: 5 runs: 1 done, 2 begun, 1 failed, 1 missing; about \d+ s left once it is started, one run at a time",
        lines[0],
    )
    assert lines[1:5] == [
        f"  begun    {mixed[1].run_id}   50 %  step 6 of 12",
        f"  begun    {mixed[2].run_id}   25 %  step 3 of 12  validation 6.2500",
        f"  failed   {mixed[3].run_id}: no such luck",
        f"  missing  {mixed[4].run_id}",
    ]
    assert "`make clean-failed` removes them" in lines[5]
    assert not any("\x1b" in line for line in lines)
    cut = render_status([read_state(run) for run in mixed], stream=io.StringIO(), rows=3).splitlines()
    assert [*cut[:2], cut[2]] == [*lines[:2], f"... and {len(lines) - 2} lines more"]


def test_time_left_is_work_left_at_the_pace_of_what_is_done(mixed: list[Run]) -> None:
    """One run took 8 s; of the others 0.5, 0.25, 0, 0 is done, which leaves 3.25 runs of equal size."""
    states = [read_state(run) for run in mixed]
    states[0] = replace(states[0], total_s=8.0)
    assert seconds_left(states) == pytest.approx(8 * 3.25)
    two = [replace(state, status=RUNNING) if state.status == BEGUN else state for state in states]
    assert seconds_left(two) == pytest.approx(8 * 3.25 / 2)
    # Before any is done: 12 steps of 2 ms in each of the 3.25 + 1 runs, by the step time of the one that runs.
    waiting = [replace(states[1], status=RUNNING), *(replace(states[4], run=states[4].run) for _ in range(3))]
    assert seconds_left(waiting) == pytest.approx(12 * 0.002 * 3.5)
    assert seconds_left([states[4]]) is None


def test_work_of_a_run_by_hand(toy_runs: list[Run]) -> None:
    """12 steps of 2 x 16 tokens; 3 sampled validations; 3 passes (two of validation, one of train) over 64 tokens."""
    run = toy_runs[0]
    assert run_tokens(run) == 384
    model = run.config.model
    per_token = train_flops_per_token(model, vocab_size=300, seq_len=16)
    forwards = 3 * run.config.eval.batches + 3 * 64 / 32
    assert run_flops(run) == pytest.approx(per_token * 32 * (12 + forwards / 3))


def test_a_torn_or_absent_end_of_metrics(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert read_last(file) == {}
    file.write_text("".join(f'{{"step": {step}, "filler": "{"x" * 90}"}}\n' for step in range(400)) + '{"step": 4')
    assert read_last(file)["step"] == 399


def test_precision_is_what_the_record_says(tmp_path: Path) -> None:
    words = [text for text in TOY_OVERRIDES if "precision" not in text] + [f"results_dir={tmp_path}"]
    bf16 = load_run([*words, "train.precision=bf16"])
    assert find_runs([words])[0].config.train.precision == "fp32"
    begin(bf16, {"step": 1})
    assert find_runs([words])[0].run_id == bf16.run_id


def test_studies_and_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(study_jobs(None, scale="quick", seeds=2, results_dir=tmp_path)) == 36
    assert len(study_jobs("fair_lr", scale="quick", seeds=None, results_dir=tmp_path)) == 27
    with pytest.raises(ConfigError, match="SEEDS"):
        study_runs(None, scale="quick", seeds=0, results_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"no conf/study/fair_rl\.yaml; did you mean fair_lr"):
        study_runs("fair_rl", scale="quick", seeds=1, results_dir=tmp_path)
    (job, *_) = study_jobs(None, scale="smoke", seeds=1, results_dir=tmp_path)
    begin(find_runs([job])[0], {"step": 1})
    monkeypatch.setattr("crope.status.SCALES", ("quick", "smoke"))  # composing is what takes time here
    monkeypatch.setattr("crope.status.TABLES", ("table1",))
    assert {run.scale for run in study_runs(None, scale=None, seeds=1, results_dir=tmp_path)} == {"smoke"}


def test_status_and_clean_import_no_torch() -> None:
    code = "import crope.status, crope.clean, sys; sys.exit('torch' in sys.modules or 'wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def test_watch_renews_in_place_until_nothing_is_left(mixed: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen, naps = Terminal(), []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        for run in (mixed[1], mixed[2], mixed[4]):  # meanwhile the study has gone on
            (run.path / "metrics.jsonl").unlink(missing_ok=True)
            execute(run, stop=Unstoppable())

    monkeypatch.setattr("crope.status.time", SimpleNamespace(sleep=nap))
    watch(mixed, stream=screen)
    first, second = screen.getvalue().split("\r\x1b[J")[1:]
    assert len(naps) == 1
    shown, up = first.rsplit("\n", 1)
    assert up == f"\x1b[{shown.count(chr(10)) + 1}A"
    assert second.startswith("quick: 5 runs: 4 done, 1 failed")
    with pytest.raises(ConfigError, match="needs a terminal"):
        watch(mixed, stream=io.StringIO())


def test_clean_failed_lists_spares_what_is_locked_and_removes_the_rest(mixed, tmp_path, monkeypatch, capsys) -> None:
    fail(mixed[4], monkeypatch)
    everything = {path.name for path in (tmp_path / "runs").iterdir()}
    lock = try_lock(mixed[4].path / LOCK)
    assert lock is not None
    with lock:
        capsys.readouterr()
        assert clean_failed(tmp_path, dry_run=True) == [mixed[3].path]
        assert {path.name for path in (tmp_path / "runs").iterdir()} == everything
        said = capsys.readouterr().out.splitlines()
        assert set(said[:2]) == {
            f"would go {mixed[3].path}: no such luck",
            f"kept     {mixed[4].path}: a process works on it",
        }
        assert clean_failed(tmp_path, dry_run=False) == [mixed[3].path]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == everything - {mixed[3].run_id}
    assert clean_failed(tmp_path, dry_run=False) == [mixed[4].path]
    assert clean_failed(tmp_path, dry_run=False) == []
    assert capsys.readouterr().out.endswith("no failed run to remove\n")
