"""Records on disk: atomic files, torn lines, cut lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crope import record
from crope.record import START, Mark, MetricsWriter, read_metrics, write_bytes, write_json


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"status": "complete"})

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"status": "other"})
    assert path.read_text() == '{\n  "status": "complete"\n}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_the_name_appears_only_after_the_flush_and_is_flushed_too(tmp_path: Path, monkeypatch) -> None:
    order = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(record.os, "fsync", lambda fd: (order.append("fsync"), fsync(fd)))
    monkeypatch.setattr(record.os, "replace", lambda a, b: (order.append("replace"), replace(a, b)))
    write_bytes(tmp_path / "x", b"1")
    assert order == ["fsync", "replace", "fsync"]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n{"step": 2, "val/lo')
    assert read_metrics(path) == [{"step": 0}, {"step": 1}]


def test_lines_past_the_mark_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, keep=START) as metrics:
        for step in range(4):
            metrics.write({"step": step, "x": 0.1 * step})
            if step == 1:
                mark = metrics.mark()
    assert mark == Mark.of(path, mark.size)
    with MetricsWriter(path, keep=mark) as metrics:
        metrics.write({"step": 2, "x": 7.0})
        assert metrics.mark() == Mark.of(path)
    assert read_metrics(path) == [{"step": 0, "x": 0.0}, {"step": 1, "x": 0.1}, {"step": 2, "x": 7.0}]


def test_a_mark_of_other_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"step": 0}\n{"step": 1}\n')
    mark = Mark.of(tmp_path / "m", 12)
    (tmp_path / "m").write_text('{"step": 9}\n{"step": 1}\n')
    with pytest.raises(ValueError, match="first 12 bytes are not the ones that were marked"):
        MetricsWriter(tmp_path / "m", keep=mark)


def test_no_line_holds_a_nan(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "m", keep=START) as metrics, pytest.raises(ValueError, match="JSON"):
        metrics.write({"step": 0, "x": float("nan")})


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {})
    for name in (".lock", f".summary.json.x1{record.TEMPORARY}", "metrics.jsonl"):
        (tmp_path / name).write_text("x")
    record.remove_leftovers(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "metrics.jsonl", "summary.json"]
