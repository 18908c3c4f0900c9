"""SIGINT and SIGTERM ask a run to save and leave; a second one leaves at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Stopped(BaseException):
    """Training ended early on request; everything up to `step` is saved.

    No Exception, for the same reason as KeyboardInterrupt: what contains the failure of one run of a sweep must let it by.
    """

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step, self.signal_number = step, signal_number


class StopRequest:
    """Within the `with` block, `signal_number` tells which signal has asked to stop (None: go on)."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __enter__(self) -> StopRequest:
        self.before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number
