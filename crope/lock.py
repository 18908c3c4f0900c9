"""Who works on what, among any number of processes: an exclusive `flock` on an open file.

The kernel lets go of it when its holder ends, however it ends: a file left behind means nothing. It holds between the
machines of a network file system as far as flock does: on NFS since Linux 2.6.12 with a lock service (not with the
mount options nolock or local_lock=flock), on Lustre with the mount option flock. Where the file system has no locks at
all, taking one is an error; with locks that are local to a machine, give each machine a results folder of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crope.errors import UserError

LOCK = ".lock"  # of a run, in its folder

_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Lock:
    """A lock that is held until `release` or the end of the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    def is_current(self) -> bool:
        """Whether the locked file still is the one at `path`: false where its folder was removed or replaced."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.descriptor))
        except OSError:
            return False

    def release(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def try_lock(path: Path) -> Lock | None:
    """Takes the lock, creating the file where needed; None where another open file holds it."""
    return _take(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(path: Path, *, busy: Callable[[str], None] = lambda _: None) -> Iterator[Lock]:
    """Holds the lock within the block, then removes its file. Waits for another holder, after telling `busy` who."""
    lock = try_lock(path)
    if lock is None:
        busy(holder(path))
        lock = _take(path, fcntl.LOCK_EX)
        assert lock is not None
    with lock:
        try:
            yield lock
        finally:  # still locked: whoever waits for this file finds it gone and takes a new one
            path.unlink(missing_ok=True)


def is_taken(path: Path) -> bool:
    """Whether a process works on the run in this folder now: a hint, since it may end or begin the moment after."""
    if not (path / LOCK).exists():
        return False
    lock = try_lock(path / LOCK)
    if lock is not None:
        lock.release()
    return lock is None


def holder(path: Path) -> str:
    """Who took the lock last, as `process 4711 on node3`: for messages, as nothing depends on it."""
    try:
        return path.read_text(encoding="utf-8").strip() or "another process"
    except (OSError, ValueError):
        return "another process"


def _take(path: Path, operation: int) -> Lock | None:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = Lock(path, os.open(path, os.O_RDWR | os.O_CREAT, 0o666))
        try:
            fcntl.flock(lock.descriptor, operation)
        except OSError as error:
            lock.release()
            if error.errno in _BUSY:
                return None
            text = f"{path}: this file system has no file locks ({error.strerror})"
            raise UserError(f"{text}; name a folder on one that has them") from error
        if lock.is_current():  # else the folder was removed between the opening and the locking
            os.ftruncate(lock.descriptor, 0)
            os.write(lock.descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            return lock
        lock.release()
