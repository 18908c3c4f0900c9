"""Several runs at once, in this process and among any number of others that share the results folder.

On a CPU, small models gain more from a run a core than from a step spread over the cores.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

from crope.compose import Run
from crope.device import resolve_device
from crope.errors import StorageError, UserError
from crope.execute import Outcome, execute, record_death
from crope.interrupt import Stopped, StopRequest, StopSignal
from crope.lock import is_taken

POLL_S = 0.2  # how often runs of other processes, and requests to stop, are looked at


class SharedStop:
    """The parent's StopRequest as a worker sees it. The worker ignores signals: a terminal sends them to both."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def signal_number(self) -> int | None:
        return self.value.value or None


def worker_count(run: Run) -> int:
    """runtime.jobs; by default one process a core on a CPU, one on a GPU."""
    if run.config.runtime.jobs:
        return run.config.runtime.jobs
    if resolve_device(run.config.runtime.device).type == "cuda":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, run.config.runtime.threads))


def execute_all(runs: Sequence[Run], *, workers: int) -> Iterator[Outcome]:
    """The outcome of each run as it ends. Runs start in the order given, those that other processes train come last:
    nobody waits for a run while another is free.

    Raises Stopped where SIGINT or SIGTERM asks to stop, after the runs under way are saved, and StorageError where the
    results folder cannot be written to.
    """
    waiting, since, saved = list(runs), time.time(), []
    with StopRequest() as stop, _pool(min(workers, len(runs)), stop, since) as pool:
        while waiting or pool.busy():
            while waiting and stop.signal_number is None and pool.has_room():
                run = next((run for run in waiting if not is_taken(run.path)), None)
                if run is None:
                    break
                waiting.remove(run)
                pool.start(run)
            for run, outcome in pool.wait():
                if outcome.status in ("busy", "stopped"):
                    waiting.append(run)
                    saved += [outcome.text] if outcome.status == "stopped" else []
                elif outcome.status == "blocked":
                    raise StorageError(f"{outcome.text} ({len(waiting) + pool.busy()} runs not begun or not finished)")
                else:
                    yield outcome
            if stop.signal_number is not None and not pool.busy():
                raise Stopped("; ".join([*saved, f"{len(waiting)} runs left"]), stop.signal_number)


class _Here:
    """Runs one after another in this process."""

    def __init__(self, stop: StopSignal, since: float) -> None:
        self.stop, self.since = stop, since
        self.run: Run | None = None

    def has_room(self) -> bool:
        return self.run is None

    def busy(self) -> int:
        return int(self.run is not None)

    def start(self, run: Run) -> None:
        self.run = run

    def wait(self) -> list[tuple[Run, Outcome]]:
        if self.run is None:
            time.sleep(POLL_S)
            return []
        run, self.run = self.run, None
        return [(run, _attempt(run, self.stop, self.since))]


class _Processes:
    """Worker processes that are given a run at a time; one that dies takes its run with it and no other."""

    def __init__(self, count: int, stop: StopSignal, since: float) -> None:
        # Forked from a process that has imported torch and no more: the threads of this one would not survive a fork.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["crope.preload"])
        self.stop, self.since, self.shared = stop, since, self.context.Value("i", 0)
        self.idle: list[_Worker] = []
        self.at_work: dict[Connection, tuple[_Worker, Run]] = {}
        self.count = count

    def has_room(self) -> bool:
        return len(self.at_work) < self.count

    def busy(self) -> int:
        return len(self.at_work)

    def start(self, run: Run) -> None:
        worker = self.idle.pop() if self.idle else _Worker(self.context, self.shared, self.since)
        worker.connection.send(run)
        self.at_work[worker.connection] = (worker, run)

    def wait(self) -> list[tuple[Run, Outcome]]:
        if self.stop.signal_number is not None:
            self.shared.value = self.stop.signal_number
        if not self.at_work:
            time.sleep(POLL_S)
        ended = []
        for connection in wait(list(self.at_work), timeout=POLL_S):
            assert isinstance(connection, Connection)
            worker, run = self.at_work.pop(connection)
            try:
                ended.append((run, connection.recv()))
                self.idle.append(worker)
            except (EOFError, OSError):
                ended.append((run, _dead(run, worker)))
        return ended

    def close(self) -> None:
        """Ends the workers; one that still has a run saves it first."""
        self.shared.value = self.shared.value or signal.SIGTERM
        for worker in [*self.idle, *(worker for worker, _ in self.at_work.values())]:
            worker.connection.close()
            worker.process.join()


class _Worker:
    def __init__(self, context: Any, shared: Any, since: float) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, shared, since))
        self.process.start()
        theirs.close()


@contextmanager
def _pool(workers: int, stop: StopSignal, since: float) -> Iterator[_Here | _Processes]:
    if workers < 2:
        yield _Here(stop, since)
        return
    with _one_thread_each():
        pool = _Processes(workers, stop, since)
        try:
            yield pool
        finally:
            pool.close()


def _dead(run: Run, worker: _Worker) -> Outcome:
    worker.process.join()
    code = worker.process.exitcode or 0
    how = f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
    message = f"its process was {how} (out of memory?); the same command goes on from the last checkpoint"
    record_death(run, message)
    return Outcome(run.run_id, "failed", f"{run.run_id}: {message}")


def _attempt(run: Run, stop: StopSignal, since: float) -> Outcome:
    """`execute`, with whatever ends it as an outcome: the runs beside it go on."""
    try:
        return execute(run, stop=stop, since=since)
    except StorageError as error:
        return Outcome(run.run_id, "blocked", str(error))
    except UserError as error:
        return Outcome(run.run_id, "failed", f"{run.run_id}: {error}")
    except Stopped as stopped:
        return Outcome(run.run_id, "stopped", f"{run.run_id} {stopped.where}")
    except Exception as error:  # of the pipeline itself
        return Outcome(run.run_id, "failed", f"{run.run_id}: {type(error).__name__}: {error}")


def _serve(connection: Connection, shared: Any, since: float) -> None:
    """A worker's life: runs come in, outcomes go out, until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def leave_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)  # a killed parent must not leave workers behind that hold the machine

    threading.Thread(target=leave_with_parent, daemon=True).start()
    stop = SharedStop(shared)
    while True:
        try:
            run = connection.recv()
        except EOFError:
            return
        connection.send(_attempt(run, stop, since))


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
