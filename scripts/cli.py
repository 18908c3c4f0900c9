"""What the scripts share: arguments, the variables of make, and errors of one line with a status.

Each script puts its own folder on Python's path first, which `python -I` does not.
"""

import argparse
import codecs
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

ENVIRONMENT = "activate the environment (. .venv/bin/activate) or make it (make setup)"
try:
    from crope.config import ROOT
    from crope.errors import ConfigError, UserError, discard, log_line, one_line, storage_error
except ModuleNotFoundError as missing:  # by the system's Python
    sys.exit(f"error: no module {missing.name}; {ENVIRONMENT}")

# For a stdout that is not UTF-8: what would be lost or misread as a question mark.
PLAIN_SIGNS = {"−": "-", "–": "-", "±": "+/-", "→": "->", "…": "...", "γ": "gamma"}


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
    """A folder of the command line, which need not exist."""
    if not text:
        raise argparse.ArgumentTypeError("names no folder")
    path = Path(os.path.expanduser(text))  # shells leave `--results-dir=~/x` as it is
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
    "--scale": {"help": "paper, medium, quick or smoke"},
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
FROM_MAKE = "--from-make"
# Variables of make: options of the same name, for each of their words or for all of it.
LISTS, VALUES = ("STUDY", "RUNS"), ("SCALE", "SEEDS")


def arguments() -> list[str]:
    """The words of the command line; FROM_MAKE stands for the variables of make.

    make exports them, because in a recipe the shell would execute what they hold.
    """
    words = sys.argv[1:]
    if FROM_MAKE not in words:
        return words
    place = words.index(FROM_MAKE)
    given: list[str] = []
    for name in LISTS:
        for word in _split(name):
            given.append(f"--{name.lower()}={word}")
    for name in VALUES:
        if value := os.environ.get(name):
            given.append(f"--{name.lower()}={value}")
    if cell := os.environ.get("CELL"):
        given.append(cell)  # `explain` takes it; the other scripts refuse it
    return [*words[:place], *given, *_split("ARGS"), *words[place + 1 :]]


def _split(name: str) -> list[str]:
    try:
        return shlex.split(os.environ.get(name, ""))
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def refuse_repeats(overrides: Sequence[str]) -> None:
    """Raises ConfigError for a key that is given twice, of which Hydra takes the last."""
    seen = set()
    for text in overrides:
        key = text.lstrip("+").partition("=")[0]
        if key in seen:
            raise ConfigError(f"command line: {key} is given twice; give it once")
        seen.add(key)


@cache
def say_where(results_dir: str) -> None:
    """Says, once, that a relative folder of results does not lie in the checkout, as data does."""
    if not Path(results_dir).is_absolute() and not Path.cwd().samefile(ROOT):
        log_line(f"results are in {Path(results_dir).absolute()}")


@contextmanager
def main_errors() -> Iterator[None]:
    """For scripts: `error: <one line>` on stderr and exit status 1 for a UserError, also for files.

    Ctrl-C, SIGTERM and SIGHUP end with one line and status 128 + signal; a stdout that has lost its
    reader (`| head`) with the status of SIGPIPE.
    """
    _prepare_streams()
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # under nohup SIGHUP is ignored
            before[number] = signal.signal(number, _interrupt)
    try:
        try:
            for word in sys.argv:
                word.encode()  # paths that are not UTF-8 could not be recorded
            yield
        finally:
            sys.stdout.flush()  # not at exit, where its errors are tracebacks
    except UserError as error:
        sys.exit(f"error: {one_line(error)}")
    except ModuleNotFoundError as error:
        sys.exit(f"error: no module {error.name}; {ENVIRONMENT}")
    except UnicodeEncodeError as error:
        sys.exit(f"error: {error.object[:200]!a} is not UTF-8; rename it or give another path")
    except KeyboardInterrupt as error:
        log_line("interrupted; run the same command again")
        sys.exit(128 + (error.args[0] if error.args else signal.SIGINT))
    except OSError as error:
        if error.filename is None:
            discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            sys.exit(128 + signal.SIGPIPE)
        named = error.filename or "output"
        sys.exit(f"error: {storage_error(error, named) or f'{named}: {error.strerror or error}'}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare_streams() -> None:
    codecs.register_error("plain", _plain)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `2>&-`: a file of a run would get its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
            os.set_inheritable(getattr(sys, name).fileno(), True)
        getattr(sys, name).reconfigure(errors="plain")


def _plain(error: Any) -> tuple[str, int]:
    r"""ASCII for what a stream cannot write: no minus sign may be lost. `\u...` for other signs."""
    text = error.object[error.start : error.end].translate(str.maketrans(PLAIN_SIGNS))
    return text.encode("ascii", "backslashreplace").decode(), error.end


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closing terminal may send it twice
    raise KeyboardInterrupt(number)
