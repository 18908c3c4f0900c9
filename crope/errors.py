"""Errors caused by user input or the environment, printed as one line without a traceback.

Each message says what is wrong, where, and what to do. The scripts print them (`scripts/cli.py`).
"""

import errno
import os
import sys
from pathlib import Path
from typing import TextIO


class UserError(Exception):
    """Scripts print it as `error: <message>` on stderr and exit with status 1."""


class ConfigError(UserError):
    """A key, value, group or combination that the configuration does not allow."""


class DataError(UserError):
    """A data file that is corrupt, incomplete or not the pinned one."""


class DataUnavailable(DataError):
    """The data is not on this machine and cannot be downloaded."""


class InvalidRecord(DataError):
    """A finished run, or a file measured on one, that is corrupt or edited. It enters no table."""

    def __init__(
        self,
        path: Path,
        reason: str,
        remedy: str = "remove the folder and run the same command again",
    ) -> None:
        if "results/published" in path.absolute().as_posix():  # committed: git has the right bytes
            remedy = "restore it with git"
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path, self.reason = path, reason


class StorageError(UserError):
    """A full, read-only or failing disk, or missing permission: later writes would fail as well."""


IN_THE_WAY = (errno.ENOTDIR, errno.EEXIST)
STORAGE = (
    *IN_THE_WAY,
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),  # full, or a limit on the size of files
    *(errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EIO, errno.ESTALE, errno.ENOLCK, errno.ETIMEDOUT),  # of disks and network file systems
    *(errno.ELOOP, errno.ENAMETOOLONG),
)


def storage_error(error: OSError, folder: object) -> StorageError | None:
    """The message for a file that cannot be written; None for other kinds of OSError."""
    if error.errno not in STORAGE:
        return None
    blocked = error.errno in IN_THE_WAY
    what = "is a file where a folder should be" if blocked else error.strerror
    where = error.filename or folder
    return StorageError(f"{where}: {what}; free space, fix permissions or set another results_dir")


# In the messages of errors without a type of their own: torch's CPU allocator, CUDA's driver (also
# within an error of the compiler), cuBLAS.
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was lacking, on the CPU or a GPU; torch need not be imported."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in one_line(error) for words in OUT_OF_MEMORY)


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def log_line(text: str) -> None:
    """Prints a line on stderr, which may have lost its reader: that must not fail a run."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Sends what a stream holds and gets to /dev/null: it would be written again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
