"""The lock of a run: one process trains it. The kernel releases it when its holder ends."""

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from crope.plan.compose import Run


@contextmanager
def run_lock(run: Run) -> Iterator[None]:
    """Holds the lock of a run. Raises Timeout if it is taken, for longer than a look takes it, and
    OSError where the file system has no locks.
    """
    run.lock.parent.mkdir(parents=True, exist_ok=True)
    # A soft lock, in its place, would outlast a killed run.
    lock = FileLock(run.lock, timeout=0.1, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise
    except OSError as error:
        text = f"cannot lock the file ({error.strerror})"
        raise OSError(error.errno, text, str(run.lock)) from error
    try:
        yield
    finally:
        lock.release()


def is_locked(run: Run) -> bool:
    """Tells whether a process trains the run now; it may end or start a moment later."""
    if not run.lock.exists():
        return False
    try:
        with run_lock(run):
            return False
    except Timeout:
        return True
