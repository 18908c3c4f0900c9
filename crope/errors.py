"""Errors of user input or the environment, which `scripts/cli.py` prints as one line.

Each message says what is wrong, where, and what to do.
"""

import sys
from pathlib import Path


class UserError(Exception):
    """An error that scripts print as `error: <message>` on stderr; they exit with status 1."""


class ConfigError(UserError, ValueError):
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
        remedy: str = "move the folder away and run the same command again",
    ) -> None:
        if "results/published" in path.absolute().as_posix():  # committed: git has the right bytes
            remedy = "restore it with git"
        super().__init__(f"{path}: {reason}; {remedy}")
        self.reason = reason


class StorageError(UserError):
    """A full, read-only or failing disk, or missing permission: later writes would fail too."""


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def log_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
