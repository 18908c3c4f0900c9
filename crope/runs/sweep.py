"""`make reproduce`: the runs of studies, several at a time, then the report.

Each run has a process of its own, started from a server that has imported torch: a process that is
killed costs its own run only (a ProcessPoolExecutor would lose every active run), and no memory is
left for the next run. Any number of these commands may share a results folder: a run's
lock shows whether a process trains it, its record whether it is complete.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from crope import paper
from crope.config import Config, TokenizerConfig
from crope.errors import (
    ConfigError,
    DataUnavailable,
    InvalidRecord,
    UserError,
    log_line,
    one_line,
    out_of_memory,
)
from crope.files import write_json
from crope.runs.compose import Run, load_run, quoted_override, resolve_precision
from crope.runs.prepare import prepare
from crope.runs.progress import SweepProgress, tail, track
from crope.runs.record import is_complete, read_record
from crope.runs.run import Outcome, execute, record_failure, stop_on_signal
from crope.runs.study import (
    TABLES,
    UNAVAILABLE,
    is_locked,
    planned_scale,
    study_runs,
    unavailable_datasets,
)
from crope.train.device import resolve_device
from crope.train.loop import compiles
from crope.train.losses import full_batch_size

RUNS_PER_GPU = 4  # several fill the gaps that one leaves: start-up, compilation, short kernels
EXTRAPOLATED = "length"  # the study whose runs are measured beyond their training length as well
POLL_SECONDS = 0.2


def reproduce(
    *,
    scale: str,
    seeds: int | None,
    results_dir: Path,
    studies: Sequence[str] = TABLES,
    overrides: Sequence[str],
) -> int:
    """Trains every run of the studies at one scale that is not complete, then writes the report.

    Returns the exit status: 1 if a run or its extrapolation failed, or if data or a record is
    corrupt. Unavailable data is not a failure: results_dir/unavailable.json says why, and `tiny` is
    added.

    seeds       of each study, as in `study.first_seeds`
    overrides   of tracker and runtime
    """
    for text in overrides:
        if not text.startswith(("tracker=", "tracker.", "runtime=", "runtime.")):
            raise ConfigError(
                f"'{text}': only tracker and runtime can be set here; scripts/train.py accepts every key"
            )
    for study in studies:
        if (planned := planned_scale([study])) not in (None, scale):
            log_line(
                f"{study} is planned at scale {planned}: runs at {scale} enter none of its numbers"
            )
    common = [*overrides, quoted_override("results_dir", results_dir)]
    config = load_run([f"scale={scale}", *common]).config

    datasets: list[str] | None = None

    def expand(studies: Sequence[str]) -> tuple[list[Run], list[Run]]:
        """The runs of studies on `datasets`, and those of them that are not complete."""
        runs = study_runs(studies, scale=scale, seeds=seeds, datasets=datasets, overrides=common)
        runs = [resolve_precision(run) for run in runs]
        return runs, [run for run in runs if not _is_complete(run)]

    runs, todo = expand(studies)
    tried = {run.dataset for run in runs}
    # Token files are made once here; otherwise every process would wait for the first one.
    data_dir = Path(config.data_dir)
    failed = _prepare(todo, data_dir)
    missing = {
        name: str(error)
        for (name, *_), error in failed.items()
        if name in paper.DATASET_LABELS and isinstance(error, DataUnavailable)
    }
    if missing:
        datasets = [name for name in (*paper.DATASET_LABELS, "tiny") if name not in missing]
        runs, todo = expand(studies)
        failed |= _prepare([run for run in todo if run.dataset == "tiny"], data_dir)
    known = unavailable_datasets(results_dir).items()  # an earlier command may have tried others
    unavailable = {name: why for name, why in known if name not in tried}
    write_json(results_dir / UNAVAILABLE, unavailable | missing)
    jobs = config.runtime.jobs or default_jobs(todo, config.runtime.device)
    print(f"scale {scale}: {len(runs)} runs, {len(todo)} to train, {jobs} at a time", flush=True)
    problems = [str(error) for (name, *_), error in failed.items() if name not in missing]
    todo = [run for run in todo if (run.dataset, *astuple(run.config.tokenizer)) not in failed]
    with SweepProgress(todo) as progress:
        for outcome in run_all(todo, jobs=jobs, show=progress.update):
            progress.end(outcome.run_id, outcome.text, stopped=outcome.status == "stopped")
            if outcome.status not in ("complete", "skipped"):
                problems.append(outcome.text)
    if EXTRAPOLATED in studies:
        measured, incomplete = expand([EXTRAPOLATED])
        problems += _extrapolate([run for run in measured if run not in incomplete])
    from crope.report.page import build_report

    # Studies at the scale that their files fix join the report of the scale with most runs.
    joins = all(planned_scale([study]) == scale for study in studies)
    invalid = build_report(results_dir=results_dir, scale=None if joins else scale)
    if problems:
        print(f"{len(problems)} failed:", *problems, sep="\n  ", flush=True)
    return 1 if problems or invalid else 0


def _prepare(runs: Sequence[Run], data_dir: Path) -> dict[tuple[Any, ...], UserError]:
    """Makes the token files of the runs; the error of each dataset and tokenizer, (dataset, name,
    vocab_size).
    """
    datasets: dict[tuple[Any, ...], set[str]] = {}
    for run in runs:
        datasets.setdefault(astuple(run.config.tokenizer), set()).add(run.dataset)
    failed: dict[tuple[Any, ...], UserError] = {}
    for key, names in datasets.items():
        errors = prepare(sorted(names), TokenizerConfig(*key), data_dir=data_dir)
        failed |= {(name, *key): error for name, error in errors.items()}
    return failed


class Worker(NamedTuple):
    """A process that trains a run; its slot, from 0 to jobs - 1, selects the GPU."""

    process: Any
    run: Run
    slot: int


def run_all(
    runs: Sequence[Run],
    *,
    jobs: int,
    work: Callable[[Run], Outcome] = execute,
    show: Callable[[Sequence[Run]], None] = lambda active: None,
) -> Iterator[Outcome]:
    """The outcome of each run as it ends, `jobs` at a time, started in the order given. `show` is
    called often with those that run now.

    Runs that another command trains are left for last. After SIGINT, SIGTERM or SIGHUP every
    process saves its run; then KeyboardInterrupt is raised. A second signal ends all of them at
    once.
    """
    context = multiprocessing.get_context("forkserver")
    start_server()
    waiting = [_resolved(run, jobs) for run in runs]
    workers: dict[Any, Worker] = {}  # by the connection that receives the outcome
    gpus = _visible_gpus()
    stopping = False
    with stop_on_signal() as stop, ExitStack() as stack:

        def stop_all() -> None:
            """Once, because a process that gets a second signal ends without saving."""
            nonlocal stopping
            if not stopping:
                for worker in workers.values():
                    worker.process.terminate()
            stopping = True

        stack.callback(stop_all)  # also after an error in this process
        while workers or (waiting and not stop.requested()):
            while len(workers) < jobs and not stop.requested():
                run = _next_run(waiting, [worker.run for worker in workers.values()])
                if run is None:
                    break
                waiting.remove(run)
                slot = min(set(range(jobs)) - {worker.slot for worker in workers.values()})
                gpu = gpus[slot % len(gpus)] if gpus else None
                receiver, sender = context.Pipe(duplex=False)
                arguments = (run, sender, gpu, work)
                process = context.Process(target=_run_in_process, args=arguments)
                process.start()
                sender.close()  # so that the end of the process is the end of the pipe
                workers[receiver] = Worker(process, run, slot)
            if stop.requested():
                stop_all()
            show([worker.run for worker in workers.values()])
            for ready in wait(list(workers), timeout=POLL_SECONDS):
                worker = workers.pop(ready)
                outcome = _receive(ready, worker, stopping)
                if outcome.status == "busy":
                    waiting.append(worker.run)
                else:
                    yield outcome
        if stop.requested():
            raise KeyboardInterrupt(stop.signal)


def start_server() -> None:
    """Starts the server that processes are forked from. It imports once what would take each process
    a second; Ctrl-C reaches the server while it imports and must not end it.
    """
    forkserver.set_forkserver_preload(["crope.runs.run", "torch._dynamo"])
    resource_tracker.ensure_running()  # unblocks SIGINT
    signals = {signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # inherited; it is ended by a closed pipe
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def _run_in_process(
    run: Run, sender: Connection, gpu: str | None, work: Callable[[Run], Outcome]
) -> None:
    """Main function of a run's process."""
    os.setpgrp()  # Ctrl-C in a terminal reaches the command alone, which passes it on once
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        sender.send(work(run))
    except UserError as error:
        sender.send(Outcome(run.run_id, "failed", f"{run.run_id}: {error}"))


