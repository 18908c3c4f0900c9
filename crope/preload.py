"""Imported once by the process that worker processes are forked from (workers.py)."""

import signal

import crope.execute  # noqa: F401

# A terminal or a batch system signals every process of the group. The parent alone decides when its workers end.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
