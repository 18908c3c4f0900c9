"""Checkpoints that are corrupt, foreign or of another run: the run falls back and ends with the
same bits.
"""

import hashlib
import io
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from crope.errors import UserError
from crope.records.store import read_record
from crope.runs.run import execute
from crope.train.checkpoint import checkpoints, load_checkpoint
from tests.conftest import contents, during_step, same_bits, stop, toy_run

OVERRIDES = ("runtime.checkpoint_seconds=3", "model.dropout=0.1")


@pytest.fixture
def whole(toy_data, step_clock, tmp_path):
    run = toy_run(tmp_path / "whole", *OVERRIDES)
    assert execute(run).status == "complete"
    return run


@pytest.fixture
def broken(whole, tmp_path):
    """Stopped with checkpoints at 3, 6 and, on the way out, 8: the newest two are kept."""
    run = toy_run(tmp_path, *OVERRIDES)
    with during_step(7, stop):
        assert execute(run).status == "stopped"
    assert [path.name.split("-")[1] for path in checkpoints(run.path)] == ["8", "6"]
    return run


def continues_to_the_same_bits(run, whole, *, at):
    """Without the update before step `at` once more. Its time is that of all updates, whichever
    attempt made them: a second each.
    """
    with during_step(at - 1, pytest.fail):
        assert execute(run).status == "complete"
    assert same_bits(run, whole)
    assert checkpoints(run.path) == []
    assert read_record(run.path).summary["time"]["total_s"] == 12


def test_a_corrupt_checkpoint_falls_back_to_the_previous_one(broken, whole, capsys):
    """One bit is another, in the middle, which is a tensor: torch.load alone does not notice."""
    newest = checkpoints(broken.path)[0]
    changed = bytearray(newest.read_bytes())
    changed[len(changed) // 2] ^= 1
    torch.load(io.BytesIO(changed))
    newest.write_bytes(changed)
    continues_to_the_same_bits(broken, whole, at=6)
    assert "corrupt" in capsys.readouterr().err


def test_a_checkpoint_without_its_metrics_is_not_used(broken, whole):
    """metrics.jsonl edited between two attempts: the run starts again."""
    metrics = broken.path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("0", "1", 1))
    continues_to_the_same_bits(broken, whole, at=0)


def refused(run, word):
    """And keeps the checkpoints, the metrics and what is known of the attempt that made them."""
    before = contents(run.path, "checkpoint*") | contents(run.path, "*.json*")
    with pytest.raises(UserError, match=word):
        execute(run)
    assert contents(run.path, "checkpoint*") | contents(run.path, "*.json*") == before


def test_a_checkpoint_of_another_corpus_is_refused(split, broken, whole, toy_data):
    """`tiny` depends on Python's version. Afterwards the run continues where it stopped."""
    with mock.patch.dict(toy_data.meta["splits"][split], sha256="other"):
        refused(broken, f"another {split} corpus")
    continues_to_the_same_bits(broken, whole, at=8)


def test_a_checkpoint_of_another_kind_of_device_is_refused(broken, monkeypatch):
    """A login node has no GPU."""

    def load(folder, state):
        made_with = state.made_with | {"kind of device": "cuda"}
        return load_checkpoint(folder, replace(state, made_with=made_with))

    monkeypatch.setattr("crope.train.loop.load_checkpoint", load)
    refused(broken, "another kind of device")


def test_a_checkpoint_of_another_run_is_refused(broken):
    other = toy_run(Path(broken.config.results_dir), *OVERRIDES, "train.lr=0.01")
    shutil.copytree(broken.path, other.path)
    refused(other, "another run")


def test_a_checkpoint_that_memory_does_not_hold_is_kept(broken, whole):
    with mock.patch("torch.load", side_effect=torch.OutOfMemoryError("out of memory")):
        outcome = execute(broken)
    assert outcome.status == "failed"
    assert "out of memory" in outcome.text
    continues_to_the_same_bits(broken, whole, at=8)


def test_a_checkpoint_of_an_earlier_version_has_fewer_options_of_the_optimiser(broken, whole):
    real = torch.load

    def load(*args, **options):
        content = real(*args, **options)
        for group in content["optimizer"]["param_groups"]:
            del group["lr_factor"]
        return content

    with mock.patch("torch.load", load):
        continues_to_the_same_bits(broken, whole, at=8)


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_code_in_a_checkpoint_is_not_executed(broken, tmp_path):
    content = io.BytesIO()
    torch.save({"step": Touch(tmp_path / "executed")}, content)
    digest = hashlib.sha256(content.getvalue()).hexdigest()[:16]
    (broken.path / f"checkpoint-11-{digest}.pt").write_bytes(content.getvalue())
    assert "weights_only" in execute(broken).text
    assert not (tmp_path / "executed").exists()
