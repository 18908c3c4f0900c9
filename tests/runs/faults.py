"""Kills and stops real runs at random moments, continues them, compares bits.

A run is a process of its own that writes into shared memory, its board, what it is doing. Writes
are cut into small, slow pieces, so that a signal can hit the inside of one. The parent waits for
the kind of moment that was hit least so far, a random while longer, and sends SIGKILL, SIGTERM or
SIGINT, whichever that kind of moment had least of; the board then says where the run was.
"""

import gc
import io
import multiprocessing
import os
import signal
import time
from collections import Counter
from contextlib import suppress

import numpy as np
import torch

from crope import files
from crope.records import run_json, store
from crope.runs import run as run_module
from crope.train import checkpoint
from crope.train import loop as trainer
from crope.train.update import Updates
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
NOW = len(PHASES)  # the place on the board behind the counts of phases
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PIECES, PAUSE_S = 8, 0.001  # of one write
# Of each phase in the toy run of 12 steps.
LAST_OCCURRENCE = {RESUME: 1, STEP: 11, CHECKPOINT: 3, APPEND: 7, SUMMARY: 1}


class Tally:
    """Signals by phase; runs that never completed or ended in other bits, and torn files."""

    def __init__(self):
        self.kills = Counter()  # of (phase, signal)
        self.runs, self.problems = 0, []

    def in_phase(self, phase):
        return sum(self.kills[phase, number] for number in SIGNALS)

    def table(self):
        lines = []
        for (phase, number), count in sorted(self.kills.items()):
            lines.append(f"{PHASES[phase]:18}{number.name:9}{count}")
        total = f"{self.kills.total()} signals to {self.runs} runs: {len(self.problems)} problems"
        return "\n".join([*lines, total, *self.problems])


def torment(kills, folder, *, seed):
    """Starts runs and kills each several times until `kills` in all; the last attempt of each may
    end.
    """
    random, tally = np.random.default_rng(seed), Tally()
    while tally.kills.total() < kills:
        number = tally.runs
        options = [f"seed={number}", "model.dropout=0.1", "runtime.checkpoint_seconds=3"]
        options.append(f"model={('rope', 'crope')[number % 2]}")
        whole = toy_run(folder / f"whole-{number}", *options)
        broken = toy_run(folder / f"broken-{number}", *options)
        end(start(whole)[0])
        for _ in range(random.integers(4, 12)):
            if tally.kills.total() < kills and not store.is_complete(broken.path):
                kill_once(broken, tally, random)
                tally.problems += torn_files(broken.path)
        status = end(start(broken)[0])
        tally.runs += 1
        if status != 0 or not store.is_complete(broken.path):
            tally.problems.append(f"{broken.run_id}: lost, exit code {status}")
        elif not same_bits(whole, broken):
            tally.problems.append(f"{broken.run_id}: other bits")
    return tally


def torn_files(path):
    """Files whose name a reader trusts and that are not whole."""
    torn = []
    for file in checkpoint.checkpoints(path):
        if files.sha256_file(file)[:16] not in file.name:
            torn.append(f"{file}: torn")
    for file in path.glob("*.json"):
        if not file.read_text().endswith("}\n"):
            torn.append(f"{file}: torn")
    return torn


def kill_once(run, tally, random):
    target = min(LAST_OCCURRENCE, key=lambda phase: (tally.in_phase(phase), random.random()))
    number = min(SIGNALS, key=lambda one: (tally.kills[target, one], random.random()))
    occurrence = random.integers(1, LAST_OCCURRENCE[target] + 1)
    process, board = start(run)
    while process.is_alive() and (board[NOW] != target or board[target] < occurrence):
        time.sleep(0.0002)
    time.sleep(random.uniform(0, PIECES * PAUSE_S))
    phase, was_alive = board[NOW], process.is_alive()
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
    if end(process) == -signal.SIGKILL:
        phase = board[NOW]
    if was_alive:  # a run that is stopped while it writes its summary may complete
        tally.kills[phase, number] += 1


def start(run):
    """A process that trains the run, and its board: how often it did what, and what it does now."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.runs.faults", "torch._dynamo"])
    board = context.RawArray("i", len(PHASES) + 1)
    process = context.Process(target=train, args=(run, board))
    process.start()
    return process, board


def end(process):
    """Waits for it, which takes a minute only if it hangs; returns its exit code."""
    process.join(60)
    assert process.exitcode is not None, f"process {process.pid} hangs"
    return process.exitcode


def train(run, board):
    """Main function of the process."""
    torch.set_num_threads(1)
    gc.freeze()  # a collection would copy the pages of every module
    run_json.non_default_settings = lambda run: []  # composing takes longer than training
    count_steps_as_seconds()
    note_phases(board)
    run_module.load_tokens = lambda *_, **__: make_toy_tokens(run.path)
    run_module.execute(run)


def note_phases(board):
    """Replaces what a run does by the same, noted on the board, with slow files.

    The phase "resume" lasts to the first other phase.
    """
    real_step, real_load = Updates.train_step, trainer.load_checkpoint
    real_open, real_write = files.MetricsWriter.__init__, files.write_bytes

    def during(phase, function):
        def noted(*args, **kwargs):
            board[phase] += 1
            board[NOW] = phase
            result = function(*args, **kwargs)
            board[NOW] = BETWEEN
            return result

        return noted

    def step(*args, **kwargs):
        time.sleep(PIECES * PAUSE_S)  # as long as a write, to be hit as easily
        return real_step(*args, **kwargs)

    def write(path, data):
        kinds = {"checkpoint": CHECKPOINT, "summary.json": SUMMARY}
        kind = kinds.get(path.name.partition("-")[0], BETWEEN)
        during(kind, real_write)(path, data)

    def load(*args, **kwargs):
        board[RESUME], board[NOW] = 1, RESUME
        return real_load(*args, **kwargs)

    def open_metrics(self, path, **kwargs):
        real_open(self, path, **kwargs)
        self.file.close()
        self.file = SlowFile(path, "a")
        time.sleep(PIECES * PAUSE_S)

    Updates.train_step, trainer.load_checkpoint = during(STEP, step), load
    files.write_bytes = checkpoint.write_bytes = write
    files.MetricsWriter.__init__ = open_metrics
    files.MetricsWriter.write = during(APPEND, files.MetricsWriter.write)
    files.open = SlowFile  # hides the built-in function for this module alone


class SlowFile(io.FileIO):
    """Writes its bytes in pieces, without a buffer."""

    def write(self, data):
        size = max(1, -(-len(data) // PIECES))
        for start in range(0, len(data), size):
            super().write(data[start : start + size])
            time.sleep(PAUSE_S)
