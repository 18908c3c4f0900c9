"""Kills and stops real runs at random moments, continues them, compares bits.

A run is a process of its own that writes into a byte of shared memory what it is doing. Writes are
cut into small, slow pieces, so that a signal can hit the inside of one. The parent waits for the
kind of moment that was hit least so far, a random while longer, and sends SIGKILL, SIGTERM or
SIGINT, whichever that kind of moment had least of; the byte then says where the run was.
"""

import mmap
import multiprocessing
import os
import signal
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from crope import files
from crope.runs import record
from crope.runs import run as run_module
from crope.train import checkpoint
from crope.train import loop as trainer
from tests.conftest import count_steps_as_seconds, make_toy_tokens, same_bits, toy_run

PHASES = (
    "between",
    "resume",  # from reading the checkpoint to the first new line or update
    "training step",
    "checkpoint write",
    "record append",
    "summary write",
)
BETWEEN, RESUME, STEP, CHECKPOINT, APPEND, SUMMARY = range(len(PHASES))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PIECES, PAUSE_S = 8, 0.001  # of one write
# Of each phase in the toy run of 12 steps.
LAST_OCCURRENCE = {RESUME: 1, STEP: 11, CHECKPOINT: 3, APPEND: 7, SUMMARY: 1}
PATIENCE_S = 60.0


@dataclass
class Tally:
    """Signals by phase; runs that never completed or ended in other bits, and torn files."""

    kills: Counter[tuple[int, int]] = field(default_factory=Counter)  # (phase, signal)
    runs: int = 0
    problems: list[str] = field(default_factory=list)

    def in_phase(self, phase):
        return sum(self.kills[phase, number] for number in SIGNALS)

    def table(self):
        lines = [f"{'':18}" + "".join(f"{number.name:>9}" for number in SIGNALS)]
        for phase, name in enumerate(PHASES):
            counts = "".join(f"{self.kills[phase, number]:9}" for number in SIGNALS)
            lines.append(f"{name:18}{counts}")
        total = f"{self.kills.total()} signals to {self.runs} runs: {len(self.problems)} problems"
        return "\n".join([*lines, total, *self.problems])


def torment(kills, folder, *, seed):
    """Starts runs and kills each several times until `kills` in all; the last attempt of each may
    end.
    """
    random, tally = np.random.default_rng(seed), Tally()
    while tally.kills.total() < kills:
        number = tally.runs
        model = ("rope", "crope")[number % 2]
        options = [f"seed={number}", f"model={model}", "model.dropout=0.1"]
        options.append("runtime.checkpoint_seconds=3")
        whole = toy_run(folder / f"whole-{number}", *options)
        broken = toy_run(folder / f"broken-{number}", *options)
        Attempt(whole).join()
        for _ in range(random.integers(4, 12)):
            if tally.kills.total() < kills and not record.is_complete(broken.path):
                _kill_once(broken, tally, random)
                tally.problems += torn_files(broken.path)
        last = Attempt(broken)
        last.join()
        tally.runs += 1
        if last.process.exitcode != 0 or not record.is_complete(broken.path):
            tally.problems.append(f"{broken.run_id}: lost, exit code {last.process.exitcode}")
        elif not same_bits(whole, broken):
            tally.problems.append(f"{broken.run_id}: other bits")
    return tally


def torn_files(path):
    """Files whose name a reader trusts and that are not whole."""
    found = []
    for file in checkpoint.checkpoints(path):
        digest = files.sha256_file(file)
        if digest[:16] not in file.name:
            found.append(f"{file}: torn")
    for file in (path / "summary.json", path / "provenance.json"):
        if file.exists() and not file.read_text().endswith("}\n"):
            found.append(f"{file}: torn")
    return found


