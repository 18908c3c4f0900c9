"""Files: atomic writes, permissions, metrics that can be continued, files that are no files."""

import os
import socket

import pytest

from crope import files
from crope.errors import DataError
from crope.files import (
    MetricsWriter,
    read_bytes,
    read_metrics,
    sha256_file,
    write_bytes,
    write_json,
)


def full_disk(descriptor):
    raise OSError(28, "No space left on device")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_json(path, {"status": "complete"})
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"status": "other"})
    assert path.read_text() == '{\n  "status": "complete"\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_names_the_file(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError) as caught:
        write_bytes(tmp_path / "x", b"1")
    assert caught.value.filename == str(tmp_path / "x")


@pytest.mark.parametrize("action", ["write", "sync"])
def test_a_failed_line_names_the_file(action, tmp_path, monkeypatch):
    metrics = MetricsWriter(tmp_path / "metrics.jsonl")
    monkeypatch.setattr(os, "fsync", full_disk)
    if action == "write":
        metrics.file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb")
    with pytest.raises(OSError, match="No space") as caught:
        metrics.write({"step": 0})
        metrics.sync()
    assert caught.value.filename == str(tmp_path / "metrics.jsonl")


def test_a_file_is_flushed_before_and_after_it_is_named(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append("fsync"))
    monkeypatch.setattr(os, "replace", lambda old, new: order.append("replace"))
    write_bytes(tmp_path / "x", b"1")
    assert order == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_has_the_permissions_of_the_umask(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        write_bytes(tmp_path / "x", b"1")
        MetricsWriter(tmp_path / "m")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == mode
    assert (tmp_path / "m").stat().st_mode & 0o777 == mode


def test_an_incomplete_last_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n{"step": 2, "val/lo')
    assert read_metrics(path) == [{"step": 0}, {"step": 1}]


def test_a_resumed_writer_replaces_the_lines_after_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as metrics:
        metrics.write({"step": 0, "x": 0.1})
        kept = metrics.sync()
        metrics.write({"step": 1, "x": 0.2})
    with MetricsWriter(path, keep=kept) as metrics:
        assert metrics.sync() == kept
        metrics.write({"step": 1, "x": 7.0})
        assert metrics.sync() == path.stat().st_size
    assert read_metrics(path) == [{"step": 0, "x": 0.1}, {"step": 1, "x": 7.0}]


def test_lines_are_on_the_disk_when_their_size_is_told(tmp_path, monkeypatch):
    """A checkpoint names that size: a power cut must not take the lines and leave the name."""
    with MetricsWriter(tmp_path / "m") as metrics:
        flushed = []
        monkeypatch.setattr(os, "fsync", flushed.append)
        metrics.write({"step": 0})
        assert metrics.sync() == len('{"step": 0}\n')
        assert flushed == [metrics.file.fileno()]


def test_no_line_holds_a_nan(tmp_path):
    with MetricsWriter(tmp_path / "m") as metrics, pytest.raises(ValueError, match="JSON"):
        metrics.write({"step": 0, "x": float("nan")})


def make_special(kind, path):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            os.chdir(path.parent)  # the name of a socket is short
            one.bind(path.name)
    else:
        path.symlink_to("/dev/tty")


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
@pytest.mark.parametrize(
    "use", [read_bytes, files.read_json, read_metrics, sha256_file, MetricsWriter]
)
def test_what_is_no_regular_file_is_not_opened(kind, use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_special(kind, tmp_path / "x")
    with pytest.raises(DataError, match="regular"):
        use(tmp_path / "x")


def test_keys_of_json_files_are_sorted(tmp_path):
    write_json(tmp_path / "x.json", {"b": 1, "a": "ü"})
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == '{\n  "a": "ü",\n  "b": 1\n}\n'
