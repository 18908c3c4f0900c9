"""Sweeps: data first, then several runs at a time, each in a process: order, failures, kills,
other commands, GPUs, signals, and what is left on disk.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.util import get_temp_dir
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from crope.config import TokenizerConfig
from crope.errors import ConfigError, DataError, DataUnavailable, InvalidRecord, UserError
from crope.runs import sweep
from crope.runs.compose import Run, load_run
from crope.runs.run import Outcome, run_lock, stop_on_signal
from crope.runs.sweep import Plan, default_jobs, prepare, run_all, train_all
from crope.train import loop as trainer
from tests.conftest import toy_run


def toy_runs(folder: Path, count: int) -> list[Run]:
    return [toy_run(folder, f"seed={seed}") for seed in range(count)]


def note(run: Run, event: object) -> list[str]:
    """Adds a line to a file of the results folder; returns those that it had."""
    path = Path(run.config.results_dir) / "events"
    before = path.read_text().splitlines() if path.exists() else []
    with path.open("a") as file:
        file.write(f"{event}\n")
    return before


def events(folder: Path) -> list[str]:
    return (folder / "events").read_text().splitlines()


def wait_for(condition: Any) -> None:
    """Waits for at most a minute, which only a failure takes."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def work(run: Run) -> Outcome:
    """Stands in for `execute`: what happens depends on the seed."""
    note(run, run.config.seed)
    if run.config.seed == 1:
        signal.raise_signal(signal.SIGKILL)
    if run.config.seed == 2:
        raise UserError("no such luck")
    if run.config.seed == 3:
        raise RuntimeError("a bug")
    return Outcome(run.run_id, "complete", f"{run.config.runtime.threads} threads")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_or_is_killed_stops_no_other(jobs: int, tmp_path: Path) -> None:
    runs = toy_runs(tmp_path, 5)
    outcomes = {outcome.run_id: outcome for outcome in run_all(runs, jobs=jobs, work=work)}
    statuses = [outcomes[run.run_id].status for run in runs]
    assert statuses == ["complete", "failed", "failed", "failed", "complete"]
    assert "signal 9" in outcomes[runs[1].run_id].text
    assert "no such luck" in outcomes[runs[2].run_id].text


def test_runs_start_in_the_order_given(tmp_path: Path) -> None:
    list(run_all(toy_runs(tmp_path, 4), jobs=1, work=work))
    assert events(tmp_path) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("cores", "jobs", "threads"), [(8, 2, 4), (8, 3, 2), (1, 2, 1)])
