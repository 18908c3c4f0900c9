"""The line that moves while a run trains; silent where nobody watches (no terminal)."""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import TextIO


class Progress:
    """percent | loss | tokens/s | ETA, rewritten in place at most five times a second."""

    def __init__(self, label: str, *, start: int, total: int, stream: TextIO | None = None) -> None:
        self.label, self.start, self.total = label, start, total
        self.stream = stream or sys.stderr
        self.began = self.last = time.monotonic()
        # Workers share one terminal: their lines would erase each other.
        self.live = self.stream.isatty() and multiprocessing.parent_process() is None

    def due(self) -> bool:
        """Whether a line would be shown now: asked before the loss is read from the device."""
        return self.live and time.monotonic() - self.last > 0.2

    def show(self, step: int, *, loss: float, tokens_per_step: int) -> None:
        self.last = time.monotonic()
        seconds = max(self.last - self.began, 1e-9)
        done = max(step - self.start, 1)
        left = seconds / done * (self.total - step)
        text = (
            f"{self.label}  {100 * step / self.total:3.0f} %  loss {loss:.4f}  "
            f"{done * tokens_per_step / seconds:,.0f} tokens/s  ETA {format_duration(left)}"
        )
        self.stream.write(f"\r\x1b[2K{text}")
        self.stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        """Clears the line: what is worth keeping is printed by the caller."""
        if self.live:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()


def format_duration(seconds: float) -> str:
    """1 h 05 min, 5 min 09 s or 9 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
