"""The lock of a run: one process trains it. The kernel releases it when its holder ends."""

from fcntl import LOCK_NB, LOCK_SH, flock
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock


def lock_file(path: Path) -> Path:
    """Returns the lock file of a run's folder. It lies outside: a run that cannot start leaves no
    folder.
    """
    return path.parents[1] / "locks" / f"{path.name}.lock"


def run_lock(path: Path) -> AcquireReturnProxy:
    """Acquires the lock of a run's folder, which the end of a `with` block releases. Raises Timeout
    if another process holds it longer than `is_locked` does, OSError if the file system has no
    locks.
    """
    file = lock_file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        # For every user of the folder. A soft lock, in its place, would outlast a killed run.
        return FileLock(file, timeout=0.1, mode=0o666, fallback_to_soft=False).acquire()
    except OSError as error:
        error.filename = str(file)  # that of a file system without locks does not say of what
        raise


def is_locked(path: Path) -> bool:
    """Tells whether a process trains the run now; it may end or start a moment later.

    Writes nothing. False also where that is unknown: the lock is another user's and may not be
    read, or the file system has no locks.
    """
    try:
        with lock_file(path).open("rb") as file:
            flock(file, LOCK_SH | LOCK_NB)  # a shared one needs no permission to write
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
