"""Several runs at a time, each in a process: order, failures, kills, other commands, signals."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from crope.config import TokenizerConfig
from crope.errors import ConfigError, DataError, DataUnavailable, UserError
from crope.runs import study, sweep
from crope.runs.compose import Run, load_run
from crope.runs.run import Outcome, run_lock, stop_on_signal
from crope.runs.sweep import default_jobs, reproduce, run_all
from crope.train import loop as trainer
from tests.conftest import toy_run
from tests.toy_runs import toy_corpus, train_toy


def toy_runs(folder: Path, count: int) -> list[Run]:
    return [toy_run(folder, f"seed={seed}") for seed in range(count)]


def work(run: Run) -> Outcome:
    """Stands in for `execute`: what happens depends on the seed."""
    with (Path(run.config.results_dir) / "order").open("a") as file:
        file.write(f"{run.config.seed}\n")
    if run.config.seed == 1:
        signal.raise_signal(signal.SIGKILL)
    if run.config.seed == 2:
        raise UserError("no such luck")
    if run.config.seed == 3:
        raise RuntimeError("a bug")
    return Outcome(run.run_id, "complete", f"{run.config.runtime.threads} threads")


def work_until_stopped(run: Run) -> Outcome:
    folder, seed = Path(run.config.results_dir), run.config.seed
    with stop_on_signal() as stop:
        (folder / str(seed)).touch()
        while not stop.requested() or (seed == 1 and (folder / "slow").exists()):
            time.sleep(0.01)
        (folder / f"saved {seed}").touch()
    return Outcome(run.run_id, "stopped", "saved")


def test_a_run_that_cannot_be_measured_is_a_problem_and_stops_no_other(
    tmp_path: Path, monkeypatch
) -> None:
    runs = [toy_run(tmp_path, "model=rope", f"seed={seed}") for seed in (0, 1)]
    with toy_corpus(tmp_path / "tokens"):
        for seed in (0, 1):
            train_toy(tmp_path, "model=rope", f"seed={seed}")
        (runs[0].path / "weights.pt").unlink()
        (problem,) = sweep._extrapolate(runs)
    assert problem.startswith(f"{runs[0].run_id}: ") and "weights.pt" in problem
    assert (runs[1].path / "extrapolation.json").exists()

    def without_memory(record: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("crope.runs.extrapolate.extrapolate", without_memory)
    assert "out of memory" in sweep._extrapolate(runs[1:])[0]


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


def work_compiling(run: Run) -> Outcome:
    """Stands in for a run that compiles for 0.3 s, then writes its first line and trains for 0.3 s."""
    order = Path(run.config.results_dir) / "order"
    for event in ("started", "compiled"):
        with order.open("a") as file:
            file.write(f"{event} {run.config.seed}\n")
        time.sleep(0.3)
        run.path.mkdir(parents=True, exist_ok=True)
        (run.path / "metrics.jsonl").write_text("{}\n")
    return Outcome(run.run_id, "complete", run.config.runtime.compile)


@pytest.mark.parametrize("compiled", ["true", "false"])
def test_the_first_run_of_a_shape_compiles_and_the_others_wait(
    compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds 0 and 1 share a shape, the run of seed 2 has another."""
    monkeypatch.setattr(trainer, "can_compile", lambda kind: True)
    sizes = ("", "", "model.d_model=32")
    runs = [
        toy_run(tmp_path, f"seed={seed}", f"runtime.compile={compiled}", *size.split())
        for seed, size in enumerate(sizes)
    ]
    outcomes = list(run_all(runs, jobs=3, work=work_compiling))
    assert [outcome.text for outcome in outcomes] == [compiled] * 3
    events = (tmp_path / "order").read_text().splitlines()
    waited = events.index("started 1") > events.index("compiled 0")
    assert waited == (compiled == "true")
    assert events.index("started 2") < events.index("compiled 0")


