"""A process that makes training steps when asked: what one sets, threads or allocator, touches no other."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import resource
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from crope.peers import Step

WARM_UP = 5
STEPS = {"cpu": 4, "cuda": 20}  # of a worker's turn


class WorkerFailed(Exception):
    """A contender's process ended before its time."""


class Worker:
    """A process of its own that makes steps when asked.

    `build` is called there and returns the step; it must be picklable.
    """

    def __init__(self, label: str, build: Callable[[], Step], device: torch.device) -> None:
        self.label, self.first_step_s = label, math.nan
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        context.Process(target=_serve, args=(theirs, build, device), daemon=True).start()
        theirs.close()

    def await_first_step(self) -> None:
        """Waits until it has been built and warmed up; sets the seconds to its first step."""
        self.connection.send("begin")
        self.first_step_s = self.answer()

    def ask(self, steps: int) -> None:
        """Has it make so many steps; `answer` gives the seconds of each, on a GPU those of the turn's mean step."""
        self.connection.send(steps)

    def answer(self) -> Any:
        try:
            found = self.connection.recv()
        except EOFError:
            raise WorkerFailed(f"{self.label}: its process ended") from None
        if isinstance(found, Exception):
            raise WorkerFailed(f"{self.label}: {' '.join(str(found).split())[:200]}")
        return found

    def close(self) -> float:
        """Ends it; returns its peak memory in GiB (GPU memory on a GPU)."""
        self.ask(0)
        return self.answer()


def _serve(connection: Connection, build: Callable[[], Step], device: torch.device) -> None:
    connection.recv()
    began = time.perf_counter()
    try:
        step = build()
        step()
        wait(device)
        first = time.perf_counter() - began
        for _ in range(WARM_UP):
            step()
        wait(device)
    except Exception as error:
        traceback.print_exc()
        connection.send(RuntimeError(f"{type(error).__name__}: {error}"))
        return
    connection.send(first)
    while count := connection.recv():
        marks = [time.perf_counter()]
        for _ in range(count):
            step()
            if device.type == "cpu":
                marks.append(time.perf_counter())
        if device.type == "cuda":  # waited for once: training does not wait for its steps either
            wait(device)
            marks.append(marks[0] + (time.perf_counter() - marks[0]) / count)
        connection.send([end - begin for begin, end in itertools.pairwise(marks)])
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**30
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
    connection.send(peak)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
