"""What the scripts share: the code beside them, arguments, and errors of one line with a status."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

os.environ["MPLBACKEND"] = "Agg"  # they draw into files; a notebook's backend need not be here
# The code beside the scripts, whatever checkout the environment was made for.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ENVIRONMENT = "activate the environment (. .venv/bin/activate) or make it (make setup)"
if find_spec("torch") is None:  # by the system's Python
    sys.exit(f"error: no module torch; {ENVIRONMENT}")

from crope.errors import ConfigError, UserError, log_line  # noqa: E402


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
    """Returns a number of the command line, at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def folder_of_runs(text: str) -> Path:
    """Returns a folder with run directories, or a published set."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such folder")
    if not any([*path.glob("*/run.json"), *path.glob("*/summary.json"), *path.glob("runs.jsonl")]):
        raise argparse.ArgumentTypeError(
            f"{text}: no runs lie there; name the folder `runs`, or a set"
        )
    return path


# Arguments that several scripts or sub-commands have.
SHARED_ARGUMENTS: dict[str, dict[str, Any]] = {
    "--results-dir": {
        "type": Path,
        "default": Path("results"),
        "help": "holds runs/ (default: results)",
    },
    "--runs": {
        "type": folder_of_runs,
        "action": "append",
        "default": [],
        "metavar": "DIR",
        "help": "runs folder or set, instead of RESULTS_DIR/runs; may be repeated",
    },
    "--scale": {"help": "paper, medium, quick or smoke"},
    "--seeds": {
        "type": positive,
        "help": "number of seeds, the first of each file (default: all; status: begun ones)",
    },
    "--study": {
        "action": "append",
        "metavar": "NAME",
        "help": "file of conf/study (default: both tables)",
    },
    "run": {"metavar": "RUN"},
    "runs": {"nargs": "+", "metavar": "RUN"},
}


@contextmanager
def main_errors() -> Iterator[None]:
    """Ends a script on a UserError or an error of a file with `error: <one line>` on stderr and
    status 1, on Ctrl-C and SIGTERM with one line and status 128 + signal.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt as error:
        log_line("interrupted; run the same command again")
        sys.exit(128 + (error.args[0] if error.args else signal.SIGINT))
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)
