"""How commands end: signals, errors of files, a missing environment, another checkout's one."""

import signal
import subprocess
import sys

import pytest
from cli import main_errors

from crope.config import ROOT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_with_one_line(number, capsys):
    with pytest.raises(SystemExit) as caught, main_errors():
        signal.raise_signal(number)
    assert caught.value.code == 128 + number
    assert capsys.readouterr().err.count("\n") == 1


def test_an_error_of_a_file_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="No such file"), main_errors():
        (tmp_path / "gone").read_text()


def test_a_script_runs_the_code_beside_it(tmp_path):
    """Whatever checkout the environment was made for."""
    (tmp_path / "crope").mkdir()
    (tmp_path / "crope/__init__.py").write_text("")
    (tmp_path / "crope/errors.py").write_text("raise SystemExit('the code beside the script')")
    (tmp_path / "scripts").mkdir()
    for name in ("cli.py", "train.py"):
        (tmp_path / "scripts" / name).write_text((ROOT / "scripts" / name).read_text())
    command = [sys.executable, tmp_path / "scripts/train.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "the code beside the script\n"
