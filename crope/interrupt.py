"""SIGINT and SIGTERM ask a run to save and leave; a second one leaves at once.

A batch system's library may have taken SIGUSR2 (submitit: the job is about to end, put it back into the queue). Then a
run asked by that signal saves first, and whoever called it passes the signal on; SIGTERM stays with the library.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Protocol

REQUEUE = signal.SIGUSR2


class Stopped(BaseException):
    """Training ended early on request; everything up to there is saved.

    No Exception, like KeyboardInterrupt: what contains the failure of one run of a sweep must let it by.
    """

    def __init__(self, where: str, signal_number: int) -> None:
        super().__init__(f"stopped: {where}")
        self.where = where
        self.signal_number = signal_number


class StopSignal(Protocol):
    """What a run asks after every step: which signal wants it to stop (None: go on)."""

    @property
    def signal_number(self) -> int | None: ...


class Unstoppable:
    """A StopSignal that never asks."""

    signal_number: int | None = None


class StopRequest:
    """A StopSignal fed by this process's signals within the `with` block."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __enter__(self) -> StopRequest:
        ask = REQUEUE if callable(signal.getsignal(REQUEUE)) else signal.SIGTERM
        self.before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, ask)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None and number != REQUEUE:
            # An exception could be held up by whatever is waited for; every file is whole at any moment, so just leave.
            sys.stderr.write("left at once; the same command goes on from the last checkpoint\n")
            sys.stderr.flush()
            os._exit(128 + number)
        self.signal_number = number
        if sys.stderr.isatty():  # os.write: a signal may arrive within a write to the stream
            os.write(sys.stderr.fileno(), b"\nstopping: saves what runs (once more: leaves at once)\n")
