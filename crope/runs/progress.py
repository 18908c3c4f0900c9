"""Progress on stderr and tables on stdout, by rich.

In a terminal bars move while runs train; elsewhere (a log file, a pipe) a line per minute says as
much.
"""

import json
import math
import multiprocessing
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import rich.progress
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from crope.errors import log_line
from crope.runs.compose import Run

Item = TypeVar("Item")

LINE_SECONDS = 60.0
READ_SECONDS = 1.0
PIPE_WIDTH = 160  # columns of a table that is not printed to a terminal
TAIL_BYTES = 4096  # of metrics.jsonl: several lines


class Bars:
    """Progress bars in a terminal, which end with this context; elsewhere lines. The processes of a
    sweep show nothing.
    """

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.hidden = multiprocessing.parent_process() is not None
        self.in_terminal = console.is_terminal and not self.hidden
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(table_column=Column(min_width=7, no_wrap=True)),
            TextColumn("{task.fields[text]}", markup=False),  # the last: its end may be cut off
            console=console,
            disable=not self.in_terminal,
            transient=True,
            refresh_per_second=2,
            redirect_stdout=False,
            redirect_stderr=False,
            speed_estimate_period=600,
        )
        self.printed_at = time.monotonic()

    def __enter__(self) -> Self:
        with suppress(OSError):  # a terminal that is gone must not cost a run
            self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self.bars.stop()

    def add(self, description: str, **fields: Any) -> TaskID:
        """A new bar, drawn at once."""
        with suppress(OSError):
            self.bars.add_task(description, **fields)
        return self.bars.task_ids[-1]

    def print(self, text: str) -> None:
        """A line on stdout, above the bars."""
        with suppress(OSError):
            self.bars.stop()
        print(text, flush=True)
        with suppress(OSError):
            self.bars.start()

    def print_now_and_then(self, text: str) -> None:
        """A line, at most one per minute, where there is no bar."""
        now = time.monotonic()
        if not (self.in_terminal or self.hidden) and now - self.printed_at >= LINE_SECONDS:
            self.printed_at = now
            log_line(text)


class RunProgress(Bars):
    """Step, losses, speed and time left of one run."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.task: TaskID | None = None
        self.losses: dict[str, float] = {}

    def log(self, line: Mapping[str, Any]) -> None:
        """Takes one line of metrics.jsonl."""
        self.losses.update(losses_of(line))
        step, total = int(line["step"]), self.run.config.train.max_steps
        text = f"step {step:,}/{total:,}, {render_losses(self.losses)}"
        if "speed/tokens_per_s" in line:
            text += f", {line['speed/tokens_per_s']:,.0f} tokens/s"
        if self.task is None:
            self.task = self.add("", total=total, completed=step, text=text)
        self.bars.update(self.task, completed=step, text=text)
        self.print_now_and_then(f"{title(self.run)}: {text}")


class SweepProgress(Bars):
    """The part of all training tokens that is done, and a line for each run that trains now."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__()
        self.runs = len(runs)
        self.ended = 0
        self.sizes = {run.run_id: train_tokens(run) for run in runs}
        self.total = sum(self.sizes.values())
        self.trained: dict[str, int] = {}  # tokens by run
        self.tasks: dict[str, TaskID] = {}
        self.read_at = -math.inf
        for run in runs:
            self._read(run)  # what an earlier command has trained is no speed of this one
        done = sum(self.trained.values())
        self.whole = self.add("", total=self.total, completed=done, text="")

    def update(self, active: Sequence[Run]) -> None:
        """Called often, with the runs that train now."""
        now = time.monotonic()
        if now - self.read_at < READ_SECONDS:
            return
        self.read_at = now
        texts = []
        for run in active:
            name, text = run.run_id, self._read(run)
            texts.append(f"{title(run)}: {text}")
            if name not in self.tasks:
                self.tasks[name] = self.add(title(run), total=self.sizes[name], text="")
            self.bars.update(self.tasks[name], completed=self.trained[name], text=text)
        for name in self.tasks.keys() - {run.run_id for run in active}:
            self.bars.remove_task(self.tasks.pop(name))
        done = sum(self.trained.values())
        text = f"of the tokens, {self.ended} of {self.runs} runs"
        self.bars.update(self.whole, completed=done, text=text)
        share = 100 * done / self.total
        self.print_now_and_then(f"{share:.0f} % {text}; " + "; ".join(texts))

    def end(self, run_id: str, text: str, *, stopped: bool) -> None:
        """Prints what a run has ended with; one that was stopped will be continued."""
        if not stopped:
            self.ended += 1
            self.trained[run_id] = self.sizes[run_id]
        self.print(text)

    def _read(self, run: Run) -> str:
        """What metrics.jsonl says of the run; keeps the tokens that it has trained."""
        lines = tail(run.path / "metrics.jsonl")
        step = last_step(lines)
        share = min(1.0, step / run.config.train.max_steps)
        self.trained[run.run_id] = round(share * train_tokens(run))
        losses: dict[str, float] = {}
        for line in lines:
            losses.update(losses_of(line))
        return f"step {step:,}, {render_losses(losses)}" if losses else "starting"


def track(items: Iterable[Item], description: str) -> Iterable[Item]:
    """The items, with a bar in a terminal."""
    console = Console(stderr=True)
    return rich.progress.track(
        items, description, console=console, transient=True, disable=not console.is_terminal
    )


def title(run: Run) -> str:
    """What a run is called on the terminal: its names with the scale and the seed."""
    return f"{run.model} {run.dataset} {run.row} {run.scale} s{run.config.seed}"


def train_tokens(run: Run) -> int:
    train = run.config.train
    return train.max_steps * train.batch_size * train.seq_len


def tail(metrics: Path) -> list[dict[str, Any]]:
    """The last whole lines of metrics.jsonl; none if it cannot be read: a run may write it now."""
    try:
        with metrics.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")[size > TAIL_BYTES : -1]  # the last may be incomplete
        return [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return []


def last_step(lines: Sequence[Any]) -> int:
    """The step of the last line; 0 if there is none or it is malformed."""
    try:
        return int(lines[-1]["step"])
    except (LookupError, TypeError, ValueError):
        return 0


def losses_of(line: Mapping[str, Any]) -> dict[str, float]:
    names = {"train/loss_nats": "train", "val/loss_nats": "val"}
    return {
        names[key]: value for key, value in line.items() if key in names and math.isfinite(value)
    }


def render_losses(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())


def print_grid(
    caption: str,
    headings: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    text_columns: Sequence[int],
) -> None:
    """A table on stdout; columns of words are aligned to the left, others to the right."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, heading in enumerate(headings):
        grid.add_column(Text(heading), justify="left" if position in text_columns else "right")
    for row in rows:
        grid.add_row(*map(Text, row))
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    with console.capture() as capture:
        console.print(grid)
    print(caption)
    print(*(line.rstrip() for line in capture.get().splitlines() if line.strip()), sep="\n")
