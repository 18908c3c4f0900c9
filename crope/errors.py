"""Errors caused by user input or the environment, printed as one line without a traceback.

Each message says what is wrong, where, and what to do.
"""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO


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
        options |= {"formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(allow_abbrev=False, **options)  # --seed is not --seeds

    def add_shared(self, *names: str) -> None:
        """Adds arguments of SHARED_ARGUMENTS."""
        for name in names:
            self.add_argument(name, **SHARED_ARGUMENTS[name])

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def positive(text: str) -> int:
    """A number of the command line, at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def folder(text: str) -> Path:
    """A folder of the command line, which need not exist; `--results-dir=~/x` is left to us by
    shells.
    """
    if not text:
        raise argparse.ArgumentTypeError("names no folder")
    path = Path(os.path.expanduser(text))
    if path.is_file():
        raise argparse.ArgumentTypeError(f"{text} is a file, not a folder")
    return path


def existing_folder(text: str) -> Path:
    path = folder(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such folder")
    return path


# Arguments that several scripts or sub-commands have.
SHARED_ARGUMENTS: dict[str, dict[str, Any]] = {
    "--results-dir": {
        "type": folder,
        "default": Path("results"),
        "help": "holds runs/ (default: results)",
    },
    "--runs": {
        "type": existing_folder,
        "action": "append",
        "default": [],
        "metavar": "DIR",
        "help": "run directories, instead of RESULTS_DIR/runs; may be repeated",
    },
    "--scale": {
        "help": "paper, medium, quick or smoke (default: status: the study's own or the first"
        " that has a run; explain: that of most runs; gpu-check: paper)"
    },
    "--seeds": {
        "type": positive,
        "help": "number of seeds, the first of each study's file (default: all of them)",
    },
    "--study": {
        "action": "append",
        "metavar": "NAME",
        "help": "file of conf/study (default: both tables)",
    },
    "run": {"metavar": "RUN"},
    "runs": {"nargs": "+", "metavar": "RUN"},
}


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
        _discard(sys.stderr)


@contextmanager
def main_errors() -> Iterator[None]:
    """For scripts: `error: <one line>` on stderr and exit status 1 for a UserError, also for files.

    Ctrl-C, SIGTERM and SIGHUP end with one line and status 128 + signal; a stdout that has lost its
    reader (`| head`) with the status of SIGPIPE.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `2>&-`: a file of a run would get its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
            os.set_inheritable(getattr(sys, name).fileno(), True)
    before = {
        number: signal.signal(number, _interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) == signal.SIG_DFL  # under nohup SIGHUP is ignored
    }
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # not at exit, where its errors are tracebacks
    except UserError as error:
        sys.exit(f"error: {one_line(error)}")
    except KeyboardInterrupt as error:
        log_line("interrupted; run the same command again")
        sys.exit(128 + (error.args[0] if error.args else signal.SIGINT))
    except OSError as error:
        if error.filename is None:
            _discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            sys.exit(128 + signal.SIGPIPE)
        named = error.filename or "output"
        sys.exit(f"error: {storage_error(error, named) or f'{named}: {error.strerror or error}'}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closing terminal may send it twice
    raise KeyboardInterrupt(number)


def _discard(stream: TextIO) -> None:
    """Sends what a stream holds and gets to /dev/null: it would be written again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