def _kill_once(run, tally, random):
    target = min(LAST_OCCURRENCE, key=lambda phase: (tally.in_phase(phase), random.random()))
    number = min(SIGNALS, key=lambda one: (tally.kills[target, one], random.random()))
    occurrence = random.integers(1, LAST_OCCURRENCE[target] + 1)
    attempt = Attempt(run)
    while attempt.process.is_alive():
        if attempt.phase() == target and attempt.count(target) >= occurrence:
            break
        time.sleep(0.0002)
    time.sleep(random.uniform(0, PIECES * PAUSE_S))
    phase, was_alive = attempt.phase(), attempt.process.is_alive()
    with suppress(ProcessLookupError):
        os.kill(attempt.process.pid, number)
    attempt.join()
    if attempt.process.exitcode == -signal.SIGKILL:
        phase = attempt.phase()
    if was_alive:  # a run that is stopped while it writes its summary may complete
        tally.kills[phase, number] += 1


class Attempt:
    """A process that trains the run, and the shared bytes: what it does now, and how often it did
    each.
    """

    def __init__(self, run):
        self.board = Path(run.config.results_dir) / "board"
        self.board.parent.mkdir(parents=True, exist_ok=True)
        self.board.write_bytes(bytes(len(PHASES) + 1))
        with self.board.open("r+b") as file:
            self.shared = mmap.mmap(file.fileno(), 0)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.runs.faults", "torch._dynamo"])
        self.process = context.Process(target=_child, args=(run, self.board))
        self.process.start()

    def phase(self):
        return self.shared[0]

    def count(self, phase):
        return self.shared[1 + phase]

    def join(self):
        self.process.join(PATIENCE_S)
        assert self.process.exitcode is not None, f"{self.board}: the run hangs"


def _child(run, board):
    torch.set_num_threads(1)
    with board.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)

    @contextmanager
    def doing(phase):
        shared[1 + phase] = min(255, shared[1 + phase] + 1)
        shared[0] = phase
        yield
        shared[0] = BETWEEN

    def enter_resume():
        shared[1 + RESUME], shared[0] = 1, RESUME

    count_steps_as_seconds()
    _slow_files(doing, enter_resume)
    run_module.load_tokens = lambda *_, **__: make_toy_tokens(board.parent)
    outcome = run_module.execute(run)
    if outcome.status not in ("complete", "skipped"):
        os._exit(1)


def _slow_files(doing, enter_resume):
    """Wraps what a run does in `doing`, and cuts every write into pieces with pauses between them.

    The phase "resume" lasts from `enter_resume` to the first other phase.
    """
    real_step, real_load = trainer.train_step, trainer.load_checkpoint
    real_init, real_append = files.MetricsWriter.__init__, files.MetricsWriter.write
    real_write = files.write_bytes

    def step(*args, **kwargs):
        with doing(STEP):
            time.sleep(PIECES * PAUSE_S)  # as long as a write, to be hit as easily
            return real_step(*args, **kwargs)

    def write(path, data):
        kinds = {"checkpoint": CHECKPOINT, "summary.json": SUMMARY}
        with doing(kinds.get(path.name.partition("-")[0], BETWEEN)):
            real_write(path, data)

    def load(*args, **kwargs):
        enter_resume()
        return real_load(*args, **kwargs)

    def open_metrics(self, *args, **kwargs):
        real_init(self, *args, **kwargs)
        self.file = _Slow(self.file)
        time.sleep(PIECES * PAUSE_S)

    def append(self, row):
        with doing(APPEND):
            real_append(self, row)

    trainer.train_step, trainer.load_checkpoint = step, load
    files.write_bytes = checkpoint.write_bytes = write
    files.MetricsWriter.__init__, files.MetricsWriter.write = open_metrics, append
    # Hides the built-in function for this module alone.
    files.open = lambda *args: _Slow(open(*args))  # noqa: SIM115


class _Slow:
    """A file that hands over its bytes in pieces, each flushed at once."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        size = max(1, -(-len(data) // PIECES))
        for start in range(0, len(data), size):
            self.file.write(data[start : start + size])
            self.file.flush()
            time.sleep(PAUSE_S)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.file.close()
