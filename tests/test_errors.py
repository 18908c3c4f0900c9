"""How commands end: signals, streams that are closed, full or not UTF-8, errors of files."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from cli import main_errors

from crope.config import ROOT
from crope.errors import storage_error
from tests.conftest import run_script


@pytest.fixture
def run(monkeypatch):
    """Runs code within main_errors() in a process of its own: (status, stdout, lines of stderr)."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'scripts'}")

    def run_code(code, **streams):
        code = f"import sys; from cli import log_line, main_errors\nwith main_errors():\n {code}"
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        done = subprocess.run([sys.executable, "-c", code], encoding="latin-1", **streams)
        return done.returncode, done.stdout or "", len((done.stderr or "").splitlines())

    return run_code


@pytest.fixture
def pipe_without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("end", ["", "; sys.exit(1)"])
def test_a_reader_of_stdout_that_has_ended_ends_the_command_quietly(end, run, pipe_without_reader):
    done = run(f"print('a line'){end}", stdout=pipe_without_reader)
    assert done == (128 + signal.SIGPIPE, "", 0)


def test_a_full_stdout_is_one_line(run):
    with open("/dev/full", "w") as full:
        assert run("print('a line')", stdout=full) == (1, "", 1)


def test_a_stderr_without_reader_fails_nothing(run, pipe_without_reader):
    done = run("log_line('a'); log_line('b'); print('done')", stderr=pipe_without_reader)
    assert done == (0, "done\n", 0)


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("latin-1", "-0.2 ± \\u2603\n"),
        ("ascii", "-0.2 +/- \\u2603\n"),
    ],
)
def test_a_stdout_that_is_not_utf_8_loses_no_sign(encoding, shown, run, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    assert run("print('−0.2 ± ☃')") == (0, shown, 0)


def test_a_path_that_is_not_utf_8_is_one_line(run):
    code = "sys.argv.append('caf\\udce9')\n with main_errors(): print('no')"
    assert run(code) == (1, "", 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_with_one_line(number, capsys):
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught, main_errors():
        signal.raise_signal(number)
    assert caught.value.code == 128 + number
    assert capsys.readouterr().err.count("\n") == 1
    assert signal.getsignal(number) == before


def test_under_nohup_a_closing_terminal_ends_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with main_errors():
        signal.raise_signal(signal.SIGHUP)
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


def test_a_signal_while_modules_load_is_one_line(tmp_path):
    """A module in place of Hydra sends it."""
    (tmp_path / "hydra.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = run_script("train.py", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 128 + signal.SIGINT
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("script", ["train", "reproduce", "report", "tools", "bench"])
def test_outside_the_environment_a_script_says_what_to_do(script):
    """-S: without installed packages."""
    command = [sys.executable, "-I", "-S", f"scripts/{script}.py", "status"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert ".venv/bin/activate" in line


@pytest.mark.parametrize("number", [errno.EFBIG, errno.EIO, errno.ESTALE, errno.ELOOP])
def test_a_disk_that_fails_is_a_storage_error(number):
    error = storage_error(OSError(number, "reason", "a/file"), "folder")
    assert str(error).startswith("a/file: reason; free space")
    assert storage_error(OSError(errno.ECONNRESET, "reason"), "folder") is None
