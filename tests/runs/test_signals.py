"""A stop on request: which signals ask for it, and when a second one exits."""

import os
import signal
from types import SimpleNamespace

import pytest

from crope.runs import signals
from crope.runs.signals import stop_on_signal

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers_are_restored():
    before = [signal.getsignal(number) for number in NUMBERS]
    yield
    assert [signal.getsignal(number) for number in NUMBERS] == before


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_requests_a_stop(number):
    with stop_on_signal() as stop:
        assert not stop.requested()
        signal.raise_signal(number)
        assert stop.requested()
        assert stop.signal == number


@pytest.mark.parametrize(
    ("second", "exits"),
    [
        (100.5, []),
        (102.0, [128 + signal.SIGTERM]),
    ],
)
def test_a_second_signal_exits_unless_it_is_of_the_same_request(second, exits, monkeypatch):
    called = []
    times = iter([100.0, second, second])
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=times.__next__))
    monkeypatch.setattr(os, "_exit", called.append)
    with stop_on_signal():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert called == exits
