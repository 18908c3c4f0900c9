"""A published run as a run directory, to be edited."""

import json

import pytest
import yaml

from crope.config import PUBLISHED
from crope.files import sha256_file, write_json, write_text
from crope.records.store import curve_rows, read_curves, read_set

SET = PUBLISHED / "quick-fp32-two-threads"  # the smallest one


def edit(path, key, value):
    """Sets a dotted key of one of a record's JSON or YAML files; None removes it."""
    content = yaml.safe_load(path.read_text())
    *sections, last = key.split(".")
    section = content
    for name in sections:
        section = section[name]
    section[last] = value
    if value is None:
        del section[last]
    dump = json.dumps if path.suffix == ".json" else yaml.safe_dump
    path.write_text(dump(content))


def write_rows(path, rows):
    """Writes a record's metrics.jsonl; returns its SHA-256."""
    write_text(path / "metrics.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    return sha256_file(path / "metrics.jsonl")


@pytest.fixture
def folder(tmp_path):
    """The first run of SET as a run directory that may be edited: seed 0, 800 steps."""
    run = read_set(SET)[0]
    path = tmp_path / run.run_id
    write_json(path / "run.json", run.run)
    write_text(path / "config.yaml", yaml.safe_dump(run.config))
    write_json(path / "provenance.json", run.provenance)
    digest = write_rows(path, curve_rows(read_curves(SET, [run.run_id])))
    write_json(path / "summary.json", run.summary | {"metrics_sha256": digest})
    return path
