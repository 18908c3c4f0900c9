"""One holder at a time, among processes; a dead holder holds nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from crope.config import ROOT
from crope.errors import UserError
from crope.lock import holder, locked, try_lock

HOLD = "import sys; from pathlib import Path; from crope.lock import try_lock\n" \
    "lock = try_lock(Path(sys.argv[1])); print(lock is not None, flush=True); sys.stdin.read()"  # fmt: skip


def other_process(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_a_lock_is_held_once_and_a_killed_process_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "run" / ".lock"
    process = other_process(path)
    assert process.stdout and process.stdout.readline() == "True\n"
    assert try_lock(path) is None
    assert holder(path).startswith(f"process {process.pid} on ")
    process.kill()
    process.communicate()
    lock = try_lock(path)
    assert lock is not None and path.exists(), "the file stays and means nothing"
    assert other_process(path).communicate("")[0] == "False\n"
    lock.release()
    assert other_process(path).communicate("")[0] == "True\n"


def test_two_open_files_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    with locked(tmp_path / "x") as lock:
        assert try_lock(tmp_path / "x") is None
        assert lock.is_current()
    again = try_lock(tmp_path / "x")
    assert again is not None
    again.release()


def test_who_waits_is_told_for_whom_and_then_has_it(tmp_path: Path) -> None:
    path, told = tmp_path / "x", []
    first = try_lock(path)
    assert first is not None
    threading.Timer(0.2, first.release).start()
    with locked(path, busy=told.append) as lock:
        assert lock.is_current()
    assert told == [f"process {os.getpid()} on {socket.gethostname()}"]
    assert not path.exists()


def test_a_lock_whose_file_was_replaced_is_no_longer_current(tmp_path: Path) -> None:
    with locked(tmp_path / "x") as lock:
        (tmp_path / "x").unlink()
        assert not lock.is_current()
        (tmp_path / "x").touch()
        assert not lock.is_current()
    with locked(tmp_path / "x") as lock:
        assert lock.is_current(), "the new file is another lock"


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(UserError, match=r"x: this file system has no file locks \(No locks available\); name a folder"):
        try_lock(tmp_path / "x")
