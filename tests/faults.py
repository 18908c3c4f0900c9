"""Kills real runs at random moments, lets them go on, compares bits.

A run is a process of its own. It tells through a byte of shared memory what it is doing; a file layer that writes in
small pieces, slowly, makes the moments inside a write long enough to be hit. The parent waits for a moment of the kind
that was hit least so far, a random while longer, and sends SIGKILL; the byte then says where the run really died.
"""

from __future__ import annotations

import hashlib
import mmap
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crope import checkpoint, execute, record, trainer
from crope.compose import Run, load_run
from crope.interrupt import Unstoppable
from tests.conftest import TOY_OVERRIDES, make_toy_tokens

PHASES = ("between", "training step", "checkpoint write", "record append", "summary write")
BETWEEN, STEP, CHECKPOINT, APPEND, SUMMARY = range(len(PHASES))
PIECES, PAUSE_S = 8, 0.001  # of one write
LAST_OCCURRENCE = {STEP: 11, CHECKPOINT: 3, APPEND: 7, SUMMARY: 1}  # of each phase in the toy run of 12 steps
MUTANTS = ("checkpoint without rename", "resumes one step late")
PATIENCE_S = 60.0


@dataclass
class Tally:
    """What came of it: kills by phase, runs that never completed, runs that ended in other bits, torn files."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    lost: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)

    def table(self) -> str:
        lines = [f"{name:18} {self.kills[name]:5} kills" for name in PHASES]
        lines += [f"{'in all':18} {self.kills.total():5} kills of {self.runs} runs"]
        lines += [f"lost runs {len(self.lost)}, differing bits {len(self.differing)}, torn files {len(self.torn)}"]
        return "\n".join([*lines, *self.lost, *self.differing, *self.torn])


def torment(kills: int, folder: Path, *, seed: int, mutant: str = "") -> Tally:
    """Starts runs and kills each several times until `kills` in all; lets the last one end."""
    random, tally = np.random.default_rng(seed), Tally()
    while tally.kills.total() < kills:
        number = tally.runs
        options = [f"seed={number}", f"model={('rope', 'crope')[number % 2]}", "model.dropout=0.1"]
        whole = _run(folder / f"whole-{number}", options)
        _attempt(whole, "").join()
        broken = _run(folder / f"broken-{number}", options)
        for _ in range(random.integers(4, 12)):
            if tally.kills.total() < kills and not _finished(broken):
                _kill_once(broken, mutant, tally, random)
                tally.torn += torn_files(broken.path)
        last = _attempt(broken, mutant)
        last.join()
        tally.runs += 1
        if last.process.exitcode != 0 or not _finished(broken):
            tally.lost.append(f"{broken.run_id}: {last.error()}")
        elif difference := first_difference(whole.path, broken.path):
            tally.differing.append(f"{broken.run_id}: {difference}")
    return tally


def torn_files(path: Path) -> list[str]:
    """Files that a reader may trust by their name and that are not whole."""
    found = []
    for file in checkpoint.checkpoints(path):
        if hashlib.sha256(file.read_bytes()).hexdigest()[:16] not in file.name:
            found.append(f"{file}: torn")
    for name in ("summary.json", "provenance.json", "config.yaml"):
        text = (path / name).read_text() if (path / name).exists() else ""
        if name.endswith("json") and text and not text.endswith("}\n"):
            found.append(f"{path / name}: torn")
    return found


def first_difference(whole: Path, broken: Path) -> str:
    """Where two records of one run part: lines (times aside), weights. Empty where every bit is equal."""
    lines, others = _losses(whole), _losses(broken)
    if [line["step"] for line in lines] != [line["step"] for line in others]:
        return f"lines of steps {[line['step'] for line in others]}"
    for line, other in zip(lines, others, strict=True):
        if line != other:
            return f"{other}, not {line}"
    weights, found = (torch.load(path / "weights.pt", weights_only=True) for path in (whole, broken))
    return next((f"weights {name}" for name in weights if not torch.equal(weights[name], found[name])), "")


def _losses(path: Path) -> list[dict[str, Any]]:
    rows = record.read_metrics(path / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k.startswith(("step", "train", "val"))} for row in rows]


def _run(folder: Path, options: list[str]) -> Run:
    return load_run([*TOY_OVERRIDES, "runtime.checkpoint_every=3", f"results_dir={folder}", *options])


def _finished(run: Run) -> bool:
    return execute.is_done(run.path)


def _kill_once(run: Run, mutant: str, tally: Tally, random: np.random.Generator) -> None:
    target = min(LAST_OCCURRENCE, key=lambda phase: (tally.kills[PHASES[phase]], random.random()))
    occurrence = random.integers(1, LAST_OCCURRENCE[target] + 1)
    attempt = _attempt(run, mutant)
    while attempt.process.is_alive() and not (attempt.phase() == target and attempt.count(target) >= occurrence):
        time.sleep(0.0002)
    time.sleep(random.uniform(0, PIECES * PAUSE_S))
    attempt.process.kill()
    attempt.join()
    if attempt.process.exitcode == -signal.SIGKILL:
        tally.kills[PHASES[attempt.phase()]] += 1


class _Attempt:
    """A process that makes the run, and the shared bytes that say what it does: now, and how often so far."""

    def __init__(self, run: Run, mutant: str) -> None:
        board = Path(run.config.results_dir) / "board"
        board.parent.mkdir(parents=True, exist_ok=True)
        board.write_bytes(bytes(len(PHASES) + 1))
        self.board = board
        with board.open("r+b") as file:
            self.shared = mmap.mmap(file.fileno(), 0)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["crope.preload", "tests.faults"])
        self.process = context.Process(target=_child, args=(run, str(board), mutant))
        self.process.start()

    def phase(self) -> int:
        return self.shared[0]

    def count(self, phase: int) -> int:
        return self.shared[1 + phase]

    def join(self) -> None:
        self.process.join(PATIENCE_S)
        assert self.process.exitcode is not None, f"{self.board}: the run hangs"

    def error(self) -> str:
        path = self.board.with_name("error")
        return path.read_text() if path.exists() else f"exit code {self.process.exitcode}"


_attempt = _Attempt


def _child(run: Run, board: str, mutant: str) -> None:
    torch.set_num_threads(1)
    with open(board, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)

    @contextmanager
    def doing(phase: int) -> Iterator[None]:
        shared[1 + phase] = min(255, shared[1 + phase] + 1)
        shared[0] = phase
        yield
        shared[0] = BETWEEN

    _slow_files(doing, mutant)
    execute.load_tokens = lambda *_, **__: make_toy_tokens(Path(board).parent)
    outcome = execute.execute(run, stop=Unstoppable())
    if outcome.status not in ("complete", "skipped"):
        Path(board).with_name("error").write_text(outcome.text)
        os._exit(1)


def _slow_files(doing: Callable[[int], Any], mutant: str) -> None:
    """Wraps what a run does in `doing`, and every write in pieces with pauses between them."""
    real_step, real_write, real_init = trainer.train_step, record.write_bytes, record.MetricsWriter.__init__
    real_append, real_fdopen, real_load = record.MetricsWriter.write, os.fdopen, trainer.load_checkpoint

    def step(*args: Any, **kwargs: Any) -> Any:
        with doing(STEP):
            time.sleep(PIECES * PAUSE_S)  # as long as a write, to be hit as easily
            return real_step(*args, **kwargs)

    def write(path: Path, data: bytes) -> None:
        name = path.name
        phase = CHECKPOINT if name.startswith("checkpoint") else SUMMARY if name == "summary.json" else BETWEEN
        with doing(phase):
            if mutant == "checkpoint without rename" and phase == CHECKPOINT:
                with path.open("wb", buffering=0) as file:
                    _Slow(file).write(data)
            else:
                real_write(path, data)

    def open_metrics(self: Any, *args: Any, **kwargs: Any) -> None:
        real_init(self, *args, **kwargs)
        self.file = _Slow(self.file)

    def append(self: Any, row: dict[str, Any]) -> None:
        with doing(APPEND):
            real_append(self, row)

    def load(*args: Any, **kwargs: Any) -> tuple[int, record.Mark]:
        start, mark = real_load(*args, **kwargs)
        return start + int(start > 0 and mutant == "resumes one step late"), mark

    trainer.train_step, trainer.load_checkpoint = step, load
    record.write_bytes = checkpoint.write_bytes = write
    record.MetricsWriter.__init__, record.MetricsWriter.write = open_metrics, append
    record.os.fdopen = lambda *args, **kwargs: _Slow(real_fdopen(*args, **kwargs))


class _Slow:
    """A file that hands over its bytes in pieces, each to the disk's cache at once."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: bytes) -> None:
        size = max(1, -(-len(data) // PIECES))
        for start in range(0, len(data), size):
            self.file.write(data[start : start + size])
            self.file.flush()
            time.sleep(PAUSE_S)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> _Slow:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()
