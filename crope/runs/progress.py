"""Progress on stderr: lines that a terminal shows in place while runs train; elsewhere (a log file,
a pipe) the same in one line per minute. The processes of a sweep show nothing.
"""

import math
import multiprocessing
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from crope.errors import DataError, log_line
from crope.files import read_metrics

if TYPE_CHECKING:  # importing it would import Hydra
    from crope.runs.compose import Run

LINE_SECONDS = 60.0
READ_SECONDS = 1.0
LOSSES = {"train": "train/loss_nats", "val": "val/loss_nats"}


class Display:
    """Lines that replace those shown before, until this context ends."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.live = Live(
            console=console,
            transient=True,
            refresh_per_second=2,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.hidden = multiprocessing.parent_process() is not None
        self.in_terminal = console.is_terminal and not self.hidden
        self.started = self.printed_at = time.monotonic()

    def __enter__(self) -> Self:
        if self.in_terminal:
            with suppress(OSError):  # a terminal that is gone must not cost a run
                self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self.live.stop()

    def show(self, lines: Sequence[str]) -> None:
        now = time.monotonic()
        if self.in_terminal:
            self.live.update(Text("\n".join(lines)))  # rich breaks it between words
        elif not self.hidden and now - self.printed_at >= LINE_SECONDS:
            self.printed_at = now
            log_line("; ".join(lines))

    def print(self, text: str) -> None:
        """A line on stdout, above those shown."""
        self.__exit__()
        print_words(text)
        self.__enter__()

    def time_left(self, done: float, missing: float) -> str:
        """`, 6:41 left` for what is missing, if `done` was done since the start; empty for 0."""
        if done <= 0:
            return ""
        left = timedelta(seconds=round((time.monotonic() - self.started) * missing / done))
        return f", {str(left).removeprefix('0:').removeprefix('0')} left"


class RunProgress(Display):
    """Step, losses, speed and time left of one run."""

    def __init__(self, run: "Run") -> None:
        super().__init__()
        self.run = run
        self.values: dict[str, Any] = {}
        self.first_step: int | None = None

    def log(self, line: Mapping[str, Any]) -> None:
        """Takes one line of metrics.jsonl."""
        self.values |= line
        step, total = line["step"], self.run.config.train.max_steps
        if self.first_step is None:
            self.first_step = step  # a run that continues has not trained what lies before
        text = f"{short_name(self.run)}: step {step:,}/{total:,}{render_losses(self.values)}"
        if "speed/tokens_per_s" in line:
            text += f", {line['speed/tokens_per_s']:,.0f} tok/s"
        self.show([text + self.time_left(step - self.first_step, total - step)])


class SweepProgress(Display):
    """The part of all training tokens that is done, and a line for each run that trains now."""

    def __init__(self, runs: Sequence["Run"]) -> None:
        super().__init__()
        self.runs, self.total = len(runs), sum(map(tokens_left, runs))
        self.left: dict[str, int] = {}  # tokens, of runs that have not ended
        for run in runs:
            self.left[run.run_id] = tokens_left(run, last_values(run)["step"])
        self.asked = sum(self.left.values())
        self.read_at = -math.inf

    def update(self, active: Sequence["Run"]) -> None:
        """Called often, with the runs that train now."""
        now = time.monotonic()
        if now - self.read_at < READ_SECONDS:
            return
        self.read_at = now
        lines = []
        for run in active:
            values = last_values(run)
            left = self.left[run.run_id] = tokens_left(run, values["step"])
            percent = 100 - 100 * left / tokens_left(run)
            text = f"{short_name(run)}: step {values['step']:,}{render_losses(values)}"
            lines.append(f"{percent:3.0f} %  {text}")
        missing = sum(self.left.values())
        percent = 100 - 100 * missing / self.total
        ended = f"{self.runs - len(self.left)} of {self.runs} runs"
        left_text = self.time_left(self.asked - missing, missing)
        self.show([f"{percent:.0f} % of tokens, {ended}{left_text}", *lines])

    def end(self, run_id: str, text: str, *, status: str) -> None:
        """Prints what a run has ended with; one that was stopped will be continued."""
        if status != "stopped":
            left = self.left.pop(run_id)
            if status != "complete":  # it took no time
                self.asked -= left
        self.print(text)


def print_words(text: str) -> None:
    """A line on stdout; in a terminal it is broken between words."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    print(text, flush=True)


def short_name(run: "Run") -> str:
    """What a run is called on the terminal: without the scale, which all runs of a command share."""
    return f"{run.model} {run.dataset} {run.row} s{run.config.seed}"


def tokens_left(run: "Run", step: int = 0) -> int:
    """Training tokens of a run after its first `step` updates."""
    train = run.config.train
    return (train.max_steps - step) * train.batch_size * train.seq_len


def last_values(run: "Run") -> dict[str, Any]:
    """The newest step and values of metrics.jsonl; step 0 if it has none or cannot be read."""
    values: dict[str, Any] = {"step": 0}
    with suppress(DataError, OSError, ValueError, TypeError, RecursionError):
        for row in read_metrics(run.path / "metrics.jsonl"):  # some thousand short lines at most
            values |= row
    return values


def render_losses(values: Mapping[str, Any]) -> str:
    """`, train 5.123, val 4.987`: always in this order, so that numbers do not jump sideways."""
    known = [name for name, key in LOSSES.items() if key in values]
    return "".join(f", {name} {values[LOSSES[name]]:.3f}" for name in known)