def test_runs_share_the_cores(
    cores: int, jobs: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_cores", lambda: cores)
    (outcome,) = run_all(toy_runs(tmp_path, 1), jobs=jobs, work=work)
    assert outcome.text == f"{threads} threads"


def test_runs_of_another_command_are_left_for_last(tmp_path: Path) -> None:
    runs = [toy_run(tmp_path, f"seed={seed}") for seed in (0, 4, 5)]
    with run_lock(runs[0]):
        outcomes = run_all(runs, jobs=1, work=work)
        assert [next(outcomes).run_id, next(outcomes).run_id] == [runs[1].run_id, runs[2].run_id]
    assert next(outcomes).run_id == runs[0].run_id
    assert next(outcomes, None) is None


def work_beside_another_command(run: Run) -> Outcome:
    """The other command has the run of seed 0 at first, and completes it."""
    first_time = not note(run, run.config.seed)
    return Outcome(run.run_id, "busy" if first_time else "skipped", "")


def test_a_run_that_another_command_completes_meanwhile_has_one_outcome(tmp_path: Path) -> None:
    runs = toy_runs(tmp_path, 2)
    outcomes = list(run_all(runs, jobs=1, work=work_beside_another_command))
    assert events(tmp_path) == ["0", "1", "0"]
    assert [outcome.run_id for outcome in outcomes] == [runs[1].run_id, runs[0].run_id]
    assert [outcome.status for outcome in outcomes] == ["skipped", "skipped"]


def work_compiling(run: Run) -> Outcome:
    """Stands in for a run that compiles for 0.3 s, then writes its first line and trains for 0.3 s."""
    for event in ("started", "compiled"):
        note(run, f"{event} {run.config.seed}")
        time.sleep(0.3)
        run.path.mkdir(parents=True, exist_ok=True)
        (run.path / "metrics.jsonl").write_text('{"step": 0, "val/loss_nats": 8.0}\n')
    return Outcome(run.run_id, "complete", run.config.runtime.compile)


@pytest.mark.parametrize("compiled", ["true", "false"])
def test_the_first_run_of_a_shape_compiles_and_the_others_wait(
    compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds 0 and 1 share a shape, the run of seed 2 has another."""
    monkeypatch.setattr(trainer, "can_compile", lambda kind: True)
    runs = toy_runs(tmp_path, 2) + [toy_run(tmp_path, "seed=2", "model.d_model=32")]
    for run in runs:
        run.config.runtime.compile = compiled
    outcomes = list(run_all(runs, jobs=3, work=work_compiling))
    assert [outcome.text for outcome in outcomes] == [compiled] * 3
    order = events(tmp_path)
    waited = order.index("started 1") > order.index("compiled 0")
    assert waited == (compiled == "true")
    assert order.index("started 2") < order.index("compiled 0")


def work_with_a_gpu(run: Run) -> Outcome:
    """Ends when four runs have one."""
    note(run, run.config.seed)
    wait_for(lambda: len(events(Path(run.config.results_dir))) == 4)
    return Outcome(run.run_id, "complete", os.environ["CUDA_VISIBLE_DEVICES"])


def test_runs_are_spread_over_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_visible_gpus", lambda: ["3", "5"])
    outcomes = run_all(toy_runs(tmp_path, 4), jobs=4, work=work_with_a_gpu)
    assert sorted(outcome.text for outcome in outcomes) == ["3", "3", "5", "5"]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory of the GPUs in GiB, set by the test."""
    memory: list[int] = []

    def properties(number: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=memory[number] * 2**30)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(memory))
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return memory


@pytest.mark.parametrize(
    ("scales", "memory", "jobs"),
    [
        (["paper"], [140, 140], 8),  # four per GPU at most
        (["paper"], [24, 24], 4),  # logits of 16 x 1,024 tokens: 9.2 GiB
        (["paper"], [140, 24], 4),  # as many as the smaller one holds
        (["paper"], [8, 8], 2),  # too small, but a run of its own may fit
        (["quick"], [8, 8], 8),
        (["paper", "quick"], [24], 2),  # the larger run may come at any time
        (["quick", "paper"], [24], 2),
    ],
)
def test_runs_at_a_time_by_the_memory_of_the_gpus(
    scales: list[str], memory: list[int], jobs: int, gpus: list[int]
) -> None:
    gpus.extend(memory)
    assert default_jobs([load_run([f"scale={scale}"]) for scale in scales]) == jobs


def test_on_a_cpu_there_is_a_run_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_cores", lambda: 6)
    assert default_jobs([load_run(["runtime.device=cpu"])]) == 6


@pytest.mark.parametrize(("device", "kind"), [("auto", "cuda"), ("cpu", "cpu")])
def test_a_process_must_not_go_on_without_its_gpu(device: str, kind: str, gpus: list[int]) -> None:
    gpus.extend([24, 24])
    run = load_run([f"runtime.device={device}"])
    assert sweep._resolved(run, jobs=1).config.runtime.device == kind


@pytest.mark.parametrize(
    ("named", "visible"), [("", ["0", "1"]), ("5,7,", ["5", "7"]), ("7,5,6", ["7", "5"])]
)
def test_visible_gpus(
    named: str, visible: list[str], gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of CUDA_VISIBLE_DEVICES, of which torch sees two."""
    gpus.extend([24, 24])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert sweep._visible_gpus() == visible


def work_with_temporary_files(run: Run) -> Outcome:
    """Leaves a folder and ends, is killed or fails."""
    cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    folder = tempfile.mkdtemp()
    compiler = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True)
    if run.config.seed:
        return work(run)
    return Outcome(run.run_id, "complete", f"{folder}|{compiler.stdout.strip()}|{cache}")


def test_no_temporary_folder_is_left(tmp_path: Path) -> None:
    """Of a run that ends, is killed or fails, and of its processes. torch's cache of compiled code
    is that of all commands.
    """
    outcomes = list(run_all(toy_runs(tmp_path, 4), jobs=2, work=work_with_temporary_files))
    (texts,) = [outcome.text for outcome in outcomes if outcome.status == "complete"]
    folder, of_compiler, cache = map(Path, texts.split("|"))
    assert folder.parent == of_compiler.parent
    assert folder.parent.parent == Path(get_temp_dir())
    assert [path for path in Path(get_temp_dir()).iterdir() if path.is_dir()] == []
    assert Path(get_temp_dir()) not in cache.parents and cache.is_dir()


def work_forever(run: Run) -> Outcome:
    tempfile.mkdtemp()
    note(run, run.config.seed)
    threading.Event().wait()
    raise AssertionError


def test_a_killed_command_leaves_neither_processes_nor_temporary_folders(tmp_path: Path) -> None:
    code = f"""if True:
        from pathlib import Path
        from crope.runs.sweep import run_all
        from tests.runs.test_sweep import toy_runs, work_forever
        list(run_all(toy_runs(Path({str(tmp_path)!r}), 2), jobs=2, work=work_forever))
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    command = subprocess.Popen([sys.executable, "-c", code], env=environment)
    wait_for(lambda: (tmp_path / "events").exists() and len(events(tmp_path)) == 2)
    assert list(temporary.glob("pymp-*/*/*"))
    command.kill()
    command.wait()
    wait_for(lambda: not list(temporary.glob("pymp-*")))


def work_until_stopped(run: Run) -> Outcome:
    folder, seed = Path(run.config.results_dir), run.config.seed
    with stop_on_signal() as stop:
        (folder / str(seed)).touch()
        while not stop.requested() or (seed == 1 and (folder / "slow").exists()):
            time.sleep(0.01)
        (folder / f"saved {seed}").touch()
    return Outcome(run.run_id, "stopped", "saved")


def signal_when_started(folder: Path, number: signal.Signals) -> None:
    """Sends a signal to this process as soon as the runs of seeds 0 and 1 have started."""

    def wait_and_send() -> None:
        wait_for(lambda: (folder / "0").exists() and (folder / "1").exists())
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
    wait_for((tmp_path / "saved 1").exists)


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


def plan(folder: Path, *studies: str, scale: str = "smoke", **options: Any) -> Plan:
    return Plan(studies, scale, 1, folder, ["tracker=none", "runtime.jobs=3"], **options)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """No token file is made: `errors` by dataset are set by the test, `made` are (dataset, number
    of tokens).
    """
    data = SimpleNamespace(errors={}, made=[])

    def make_tokens(
        datasets: list[str], tokenizer: TokenizerConfig, **_: object
    ) -> dict[str, UserError]:
        data.made += [(name, tokenizer.vocab_size) for name in datasets]
        return {name: data.errors[name] for name in datasets if name in data.errors}

    monkeypatch.setattr(sweep, "make_tokens", make_tokens)
    return data


def datasets_of(plan: Plan) -> set[str]:
    return {run.dataset for run in plan.runs()}


def unavailable(folder: Path) -> dict[str, str]:
    return json.loads((folder / "unavailable.json").read_text())


@pytest.mark.parametrize("option", ["train.lr=1", "model=rope", "results_dir=x", "runtime.jobs=a"])
def test_a_plan_takes_no_option_that_is_wrong_or_changes_a_number(
    option: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=option.partition("=")[0]):
        Plan(["table1"], "smoke", 1, tmp_path, [option])


def test_a_misspelt_scale_is_the_plans(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^command line: no conf/scale/smok\.yaml"):
        plan(tmp_path, "table1", scale="smok")


def test_runs_of_a_plan(tmp_path: Path) -> None:
    results = tmp_path / "räs, a=b"
    runs = plan(results, "pilot").runs()
    assert {(run.scale, run.dataset, run.config.seed) for run in runs} == {("smoke", "ptb", 0)}
    assert {run.path.parent for run in runs} == {results / "runs"}
    assert {run.config.runtime.jobs for run in runs} == {3}
    assert "auto" not in {run.config.train.precision for run in runs}


def test_data_is_made_once_for_each_dataset(data: SimpleNamespace, tmp_path: Path) -> None:
    prepared, problems = prepare(plan(tmp_path, "table1", "table2"))
    assert data.made == [("pg19", 4096), ("ptb", 4096), ("wikitext2", 4096)]
    assert (datasets_of(prepared), problems) == ({"pg19", "wikitext2", "ptb"}, [])
    assert unavailable(tmp_path) == {}


def test_data_is_made_for_each_tokenizer_of_a_study(
    data: SimpleNamespace, own_conf: Path, tmp_path: Path
) -> None:
    axes = "{data: ptb, model: rope, tokenizer.vocab_size: '300,400'}"
    text = f"# @package _global_\nhydra: {{sweeper: {{params: {axes}}}}}\n"
    (own_conf / "study/vocabularies.yaml").write_text(text)
    prepare(plan(tmp_path, "vocabularies"))
    assert data.made == [("ptb", 300), ("ptb", 400)]


def test_complete_runs_need_no_data(
    data: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "is_complete", lambda path: "-ptb-" in path.name)
    prepare(plan(tmp_path, "base"))
    assert data.made == [("wikitext2", 4096)]


def test_tiny_takes_the_place_of_a_dataset_that_cannot_be_had(
    data: SimpleNamespace, tmp_path: Path
) -> None:
    data.errors["wikitext2"] = DataUnavailable("no network")
    prepared, problems = prepare(plan(tmp_path, "table1"))
    assert (datasets_of(prepared), problems) == ({"pg19", "ptb", "tiny"}, [])
    assert data.made[-1] == ("tiny", 4096)
    assert unavailable(tmp_path) == {"wikitext2": "no network"}


def test_runs_of_a_corrupt_dataset_are_left_out_and_a_problem(
    data: SimpleNamespace, tmp_path: Path
) -> None:
    data.errors["ptb"] = DataError("ptb: corrupt")
    prepared, problems = prepare(plan(tmp_path, "table1"))
    assert (datasets_of(prepared), problems) == ({"pg19", "wikitext2"}, ["ptb: corrupt"])
    assert unavailable(tmp_path) == {}


def test_a_dataset_that_is_not_the_papers_is_not_replaced(
    data: SimpleNamespace, tmp_path: Path
) -> None:
    data.errors["pg19_2books"] = DataUnavailable("no network")
    prepared, problems = prepare(plan(tmp_path, "levels", scale="paper"))
    assert (datasets_of(prepared), problems) == ({"pg19_5books", "pg19_14books"}, ["no network"])


def test_a_command_on_other_datasets_keeps_what_was_missing(
    data: SimpleNamespace, tmp_path: Path
) -> None:
    """WikiText-2 can be had now, PG-19 was not tried."""
    (tmp_path / "unavailable.json").write_text('{"wikitext2": "no", "pg19": "no"}')
    prepare(plan(tmp_path, "length"))
    assert unavailable(tmp_path) == {"pg19": "no"}


@pytest.mark.parametrize(("scale", "said"), [("paper", False), ("smoke", True)])
def test_runs_at_another_scale_than_the_planned_one_enter_no_number(
    scale: str, said: bool, data: SimpleNamespace, tmp_path: Path, capsys
) -> None:
    prepare(plan(tmp_path, "paper_row", scale=scale))
    assert ("paper_row is planned at scale paper" in capsys.readouterr().err) == said


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """No run is trained: the status of each by its seed is set by the test."""
    statuses: dict[int, str] = {}

    def train(runs: list[Run], *, jobs: int, show: object) -> Iterator[Outcome]:
        for run in runs:
            status = statuses[run.config.seed]
            yield Outcome(run.run_id, status, f"{status}, {jobs} at a time")

    monkeypatch.setattr(sweep, "run_all", train)
    return statuses


def test_every_run_that_is_neither_complete_nor_skipped_is_a_problem(
    ending: dict[int, str], tmp_path: Path, capsys
) -> None:
    ending |= {0: "complete", 1: "failed", 2: "skipped"}
    runs = [toy_run(tmp_path, f"seed={seed}", "runtime.jobs=3") for seed in range(3)]
    assert train_all(runs) == ["failed, 3 at a time"]
    assert capsys.readouterr().out.splitlines() == [
        "scale quick: 3 runs, 3 to train, 3 at a time",
        "complete, 3 at a time",
        "failed, 3 at a time",
        "skipped, 3 at a time",
    ]


def test_complete_runs_are_not_trained_again(
    ending: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(sweep, "is_complete", lambda path: True)
    assert train_all(toy_runs(tmp_path, 2)) == []
    assert capsys.readouterr().out == "2 runs, 0 to train\n"


def test_a_run_with_a_corrupt_record_is_tried_and_says_so(
    ending: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def corrupt(path: Path) -> bool:
        raise InvalidRecord(path, "corrupt")

    monkeypatch.setattr(sweep, "is_complete", corrupt)
    ending[0] = "failed"
    assert len(train_all(toy_runs(tmp_path, 1))) == 1