def _exit_with_parent() -> None:
    """A killed command must not leave processes that keep the machine busy."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _receive(receiver: Any, worker: Worker, stopping: bool) -> Outcome:
    """What a process sent before it ended, or how it ended."""
    run, process = worker.run, worker.process
    with suppress(EOFError):
        outcome: Outcome = receiver.recv()
        process.join()
        return outcome
    process.join()
    if stopping:  # before it started to train
        return Outcome(run.run_id, "stopped", f"{run.run_id}: stopped")
    how = f"ended with exit status {process.exitcode}"
    if process.exitcode < 0:
        how = f"was killed by signal {-process.exitcode} (out of memory?)"
    message = f"its process {how}; run the same command again to continue from the last checkpoint"
    record_failure(run, message)
    return Outcome(run.run_id, "failed", f"{run.run_id}: {message}")


def _resolved(run: Run, jobs: int) -> Run:
    """The run with its share of the cores (on small models, one run per core is faster than one
    step on all cores), and with its device and `compile=auto` resolved: a process that lost the GPU
    must not go on without it. One line says what a compiler lacks.
    """
    device = resolve_device(run.config.runtime.device)
    runtime = replace(
        run.config.runtime,
        device=device.type,
        threads=run.config.runtime.threads or max(1, _cores() // jobs),
        compile=str(compiles(run.config, device)).lower(),
    )
    return replace(run, config=replace(run.config, runtime=runtime))


def _next_run(waiting: Sequence[Run], active: Sequence[Run]) -> Run | None:
    """The first run that no other command trains and whose compiled code nobody is making.

    The first active run of a shape compiles it into torch's cache on disk, until it has written its
    first line of metrics; another one that starts meanwhile would compile the same code again.
    """
    compiling = [
        _shape(run)
        for run in active
        if run.config.runtime.compile == "true" and not tail(run.path / "metrics.jsonl")
    ]
    for run in waiting:
        if _shape(run) not in compiling and not is_locked(run):
            return run
    return None


def _shape(run: Run) -> tuple[Any, ...]:
    """What compiled code depends on."""
    train = run.config.train
    sizes = (train.batch_size, train.seq_len, run.config.tokenizer.vocab_size, train.precision)
    return (*astuple(run.config.model), *sizes)


def default_jobs(runs: Sequence[Run], device: str) -> int:
    """Runs at a time: one per CPU core; on each GPU as many as its memory holds, at most
    RUNS_PER_GPU.
    """
    if resolve_device(device).type == "cpu":
        return _cores()
    gpus = range(torch.cuda.device_count())
    memory = min(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus)
    largest = max((_gpu_bytes(run.config) for run in runs), default=1)
    per_gpu = min(RUNS_PER_GPU, memory // largest)
    return len(gpus) * max(1, per_gpu)


def _gpu_bytes(config: Config) -> int:
    """Upper estimate of the GPU memory of a run.

    Bytes: 12 per logit (three float32 copies in an eager backward pass of the loss; 8 in a full
    validation, whose batches may be larger), about 100 per activation of a layer, 16 per weight
    with its gradient and AdamW's two moments; and 1 GiB for CUDA's context and libraries.
    """
    model, vocab_size = config.model, config.tokenizer.vocab_size
    tokens = config.train.batch_size * config.train.seq_len
    validated = full_batch_size(config) * config.train.seq_len
    logits = max(12 * tokens, 8 * validated) * vocab_size
    activations = 100 * tokens * model.n_layers * model.d_model
    weights = model.d_model * (vocab_size + 12 * model.n_layers * model.d_model)
    return logits + activations + 16 * weights + 2**30


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _visible_gpus() -> list[str]:
    """Those of CUDA_VISIBLE_DEVICES that exist, or the numbers of the GPUs."""
    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def _is_complete(run: Run) -> bool:
    try:
        return is_complete(run.path)
    except InvalidRecord:  # `execute` raises it again, as this run's failure
        return False


def _extrapolate(runs: Sequence[Run]) -> list[str]:
    """Writes extrapolation.json of each run; returns one line per run that could not be measured."""
    from crope.runs.extrapolate import extrapolate

    problems = []
    for run in track(runs, "extrapolation"):
        try:
            extrapolate(read_record(run.path))
        except Exception as error:
            if not (isinstance(error, UserError) or out_of_memory(error)):
                raise
            problems.append(f"{run.run_id}: {one_line(error)}")
    return problems
