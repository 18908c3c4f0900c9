"""Checkpoints that are corrupt, foreign or of another run: the run falls back and ends with the
same bits.
"""

import hashlib
import io
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crope.data.tokens import TokenSet
from crope.errors import UserError
from crope.runs import run as run_module
from crope.runs.compose import Run
from crope.runs.record import read_record
from crope.runs.run import execute
from crope.train import loop as trainer
from crope.train.checkpoint import checkpoints
from tests.conftest import during_step, same_bits, stop, toy_run

STOP_AT = 9  # checkpoints at 3, 6 and, on the way out, 9: the newest two are kept
OVERRIDES = ("runtime.checkpoint_seconds=3", "model.dropout=0.1")


@pytest.fixture
def whole(toy_data: TokenSet, step_clock: None, tmp_path: Path) -> Run:
    run = toy_run(tmp_path / "whole", *OVERRIDES)
    assert execute(run).status == "complete"
    return run


@pytest.fixture
def broken(whole: Run, tmp_path: Path) -> Run:
    run = toy_run(tmp_path, *OVERRIDES)
    with during_step(STOP_AT - 1, stop):
        assert execute(run).status == "stopped"
    assert [path.name.split("-")[1] for path in checkpoints(run.path)] == ["9", "6"]
    return run


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that are trained from here on."""
    made: list[int] = []
    real = trainer.train_step
    monkeypatch.setattr(
        trainer,
        "train_step",
        lambda *a, step, **k: (made.append(step), real(*a, step=step, **k))[1],
    )
    return made


def continues_to_the_same_bits(run: Run, whole: Run) -> None:
    """And its time is that of all updates, whichever attempt made them: here a second each."""
    assert execute(run).status == "complete"
    assert same_bits(run, whole) and checkpoints(run.path) == []
    assert read_record(run.path).summary["time"]["total_s"] == 12


def flip_a_bit(data: bytes) -> bytes:
    """In the middle, which is a tensor: torch.load alone does not notice."""
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    torch.load(io.BytesIO(changed), weights_only=True)
    return bytes(changed)


@pytest.mark.parametrize("corrupt", [lambda data: data[:-100], lambda data: b"", flip_a_bit])
def test_a_corrupt_checkpoint_falls_back_to_the_previous_one(
    corrupt, broken, whole, updates, capsys
) -> None:
    newest = checkpoints(broken.path)[0]
    newest.write_bytes(corrupt(newest.read_bytes()))
    continues_to_the_same_bits(broken, whole)
    assert updates[0] == 6 and "corrupt" in capsys.readouterr().err


def test_what_is_no_file_is_no_checkpoint(broken, whole, updates) -> None:
    """A fifo would be read for ever."""
    (broken.path / f"checkpoint-10-{'0' * 16}.pt").mkdir()
    os.mkfifo(broken.path / f"checkpoint-11-{'0' * 16}.pt")
    continues_to_the_same_bits(broken, whole)
    assert updates[0] == STOP_AT


def test_a_foreign_checkpoint_runs_no_code_and_is_kept(broken, tmp_path: Path) -> None:
    """A pickle that would create a folder, under a name whose SHA-256 fits it."""

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "boom"),)

    data = pickle.dumps(Bomb())
    foreign = broken.path / f"checkpoint-11-{hashlib.sha256(data).hexdigest()[:16]}.pt"
    foreign.write_bytes(data)
    with pytest.raises(UserError, match="not a checkpoint"):
        execute(broken)
    assert not (tmp_path / "boom").exists()
    assert foreign.exists() and len(checkpoints(broken.path)) == 3


@pytest.mark.parametrize("edited", [lambda text: "", lambda text: text.replace("0", "1", 1)])
def test_a_checkpoint_without_its_metrics_is_not_used(edited, broken, whole, updates) -> None:
    """metrics.jsonl emptied or edited between two attempts: the run starts again."""
    metrics = broken.path / "metrics.jsonl"
    metrics.write_text(edited(metrics.read_text()))
    continues_to_the_same_bits(broken, whole)
    assert updates[0] == 0


@pytest.mark.parametrize("other", ["train corpus", "validation corpus", "device", "run"])
def test_a_checkpoint_made_with_something_else_is_refused_and_kept(
    other: str, broken: Run, whole: Run, toy_data: TokenSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tiny` depends on Python's version; a login node has no GPU; the files of one run lie in the
    folder of another. Afterwards the run still continues where it stopped.
    """
    kept, provenance = checkpoints(broken.path), (broken.path / "provenance.json").read_bytes()
    with monkeypatch.context() as patch:
        resumed = broken
        if "corpus" in other:
            patch.setitem(toy_data.meta["splits"][other.split()[0]], "sha256", "other")
        elif other == "device":
            real = trainer.load_checkpoint
            patch.setattr(
                trainer,
                "load_checkpoint",
                lambda folder, state, made_with: real(
                    folder, state, made_with=made_with | {"kind of device": "cuda"}
                ),
            )
        else:
            resumed = toy_run(Path(broken.config.results_dir), *OVERRIDES, "train.lr=0.01")
            shutil.copytree(broken.path, resumed.path)
        with pytest.raises(UserError, match=other):
            execute(resumed)
    assert checkpoints(broken.path) == kept
    assert (resumed.path / "provenance.json").read_bytes() == provenance
    continues_to_the_same_bits(broken, whole)


def test_a_checkpoint_of_another_architecture_is_an_error(broken, monkeypatch) -> None:
    real = run_module.build_model

    def wider(config):
        return real(replace(config, model=replace(config.model, d_model=32)))

    monkeypatch.setattr(run_module, "build_model", wider)
    with pytest.raises(UserError, match="fit"):
        execute(broken)


def test_a_checkpoint_that_memory_does_not_hold_is_kept(
    broken: Run, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = checkpoints(broken.path)

    def load(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError

    for owner, name in ((torch.optim.AdamW, "load_state_dict"), (torch, "load")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, load)
            outcome = execute(broken)
        assert outcome.status == "failed" and "out of memory" in outcome.text
        assert checkpoints(broken.path) == kept
    continues_to_the_same_bits(broken, whole)
