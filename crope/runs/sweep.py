"""The runs of studies, several at a time, for `make reproduce`.

Each run has its own process, forked from a server that has imported torch: a killed process costs
only its own run, while a ProcessPoolExecutor would lose every active one. Any number of these
commands may share a results folder.
"""

import multiprocessing
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from crope.data.tokens import make_tokens
from crope.errors import (
    ConfigError,
    DataUnavailable,
    InvalidRecord,
    StorageError,
    UserError,
    log_line,
)
from crope.machine import usable_cores
from crope.plan.compose import Run, load_run, quoted_override
from crope.plan.study import OFFLINE, TABLES, load_study, study_runs
from crope.records.locks import is_locked
from crope.records.sources import code_note
from crope.records.store import is_complete, read_described
from crope.runs.progress import RunProgress
from crope.runs.run import Outcome, by_other_code, execute, record_failure, text_errors
from crope.runs.signals import stop_on_signal
from crope.train.device import compiles, resolve_device

POLL_SECONDS = 0.2
LONGEST_FOLDER = 60  # of a temporary folder: the path of a socket in it fits into 108 bytes


@dataclass(frozen=True)
class Plan:
    """The runs that are asked for. Raises ConfigError for an option that is wrong or would change a
    number.

    seeds       of each study, as in `Study.first_seeds`
    overrides   of tracker and runtime
    without     datasets that cannot be had, as in `study.study_runs`
    """

    studies: Sequence[str]
    scale: str
    seeds: int | None
    results_dir: Path
    overrides: Sequence[str] = ()
    without: Collection[str] = ()

    def __post_init__(self) -> None:
        for text in self.overrides:
            if not text.startswith(("tracker=", "tracker.", "runtime=", "runtime.")):
                raise ConfigError(
                    f"'{text}': only tracker and runtime can be set here; scripts/train.py accepts"
                    " every key"
                )
        # Raises for a wrong value now, not after the data was fetched.
        load_run([f"scale={self.scale}", *self.overrides])

    def runs(self) -> list[Run]:
        """Lists the runs, complete ones too, seeds outermost."""
        return study_runs(
            self.studies,
            scale=self.scale,
            seeds=self.seeds,
            without=self.without,
            overrides=[*self.overrides, quoted_override("results_dir", self.results_dir)],
        )


def with_data(plan: Plan) -> tuple[Plan, list[str]]:
    """Returns the plan of the runs whose data is there, and a line for each failed dataset.

    Token files are made here; otherwise every process would wait for the first one. If no
    dataset of Tables 1 and 2 can be had, the study OFFLINE takes their place.
    """
    errors: dict[str, UserError] = {}
    # That the tables lack a dataset which nobody can have here is no failure, if others are left.
    needed = [load_study(study).axes["data"] for study in plan.studies if study not in TABLES]
    while failed := _make_tokens(plan.runs()):
        errors |= failed
        plan = replace(plan, without=list(errors))
        if not plan.runs() and set(TABLES) & set(plan.studies):
            log_line(f"none of the paper's datasets can be had: {OFFLINE} takes their place")
            plan = replace(plan, studies=[OFFLINE])
    problems = []
    for name, error in errors.items():
        if not isinstance(error, DataUnavailable) or name in chain(*needed) or not plan.runs():
            problems.append(str(error))
    return plan, problems


def _make_tokens(runs: Sequence[Run]) -> dict[str, UserError]:
    """Makes the token files that incomplete runs need; returns the errors by dataset, also of one
    whose complete runs are of text from another source.
    """
    todo = {run.run_id: run for run in incomplete(runs)}
    errors = text_errors(run for run in runs if run.run_id not in todo)
    asked = {(run.dataset, str(run.config.tokenizer)): run.config for run in todo.values()}
    for config in asked.values():
        if config.data.corpus in errors:
            continue
        errors |= make_tokens([config.data], config.tokenizer, data_dir=Path(config.data_dir))
    return errors


def incomplete(runs: Sequence[Run]) -> list[Run]:
    """Selects the incomplete runs, corrupt ones too: `execute` reports these. With `runtime.again`
    also those of other code.
    """
    found = []
    for run in runs:
        with suppress(InvalidRecord):
            again = run.config.runtime.again and by_other_code(run.path)
            if is_complete(run.path) and not again:
                continue
        found.append(run)
    return found


def train_all(runs: Sequence[Run]) -> list[str]:
    """Trains the incomplete runs; returns a line for each that failed."""
    todo = incomplete(runs)
    counts = f"{len(runs)} runs, {len(todo)} to train"
    notes = Counter(code_note(read_described(run.path)) for run in runs)
    for note in filter(None, notes):
        counts += f"\n{notes[note]} of them: {note}"
    if not todo:
        print(counts, flush=True)
        return []
    jobs = todo[0].config.runtime.jobs or default_jobs(todo)
    print(f"scale {todo[0].scale}: {counts}, {jobs} at a time", flush=True)
    problems = []
    with RunProgress(todo) as progress:
        for outcome in run_all(todo, jobs=jobs, show=progress.poll):
            print(outcome.text, flush=True)
            progress.end(outcome.run_id)
            if outcome.status not in ("complete", "skipped"):
                problems.append(outcome.text)
    return problems


class Worker(NamedTuple):
    """A process that trains a run, on this GPU if there are any."""

    process: Any
    run: Run
    gpu: str | None