@pytest.mark.parametrize(
    ("overrides", "gib", "expected"),
    [
        ("scale=paper", 140, 8),  # four per GPU at most
        ("scale=paper", 24, 4),  # logits of 16 x 1,024 tokens: 9.2 GiB
        ("scale=paper", 8, 2),  # too small, but a run of its own may fit
        ("scale=quick", 8, 8),
        ("scale=paper runtime.device=cpu", 24, len(os.sched_getaffinity(0))),
    ],
)
def test_runs_at_a_time_by_the_memory_of_two_gpus(
    overrides: str, gib: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load_run(["runtime.device=auto", *overrides.split()])
    properties = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    assert default_jobs([run], run.config.runtime.device) == expected
    # A process must not go on without its GPU; one GPU is named that is not there.
    kind = "cpu" if "device=cpu" in overrides else "cuda"
    assert sweep._resolved(run, jobs=1).config.runtime.device == kind
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,")
    assert sweep._visible_gpus() == ["5", "7"]


def signal_when_started(folder: Path, number: signal.Signals) -> None:
    """Sends a signal to this process as soon as the runs of seeds 0 and 1 have started."""

    def wait_and_send() -> None:
        while not (folder / "0").exists() or not (folder / "1").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait_and_send).start()


@pytest.mark.parametrize(
    ("count", "number"), [(3, signal.SIGTERM), (2, signal.SIGINT)], ids=["waiting", "last batch"]
)
def test_a_signal_stops_every_process_after_saving(
    count: int, number: signal.Signals, tmp_path: Path
) -> None:
    signal_when_started(tmp_path, number)
    outcomes = []
    with pytest.raises(KeyboardInterrupt, match=str(int(number))):
        for outcome in run_all(toy_runs(tmp_path, count), jobs=2, work=work_until_stopped):
            outcomes.append(outcome)
    assert [outcome.text for outcome in outcomes] == ["saved", "saved"], "a third was not started"


