"""Errors caused by user input or the environment, printed as one line without a traceback.

Each message says what is wrong, where, and what to do.
"""

import argparse
import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn


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
        cure: str = "remove the folder and run the same command again",
    ) -> None:
        super().__init__(f"{path}: {reason}; {cure}")
        self.path, self.reason = path, reason


class StorageError(UserError):
    """A full or read-only disk, or missing permission: later writes would fail as well."""


def storage_error(error: OSError, folder: object) -> StorageError | None:
    """The message for a file that cannot be written; None for other kinds of OSError."""
    in_the_way = (errno.ENOTDIR, errno.EEXIST)
    if error.errno not in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        *in_the_way,
    ):
        return None
    what = "is a file where a folder should be" if error.errno in in_the_way else error.strerror
    return StorageError(
        f"{error.filename or folder}: {what}; free space, fix permissions or set another results_dir"
    )


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit status 1, as all others are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


@contextmanager
def main_errors() -> Iterator[None]:
    """For scripts: `error: <one line>` on stderr and exit status 1 for a UserError, also for files
    and Ctrl-C.
    """
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
    except KeyboardInterrupt:
        print(
            "interrupted; run the same command again to continue from the last checkpoint",
            file=sys.stderr,
        )
        sys.exit(130)
    except OSError as error:
        sys.exit(
            f"error: {storage_error(error, 'file') or f'{error.filename}: {error.strerror or error}'}"
        )
