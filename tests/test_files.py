"""Files: atomic writes, permissions, metrics that can be continued."""

import os
from unittest.mock import Mock

import pytest
import yaml

from crope.files import (
    MetricsWriter,
    read_metrics,
    read_yaml,
    write_bytes,
)


def test_a_failed_write_leaves_the_old_file_and_no_other_and_is_named(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space") as caught:
        write_bytes(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_that_a_file_has_twice_is_an_error(tmp_path):
    (tmp_path / "x.yaml").write_text("explored:\n  cost: [a]\n  cost: [b]\n")
    with pytest.raises(yaml.YAMLError, match="duplicate key cost"):
        read_yaml(tmp_path / "x.yaml")


def test_a_file_is_flushed_before_it_is_named(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append("fsync"))
    monkeypatch.setattr(os, "replace", lambda old, new: order.append("replace"))
    write_bytes(tmp_path / "x", b"1")
    assert order == ["fsync", "replace"]


def test_a_file_has_the_permissions_of_the_umask(tmp_path):
    """A temporary file would have 0o600, which nobody else may read."""
    before = os.umask(0o022)
    try:
        write_bytes(tmp_path / "x", b"1")
        MetricsWriter(tmp_path / "m")
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o644, path


def test_a_resumed_writer_replaces_the_lines_after_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as metrics:
        metrics.write({"step": 0})
        kept = metrics.sync()
        metrics.write({"step": 1})
    with MetricsWriter(path, keep=kept) as metrics:
        assert metrics.sync() == kept
        metrics.write({"step": 7})
        assert metrics.sync() == path.stat().st_size
    assert read_metrics(path) == [{"step": 0}, {"step": 7}]


def test_lines_are_on_the_disk_when_their_size_is_told_and_at_the_end(tmp_path, monkeypatch):
    """A checkpoint has that size and a summary their digest: a power cut must not take the lines."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor)))
    with MetricsWriter(tmp_path / "m") as metrics:
        metrics.write({"step": 0})
        assert metrics.sync() == len('{"step": 0}\n')
        metrics.write({"step": 1})
    assert [state.st_size for state in flushed] == [12, 24]


def test_no_line_holds_a_nan(tmp_path):
    with MetricsWriter(tmp_path / "m") as metrics, pytest.raises(ValueError, match="JSON"):
        metrics.write({"step": 0, "x": float("nan")})
