"""The lock of a run: one process trains it. The kernel releases it when its holder ends."""

from filelock import FileLock, Timeout

from crope.runs.compose import Run


def run_lock(run: Run) -> FileLock:
    """Returns the lock of a run. Entering it raises Timeout if it is taken, for longer than a look
    takes it, and OSError where the file system has no locks.
    """
    run.lock.parent.mkdir(parents=True, exist_ok=True)
    # A soft lock, in its place, would outlast a killed run.
    return FileLock(run.lock, timeout=0.1, fallback_to_soft=False)


def is_locked(run: Run) -> bool:
    """Tells whether a process trains the run now; it may end or start a moment later."""
    if not run.lock.exists():
        return False
    try:
        with run_lock(run):
            return False
    except Timeout:
        return True
