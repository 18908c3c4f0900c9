"""Checkpoints that are damaged, a stranger's, or another run's; every message as the user sees it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from crope import trainer
from crope.checkpoint import checkpoints
from crope.compose import Run
from crope.data.token_files import TokenSet
from crope.execute import execute
from crope.interrupt import Stopped, Unstoppable
from tests.faults import first_difference
from tests.test_trainer import toy_run

STOP_AT = 9  # checkpoints at 3, 6 and, on the way out, 9: the newest two are kept


class StopAt:
    """Asks to stop once `trainer.train_step` has made STOP_AT updates."""

    signal_number: int | None = None


@pytest.fixture
def whole(toy_data: TokenSet, tmp_path: Path) -> Run:
    run = toy_run(tmp_path / "whole", "runtime.checkpoint_every=3", "model.dropout=0.1")
    assert execute(run, stop=Unstoppable()).status == "complete"
    return run


@pytest.fixture
def broken(whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    run, stop, real = toy_run(tmp_path, "runtime.checkpoint_every=3", "model.dropout=0.1"), StopAt(), trainer.train_step

    def step(*args: object, step: int, **kwargs: object) -> torch.Tensor:
        stop.signal_number = 15 if step == STOP_AT - 1 else None
        return real(*args, step=step, **kwargs)

    monkeypatch.setattr(trainer, "train_step", step)
    with pytest.raises(Stopped, match=f"saved at step {STOP_AT}"):
        execute(run, stop=stop)
    monkeypatch.setattr(trainer, "train_step", real)
    assert [path.name.split("-")[1] for path in checkpoints(run.path)] == ["9", "6"]
    return run


def goes_on_to_the_same_bits(run: Run, whole: Run) -> None:
    assert execute(run, stop=Unstoppable()).status == "complete"
    assert first_difference(whole.path, run.path) == ""
    assert checkpoints(run.path) == []


def steps_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    real = trainer.train_step
    monkeypatch.setattr(trainer, "train_step", lambda *a, step, **k: (made.append(step), real(*a, step=step, **k))[1])
    return made


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-100], lambda data: b"", lambda data: data[:500] + b"\x00" + data[501:]]
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(damage, broken, whole, capsys, monkeypatch) -> None:
    newest = checkpoints(broken.path)[0]
    newest.write_bytes(damage(newest.read_bytes()))
    made = steps_made(monkeypatch)
    goes_on_to_the_same_bits(broken, whole)
    said = capsys.readouterr().err
    assert f"{newest}: damaged (its bytes do not have the sha256 in its name); going on from the checkpoint" in said
    assert made[0] == 6


def test_without_any_usable_checkpoint_the_run_starts_again(broken, whole, capsys, monkeypatch) -> None:
    for path in checkpoints(broken.path):
        path.write_bytes(b"zeros")
    made = steps_made(monkeypatch)
    goes_on_to_the_same_bits(broken, whole)
    assert capsys.readouterr().err.count(": damaged (") == 2
    assert made[0] == 0


def test_a_strangers_checkpoint_runs_no_code(broken, whole, capsys, tmp_path) -> None:
    """A pickle that would write a file, under a name whose sha256 fits it."""
    import hashlib

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "boom"),)

    data = pickle.dumps(Bomb())
    stranger = broken.path / f"checkpoint-11-{hashlib.sha256(data).hexdigest()[:16]}.pt"
    stranger.write_bytes(data)
    goes_on_to_the_same_bits(broken, whole)
    assert not (tmp_path / "boom").exists()
    assert f"{stranger}: not a checkpoint of this program" in capsys.readouterr().err


@pytest.mark.parametrize("edit", ["", '{"step": 0, "val/loss_nats": 1.0}\n'])
def test_lines_that_do_not_belong_to_the_checkpoint_are_not_built_upon(edit, broken, whole, capsys, monkeypatch):
    """metrics.jsonl emptied, or rewritten by hand, between two attempts: the whole run is made again."""
    (broken.path / "metrics.jsonl").write_text(edit)
    made = steps_made(monkeypatch)
    goes_on_to_the_same_bits(broken, whole)
    assert capsys.readouterr().err.count("metrics.jsonl is not the one it was saved with") == 2
    assert made[0] == 0


def test_another_text_is_not_gone_on_with(broken, whole, capsys, toy_data: TokenSet, monkeypatch) -> None:
    """`tiny` varies with Python's version; its run id does not."""
    made = steps_made(monkeypatch)
    toy_data.meta["splits"]["train"]["sha256"] = "other"
    assert execute(broken, stop=Unstoppable()).status == "complete"
    assert "made with another train text (train, now other)" in capsys.readouterr().err
    assert made[0] == 0


def test_code_of_another_shape_is_told(broken, toy_data, monkeypatch) -> None:
    real = trainer.GPT

    def wider(config, **options):
        config.d_model = 32
        return real(config, **options)

    monkeypatch.setattr(trainer, "GPT", wider)
    from crope.errors import UserError

    with pytest.raises(UserError, match=r"is of another model than this code makes .* remove "):
        execute(broken, stop=Unstoppable())


def test_a_folder_removed_under_a_run_ends_it_in_one_line(toy_data, tmp_path, monkeypatch) -> None:
    from crope.errors import UserError

    run = toy_run(tmp_path, "runtime.checkpoint_every=3")
    real = trainer.train_step

    def remove(*args, step, **kwargs):
        if step == 4:
            shutil.rmtree(run.path)
        return real(*args, step=step, **kwargs)

    monkeypatch.setattr(trainer, "train_step", remove)
    with pytest.raises(UserError) as error:
        execute(run, stop=Unstoppable())
    assert str(error.value) == f"{run.path}: removed while the run trained; the same command starts it again"
    assert not run.path.exists()


def test_a_checkpoint_holds_no_timing(broken) -> None:
    """What is in it: enough to go on, and nothing that a reader could not check."""
    found = torch.load(checkpoints(broken.path)[0], weights_only=True)
    assert sorted(found) == ["made_with", "metrics", "model", "optimizer", "scheduler", "step"]
    assert json.dumps(found["made_with"]) and found["step"] == STOP_AT
