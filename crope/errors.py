"""Errors that are the user's to mend. Each message is one line: what is wrong, where, what to do."""

from __future__ import annotations


class UserError(Exception):
    """Scripts print it as `error: <message>` and exit 1, without a traceback."""


class ConfigError(UserError):
    """A key, value, group or combination that the configuration does not allow."""


class DataError(UserError):
    """A data file that is damaged, incomplete or not the one that was pinned."""


class DataUnavailable(DataError):
    """Nothing is damaged: the data is not on this machine and cannot be fetched."""