class Pool:
    """The processes that train runs now, at most `jobs`, spread over the GPUs."""

    def __init__(self, jobs: int, work: Callable[[Run], Outcome]) -> None:
        self.work, self.stopping = work, False
        self.workers: dict[Any, Worker] = {}  # by the connection that receives the outcome
        gpus: Sequence[str | None] = _visible_gpus() or [None]
        self.free = list(islice(cycle(gpus), jobs))  # the GPU of each process that may start
        start_server()

    def start(self, run: Run) -> None:
        context = multiprocessing.get_context("forkserver")
        receiver, sender = context.Pipe(duplex=False)
        gpu = self.free.pop(0)
        process = context.Process(target=_run_in_process, args=(run, sender, gpu, self.work))
        process.start()
        sender.close()  # so that the end of the process is the end of the pipe
        self.workers[receiver] = Worker(process, run, gpu)

    def ended(self) -> Iterator[tuple[Run, Outcome | StorageError]]:
        """Yields those that end within POLL_SECONDS."""
        for ready in wait(list(self.workers), timeout=POLL_SECONDS):
            worker = self.workers.pop(ready)
            self.free.append(worker.gpu)
            yield worker.run, _receive(ready, worker, self.stopping)

    def close(self) -> None:
        """Asks every process to save its run; once, because a second signal ends it unsaved."""
        if not self.stopping:
            for worker in self.workers.values():
                worker.process.terminate()
        self.stopping = True


def run_all(
    runs: Sequence[Run],
    *,
    jobs: int,
    work: Callable[[Run], Outcome] = execute,
    show: Callable[[Sequence[Run]], None] = lambda active: None,
) -> Iterator[Outcome]:
    """Trains the runs in order, `jobs` at a time; yields the outcome of each as it ends. `show` is
    called often with the active runs.

    Runs that another command trains come last. After a signal or StorageError no other run starts
    and every process saves its own; then KeyboardInterrupt or that error is raised.
    """
    waiting = [_resolved(run, jobs) for run in runs]
    fault, told = None, False
    # Closed also after an error in this process, such as that of a terminal that is gone.
    with stop_on_signal() as stop, closing(Pool(jobs, work)) as pool:
        while pool.workers or (waiting and not pool.stopping):
            if stop.requested():
                pool.close()
            while pool.free and not pool.stopping and (run := _next_run(waiting)):
                waiting.remove(run)
                pool.start(run)
            if waiting and not (pool.workers or pool.stopping or told):
                told = True
                log_line(f"waiting for runs that another command trains: {waiting[0].run_id}, ...")
            show([worker.run for worker in pool.workers.values()])
            for run, outcome in pool.ended():
                if isinstance(outcome, StorageError):  # the files of other runs lie there too
                    fault = outcome
                    pool.close()
                elif outcome.status == "busy":
                    waiting.append(run)
                else:
                    yield outcome
    if fault is not None:
        raise fault
    if stop.requested():
        raise KeyboardInterrupt(stop.signal)


def start_server() -> None:
    """Starts the server that processes are forked from. It imports once what would take each
    process a second; Ctrl-C during the import must not end the server.
    """
    forkserver.set_forkserver_preload(["crope.runs.run", "torch._dynamo"])
    resource_tracker.ensure_running()  # unblocks SIGINT
    if len(tempfile.gettempdir()) > LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"
    # Inherited; the server is ended by a closed pipe.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _run_in_process(
    run: Run, sender: Connection, gpu: str | None, work: Callable[[Run], Outcome]
) -> None:
    """Does the work of a run's process, and sends its outcome."""
    os.setpgrp()  # Ctrl-C in a terminal reaches the command alone, which passes it on once
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        sender.send(work(run))
    except StorageError as error:
        sender.send(error)  # pickled: its message is all that it holds
    except UserError as error:
        sender.send(Outcome(run.run_id, "failed", f"{run.run_id}: {error}"))


def _exit_with_parent() -> None:
    """Ends this process with the command: a killed one must not keep the machine busy."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # returns when it has ended, in whatever way
    os._exit(1)


def _receive(receiver: Any, worker: Worker, stopping: bool) -> Outcome | StorageError:
    """Returns what a process sent before it ended, or how it ended."""
    run, process = worker.run, worker.process
    outcome: Outcome | StorageError | None = None
    with suppress(EOFError):
        outcome = receiver.recv()
    process.join()
    if outcome is not None:
        return outcome
    if stopping:  # before it started to train
        return Outcome(run.run_id, "stopped", f"{run.run_id}: stopped")
    how = f"ended with exit status {process.exitcode}"
    if process.exitcode < 0:
        how = f"was killed by signal {-process.exitcode} (out of memory?)"
    message = f"its process {how}; run the same command again to continue from the last checkpoint"
    record_failure(run, message)  # which the process could not write itself
    return Outcome(run.run_id, "failed", f"{run.run_id}: {message}")


def _resolved(run: Run, jobs: int) -> Run:
    """Gives a run its share of the cores (one run per core is faster than one step on all cores),
    and resolves its device and `compile=auto`: a process that lost the GPU must not go on without
    it.
    """
    device = resolve_device(run.config.runtime.device)
    runtime = replace(
        run.config.runtime,
        device=device.type,
        threads=run.config.runtime.threads or max(1, usable_cores() // jobs),
        compile=str(compiles(run.config, device)).lower(),
    )
    return replace(run, config=replace(run.config, runtime=runtime))


def _next_run(waiting: Sequence[Run]) -> Run | None:
    """Returns the first run that no other command trains."""
    return next((run for run in waiting if not is_locked(run.path)), None)


def default_jobs(runs: Sequence[Run]) -> int:
    """Returns the number of jobs: one per GPU, or per usable CPU core."""
    if resolve_device(runs[0].config.runtime.device).type == "cpu":
        return usable_cores()
    return torch.cuda.device_count()


def _visible_gpus() -> list[str]:
    """Lists those of CUDA_VISIBLE_DEVICES that exist, or the numbers of the GPUs."""
    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]