def test_processes_that_are_stopping_get_no_second_signal(tmp_path: Path) -> None:
    """It would end them before they have saved. The reader of the outcomes fails after the first,
    as on a closed terminal.
    """
    (tmp_path / "slow").touch()
    signal_when_started(tmp_path, signal.SIGTERM)
    outcomes = run_all(toy_runs(tmp_path, 2), jobs=2, work=work_until_stopped)
    next(outcomes)
    outcomes.close()
    (tmp_path / "slow").unlink()
    deadline = time.monotonic() + 10
    while not (tmp_path / "saved 1").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (tmp_path / "saved 1").exists()


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`reproduce` only notes its runs; what fails is set by the test."""
    noted = SimpleNamespace(trained=[], measured=[], reported=[], prepared=[])
    noted.errors, noted.status, noted.unmeasured, noted.invalid = {}, "complete", [], []

    def train(runs: list[Run], *, jobs: int, show: object) -> Iterator[Outcome]:
        assert jobs == 3
        noted.trained.extend(runs)
        yield from (Outcome(run.run_id, noted.status, run.run_id) for run in runs)

    def prepare(
        corpora: list[str], tokenizer: TokenizerConfig, **_: object
    ) -> dict[str, UserError]:
        noted.prepared.append((corpora, tokenizer.vocab_size))
        return {name: noted.errors[name] for name in corpora if name in noted.errors}

    def extrapolate(runs: list[Run]) -> list[str]:
        noted.measured.extend(runs)
        return noted.unmeasured

    def build_report(**options: object) -> list[str]:
        noted.reported.append(options)
        return noted.invalid

    monkeypatch.setattr(sweep, "run_all", train)
    monkeypatch.setattr(sweep, "prepare", prepare)
    monkeypatch.setattr(sweep, "_extrapolate", extrapolate)
    monkeypatch.setattr("crope.report.page.build_report", build_report)
    return noted


def reproduced(folder: Path, *studies: str, scale: str = "smoke", seeds: int = 1) -> int:
    overrides = ["tracker=none", "runtime.jobs=3"]
    return reproduce(
        scale=scale, seeds=seeds, studies=studies, results_dir=folder, overrides=overrides
    )


def test_only_a_missing_dataset_of_the_papers_is_replaced_by_tiny(
    noted: SimpleNamespace, tmp_path: Path, capsys
) -> None:
    """A corrupt one is a failure, and status expects no runs in its place."""
    noted.errors["ptb"] = DataError("ptb: corrupt")
    results = tmp_path / "räs, a=b"
    for missing, datasets in (({}, None), ({"wikitext2": "no"}, ["pg19", "ptb", "tiny"])):
        noted.errors |= {name: DataUnavailable(reason) for name, reason in missing.items()}
        assert reproduced(results, "table1") == 1
        assert json.loads((results / "unavailable.json").read_text()) == missing
        assert study._available_datasets(results, tmp_path) == datasets
        assert "1 failed:\n  ptb: corrupt" in capsys.readouterr().out
    assert "ptb" not in {run.dataset for run in noted.trained}
    reproduced(results, "paper_row")  # on PG-19 alone
    assert json.loads((results / "unavailable.json").read_text()) == missing


def test_reproduce_takes_no_option_that_changes_a_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.lr"):
        reproduce(scale="smoke", seeds=1, results_dir=tmp_path, overrides=["train.lr=1"])


def test_reproduce_trains_the_studies_at_the_seeds_and_reports_the_scale(
    noted: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    """Without WikiText-2, `tiny` joins."""
    noted.errors["wikitext2"] = DataUnavailable("no network")
    trained, measured, reported = noted.trained, noted.measured, noted.reported
    monkeypatch.setattr(
        sweep, "_is_complete", lambda run: run.run_id in {r.run_id for r in trained}
    )

    def listed(runs: list[Run]) -> list[tuple[int, str, str]]:
        return [(run.config.seed, run.dataset, run.model) for run in runs]

    length = ["xpos", "learned", "relative_bias", "alibi", "nope", "rope", "crope"]
    horizon = ["rope", "crope", "halved", "lowrank"]
    assert reproduced(tmp_path, "length", "horizon", seeds=2) == 0
    of_length = [(seed, "tiny", model) for seed in (3, 4) for model in length]
    of_horizon = [
        (seed, dataset, model)
        for seed in (1, 2)
        for dataset in ("ptb", "tiny")
        for model in horizon
    ]
    assert sorted(listed(trained)) == sorted(of_length + of_horizon)
    assert listed(measured) == of_length
    assert {(run.scale, run.config.results_dir) for run in trained} == {("smoke", str(tmp_path))}
    assert reported == [{"results_dir": tmp_path, "scale": "smoke"}]
    # Seven models on Penn Treebank, of which `horizon` has trained two.
    assert reproduced(tmp_path, "schemes") == 0
    assert (len(trained), len(measured)) == (35, 14), "nothing is trained or measured twice"
    # At the scale that its file fixes a study joins the report of most runs.
    for scale, own in (("paper", None), ("smoke", "smoke")):
        assert reproduced(tmp_path, "paper_row", scale=scale) == 0
        assert reported[-1]["scale"] == own
        assert ("planned at scale paper" in capsys.readouterr().err) == (scale == "smoke")


def test_every_tokenizer_of_a_study_is_prepared(
    noted: SimpleNamespace, tmp_path: Path, monkeypatch
) -> None:
    expand = sweep.study_runs

    def two_sizes(*args: Any, **options: Any) -> list[Run]:
        runs = expand(*args, **options)
        tokenizer = TokenizerConfig("bpe", 300)
        return [*runs, replace(runs[0], config=replace(runs[0].config, tokenizer=tokenizer))]

    monkeypatch.setattr(sweep, "study_runs", two_sizes)
    assert reproduced(tmp_path, "pilot") == 0
    assert sorted(noted.prepared, key=str) == [(["ptb"], 300), (["ptb"], 4096)]
    trained = len(noted.trained)
    monkeypatch.setattr(
        sweep,
        "prepare",
        lambda corpora, tokenizer, **_: (
            {"ptb": ConfigError("too small")} if tokenizer.vocab_size == 300 else {}
        ),
    )
    assert reproduced(tmp_path, "pilot") == 1
    assert len(noted.trained) == 2 * trained - 1, "only the run that needs it is left out"


@pytest.mark.parametrize(
    ("problem", "value"),
    [
        ("status", "failed"),
        ("errors", {"wikitext2": DataError("corrupt")}),
        ("unmeasured", ["a length"]),
        ("invalid", ["a record"]),
    ],
)
def test_reproduce_ends_with_status_1_after_a_problem(
    problem: str, value: Any, noted: SimpleNamespace, tmp_path: Path
) -> None:
    setattr(noted, problem, value)
    assert reproduced(tmp_path, "length") == 1


def test_ctrl_c_does_not_end_a_server_that_still_starts() -> None:
    """The signal reaches the whole group, as from a terminal; then a process is forked."""
    code = """if True:
        import multiprocessing, os, signal
        from crope.runs.sweep import start_server
        signal.signal(signal.SIGINT, lambda *_: None)
        start_server()
        os.killpg(0, signal.SIGINT)
        process = multiprocessing.get_context("forkserver").Process(target=print, args=("forked",))
        process.start()
        process.join()
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True
    )
    assert (done.stdout, done.stderr) == ("forked\n", "")
