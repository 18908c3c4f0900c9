"""A stop on request: Ctrl-C and the signals of schedulers and closing terminals."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Stop:
    """A stop request: `signal` is the signal's number (0: none yet), `since` its time
    (time.monotonic).
    """

    signal: int = 0
    since: float = 0.0

    def requested(self) -> bool:
        return self.signal != 0


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Makes SIGINT and SIGTERM request a stop after a checkpoint; a second one exits immediately.

    A second one within a second is the same request, which may reach a process directly and through
    its group.
    """
    stop = Stop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.signal and time.monotonic() - stop.since < 1:
            return
        if stop.signal:
            _say("\x1b[?25h\n")  # the cursor, which a progress bar has hidden
            os._exit(128 + number)  # every file on disk is complete at any moment
        stop.signal, stop.since = number, time.monotonic()
        _say("\nStopping after saving a checkpoint. Press Ctrl-C again to exit immediately.\n")

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    """Writes to a terminal, past the stream: the signal may arrive within a write to it."""
    if sys.stderr.isatty():
        os.write(2, text.encode())
