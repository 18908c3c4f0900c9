"""How commands end: signals, streams that are closed or full, errors of files."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crope.config import ROOT
from crope.errors import main_errors
from tests.conftest import run_script

BEGIN = "import os, sys; from crope.errors import log_line, main_errors\nwith main_errors():\n "


def run_code(code: str, **streams: object) -> subprocess.CompletedProcess[str]:
    """The code within main_errors(), in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    command = [sys.executable, "-c", BEGIN + code]
    return subprocess.run(command, env=environment, text=True, check=False, **streams)  # type: ignore[call-overload]


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """SIGHUP as in a terminal, also if the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def pipe_without_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("end", ["", "; sys.exit(1)", "; sys.stdout.flush()"])
def test_a_reader_of_stdout_that_has_ended_ends_the_command_quietly(
    end: str, pipe_without_reader: int
) -> None:
    done = run_code(f"print('a line'){end}", stdout=pipe_without_reader)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_full_stdout_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = run_code("print('a line')", stdout=full)
    assert done.returncode == 1
    assert "No space" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_stderr_without_reader_fails_nothing(pipe_without_reader: int) -> None:
    done = run_code("log_line('a'); log_line('b'); print('done')", stderr=pipe_without_reader)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_closed_stderr_is_open_for_the_command_and_its_processes(tmp_path: Path) -> None:
    code = "print(sys.stderr.isatty(), os.get_inheritable(2), open('file', 'w').fileno() > 2)"
    done = run_code(code, preexec_fn=lambda: os.close(2), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "False True True\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_with_one_line(number: signal.Signals, capsys) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught, main_errors():
        signal.raise_signal(number)
    assert caught.value.code == 128 + number
    assert capsys.readouterr().err.count("\n") == 1
    assert signal.getsignal(number) == before


def test_under_nohup_a_closing_terminal_ends_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with main_errors():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_load_is_one_line(number: int, tmp_path: Path) -> None:
    """A module in place of Hydra sends it."""
    (tmp_path / "hydra.py").write_text(f"import os\nos.kill(os.getpid(), {int(number)})\n")
    done = run_script("train.py", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 128 + number
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
