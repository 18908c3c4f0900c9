"""What a terminal shows while runs train: one line that moves. Silent where nobody watches (no terminal)."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, TextIO

if TYPE_CHECKING:  # the trainer imports this module, and needs none of what a study is
    from crope.compose import Run
    from crope.state import RunState

CLEAR = "\r\x1b[2K"
RED, GREEN, DIM = "31", "32", "2"
REFRESH_SECONDS = 1.0
FEWEST_SECONDS = 2.0  # before that, a pace says nothing


class Progress:
    """percent | loss | tokens/s | ETA, rewritten in place at most five times a second."""

    def __init__(self, label: str, *, start: int, total: int, stream: TextIO | None = None) -> None:
        self.label, self.start, self.total = label, start, total
        self.stream = stream or sys.stderr
        self.began = self.last = time.monotonic()
        # Workers share one terminal, and a study has a line of its own: they would erase each other's.
        alone = multiprocessing.parent_process() is None and not StudyProgress.shown
        self.live = is_terminal(self.stream) and alone

    def due(self) -> bool:
        """Whether a line would be shown now: asked before the loss is read from the device."""
        return self.live and time.monotonic() - self.last > 0.2

    def show(self, step: int, *, loss: float, tokens_per_step: int) -> None:
        self.last = time.monotonic()
        seconds = max(self.last - self.began, 1e-9)
        done = max(step - self.start, 1)
        left = seconds / done * (self.total - step)
        rewrite(
            self.stream,
            f"{self.label}  {100 * step / self.total:3.0f} %  loss {loss:.4f}  "
            f"{done * tokens_per_step / seconds:,.0f} tokens/s  ETA {format_duration(left)}",
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        """Clears the line: what is worth keeping is printed by the caller."""
        if self.live:
            rewrite(self.stream, "")


class StudyProgress:
    """The line of a whole study, made from its run directories: whoever trains them, here or in worker processes.

        run 7 of 18  2 min 10 s left  crope-ptb-base-s0 45 % loss 5.1234  rope-ptb-base-s0 12 % loss 6.2346

    Within the block a thread renews it every second. Without a terminal there is no thread and no such line.
    """

    shown: ClassVar[bool] = False  # whether one moves now in this process

    def __init__(self, runs: Sequence[Run], *, stream: TextIO | None = None) -> None:
        self.runs, self.stream = list(runs), stream or sys.stderr
        self.live = is_terminal(self.stream) and bool(self.runs)
        self.over, self.turn = threading.Event(), threading.Lock()
        self.ended = 0
        self.thread = threading.Thread(target=self._renew, daemon=True)

    def report(self, text: str, *, failed: bool = False) -> None:
        """Prints what became of one run, on a line that stays."""
        with self.turn:
            self.ended += 1
            if self.live:
                rewrite(self.stream, "")
            counted = f"[{self.ended}/{len(self.runs)}] {text}"
            print(paint(counted, RED, sys.stdout) if failed else counted, flush=True)

    def __enter__(self) -> StudyProgress:
        if self.live:
            self.began, self.work_before = time.monotonic(), self._work(self._read())
            StudyProgress.shown = True
            self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        if self.live:
            StudyProgress.shown = False
            self.thread.join()
            rewrite(self.stream, "")

    def _read(self) -> list[RunState]:
        from crope.state import read_states

        return list(read_states(self.runs))

    def _work(self, states: Sequence[RunState]) -> float:
        from crope.work import run_flops

        return sum(run_flops(state.run) * state.share for state in states)

    def _renew(self) -> None:
        while not self.over.wait(REFRESH_SECONDS):
            try:
                states = self._read()
            except OSError:  # a folder that is being removed or replaced: the run itself says so
                continue
            if self._work(states) == self.work_before:  # processes start, data is opened: no pace yet
                self.began = time.monotonic()
            with self.turn:
                if not self.over.is_set():
                    rewrite(self.stream, self.line(states, time.monotonic() - self.began))

    def line(self, states: Sequence[RunState], seconds: float) -> str:
        """`seconds` since the first work within the block: what was done before counts as no pace of this study."""
        from crope.state import RUNNING
        from crope.work import run_flops

        running = [state for state in states if state.status == RUNNING]
        parts = [f"run {min(self.ended + max(1, len(running)), len(states))} of {len(states)}"]
        work = self._work(states)
        if seconds >= FEWEST_SECONDS and work > self.work_before:
            left = sum(run_flops(run) for run in self.runs) - work
            parts.append(f"{format_duration(left * seconds / (work - self.work_before))} left")
        return "  ".join([*parts, *map(_running, running)])


def _running(state: RunState) -> str:
    row = state.row or {}
    loss = row.get("train/loss_nats", row.get("val/loss_nats"))
    shown = f"{state.run.run_id.rpartition('-')[0]} {100 * state.share:.0f} %"
    return shown if loss is None else f"{shown} loss {loss:.4f}"


def is_terminal(stream: TextIO) -> bool:
    """Whether a line can move there: a terminal that knows escape sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def rewrite(stream: TextIO, text: str) -> None:
    """Puts `text` in place of the terminal's last line, cut to its width: a line that wraps cannot be cleared."""
    stream.write(CLEAR + text[: _width(stream) - 1])
    stream.flush()


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 10_000
    except (OSError, ValueError):  # no real terminal, as in tests
        return 10_000


def paint(text: str, colour: str, stream: TextIO) -> str:
    """Coloured on a terminal, unless NO_COLOR is set (no-color.org); the text itself elsewhere."""
    if not is_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


def format_duration(seconds: float) -> str:
    """1 h 05 min, 5 min 09 s or 9 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
