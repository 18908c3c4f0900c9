"""Errors that are the user's to mend. Each message is one line: what is wrong, where, what to do."""

from __future__ import annotations

import errno


class UserError(Exception):
    """Scripts print it as `error: <message>` and exit 1, without a traceback."""


class ConfigError(UserError):
    """A key, value, group or combination that the configuration does not allow."""


class DataError(UserError):
    """A data file that is damaged, incomplete or not the one that was pinned."""


class DataUnavailable(DataError):
    """Nothing is damaged: the data is not on this machine and cannot be fetched."""


class StorageError(UserError):
    """A full or read-only disk, or no permission: whatever is written there next fails as well."""


def storage_error(error: OSError, folder: object) -> StorageError | None:
    """The one line for a file that cannot be written; None where the error is of another kind."""
    in_the_way = (errno.ENOTDIR, errno.EEXIST)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, *in_the_way):
        return None
    what = "is a file where a folder should be" if error.errno in in_the_way else error.strerror
    remedy = "make room or permission there, or name another results_dir; complete runs stay complete"
    return StorageError(f"{error.filename or folder}: {what}; {remedy}")
