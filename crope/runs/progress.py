"""Progress bars on stderr while runs train; none where stderr is no terminal, nor in a sweep's
processes.
"""

import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from crope.plan.compose import Run
from crope.records.store import last_values

LOSSES = {"train": "train/loss_nats", "val": "val/loss_nats"}


class RunProgress(Progress):
    """A bar for each run that trains now, and one for all training tokens of several runs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        console = Console(stderr=True)
        in_worker = multiprocessing.parent_process() is not None
        super().__init__(
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
        self.runs = {run.run_id: run for run in runs}
        self.values: dict[str, Mapping[str, Any]] = {}  # the newest, by run
        self.bars: dict[str, Any] = {}
        self.all = self.add_task("all runs", total=1, visible=len(runs) > 1)

    def poll(self, active: Sequence[Run]) -> None:
        """Reads the progress of runs in other processes."""
        for run in active:
            self.show(run, last_values(run.path))

    def show(self, run: Run, values: Mapping[str, Any]) -> None:
        """Moves the bar of a run to a line of its metrics.jsonl."""
        name, step = run.run_id, values["step"]
        if name not in self.bars:
            self.bars[name] = self.add_task("", total=run.config.train.max_steps)
        self.values[name] = known = {**self.values.get(name, {}), **values}
        text = f"{run.model} {run.dataset} {run.row} s{run.config.seed}"  # the scale is that of all
        for label, key in LOSSES.items():
            if key in known:
                text += f", {label} {known[key]:.3f}"
        self.update(self.bars[name], completed=step, description=text)
        self.update(self.all, completed=self.share_done())

    def end(self, run_id: str) -> None:
        """Removes the bar of a run that has ended."""
        self.values[run_id] = {"step": self.runs[run_id].config.train.max_steps}
        if run_id in self.bars:
            self.remove_task(self.bars.pop(run_id))
        self.update(self.all, completed=self.share_done())

    def share_done(self) -> float:
        """Computes the processed share of all training tokens."""
        done = 0.0
        for name, values in self.values.items():
            run = self.runs[name]
            done += training_tokens(run) * values["step"] / run.config.train.max_steps
        return done / sum(map(training_tokens, self.runs.values()))


def training_tokens(run: Run) -> int:
    train = run.config.train
    return train.max_steps * train.batch_size * train.seq_len
