"""Several runs at once. On a CPU, small models gain more from a run a core than from a step spread over the cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from crope.compose import Run
from crope.device import resolve_device
from crope.errors import UserError
from crope.execute import Outcome, execute
from crope.interrupt import Stopped, StopRequest, StopSignal

_stop: SharedStop | None = None  # in a worker process: set by the parent


class SharedStop:
    """The parent's StopRequest as a worker sees it. The worker ignores signals: a terminal sends them to both."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def signal_number(self) -> int | None:
        return self.value.value or None


def worker_count(run: Run) -> int:
    """One process a core on a CPU; one on a GPU."""
    if resolve_device(run.config.runtime.device).type == "cuda":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, run.config.runtime.threads))


def execute_all(runs: Sequence[Run], *, workers: int) -> Iterator[Outcome]:
    """The outcome of each run as it ends. Runs start in the order given.

    Raises Stopped where SIGINT or SIGTERM asks to stop, after the runs under way are saved.
    """
    with StopRequest() as stop:
        if workers == 1 or len(runs) < 2:
            yield from (_attempt(run, stop) for run in runs)
            return
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        shared = context.Value("i", 0)
        with _one_thread_each(), ProcessPoolExecutor(workers, context, _prepare_worker, (shared,)) as pool:
            pending: dict[Future[Outcome], Run] = {pool.submit(_work, run): run for run in runs}
            while pending:
                done, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    run = pending.pop(future)
                    try:
                        yield future.result()
                    except BrokenProcessPool:
                        text = f"{run.run_id}: a worker process was killed (out of memory?); the same command goes on"
                        yield Outcome(run.run_id, "failed", text)
                    except Exception as error:  # of the pipeline itself; the runs beside it go on
                        yield Outcome(run.run_id, "failed", f"{run.run_id}: {type(error).__name__}: {error}")
                if stop.signal_number is not None:
                    shared.value = stop.signal_number
                    pool.shutdown(cancel_futures=True)  # waits for the runs under way, which save and leave
                    raise Stopped(f"{len(pending)} runs left", stop.signal_number)


def _attempt(run: Run, stop: StopSignal) -> Outcome:
    """`execute`, with the user's mistakes as a failed outcome: the runs beside it go on."""
    try:
        return execute(run, stop=stop)
    except UserError as error:
        return Outcome(run.run_id, "failed", f"{run.run_id}: {error}")


def _work(run: Run) -> Outcome:
    assert _stop is not None
    try:
        return _attempt(run, _stop)
    except Stopped as stopped:  # a BaseException would end the worker's pool
        return Outcome(run.run_id, "stopped", f"{run.run_id}: {stopped}")


def _prepare_worker(shared: Any) -> None:
    global _stop
    _stop = SharedStop(shared)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def leave_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)  # a killed parent must not leave workers behind that hold the machine

    threading.Thread(target=leave_with_parent, daemon=True).start()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Worker processes inherit one OpenMP thread, so that they do not fight for the cores."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
