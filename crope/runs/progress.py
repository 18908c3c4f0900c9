"""Progress bars on stderr while runs train; none where stderr is no terminal, nor in the processes of
a sweep.
"""

import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from crope.plan.compose import Run
from crope.records.store import last_values

LOSSES = {"train": "train/loss_nats", "val": "val/loss_nats"}


def bars() -> Progress:
    """Returns bars with a description, the share done and the time left."""
    console = Console(stderr=True)
    in_worker = multiprocessing.parent_process() is not None
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=in_worker or not console.is_terminal,
        # Otherwise what is printed into a pipe would land on the terminal.
        redirect_stdout=sys.stdout.isatty(),
    )


class RunProgress:
    """The bar of one run: step, losses and time left."""

    def __init__(self, run: Run) -> None:
        self.run, self.values, self.bars = run, dict[str, Any](), bars()
        self.task = self.bars.add_task(short_name(run), total=run.config.train.max_steps)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bars.stop()

    def log(self, line: Mapping[str, Any]) -> None:
        """Takes one line of metrics.jsonl."""
        self.values |= line
        text = short_name(self.run) + render_losses(self.values)
        self.bars.update(self.task, completed=line["step"], description=text)


class SweepProgress:
    """A bar for all training tokens, and one for each run that trains now."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self.bars = {run.run_id: run for run in runs}, bars()
        self.all = self.bars.add_task("all runs", total=sum(map(training_tokens, runs)))
        self.tasks: dict[str, Any] = {}
        self.tokens: dict[str, float] = {}  # done, by run

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bars.stop()

    def update(self, active: Sequence[Run]) -> None:
        """Called often, with the runs that train now."""
        if self.bars.disable:
            return
        for run in active:
            steps = run.config.train.max_steps
            if run.run_id not in self.tasks:
                self.tasks[run.run_id] = self.bars.add_task(short_name(run), total=steps)
            values = last_values(run.path)
            text = short_name(run) + render_losses(values)
            self.bars.update(self.tasks[run.run_id], completed=values["step"], description=text)
            self.tokens[run.run_id] = training_tokens(run) * values["step"] / steps
        self.bars.update(self.all, completed=sum(self.tokens.values()))

    def end(self, run_id: str) -> None:
        """Removes the bar of a run that has ended."""
        self.tokens[run_id] = training_tokens(self.runs[run_id])
        if run_id in self.tasks:
            self.bars.remove_task(self.tasks.pop(run_id))


def short_name(run: Run) -> str:
    """Returns what a run is called on the terminal: without the scale, which all runs of a command
    share.
    """
    return f"{run.model} {run.dataset} {run.row} s{run.config.seed}"


def training_tokens(run: Run) -> int:
    train = run.config.train
    return train.max_steps * train.batch_size * train.seq_len


def render_losses(values: Mapping[str, Any]) -> str:
    """Returns `, train 5.123, val 4.987`: always in this order."""
    known = [name for name, key in LOSSES.items() if key in values]
    return "".join(f", {name} {values[LOSSES[name]]:.3f}" for name in known)
