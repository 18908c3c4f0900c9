"""Runs as users make them, on a toy corpus: records, skipping, resuming, failing."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from crope import execute as execute_module
from crope import trainer
from crope.compose import Run, load_run
from crope.data.token_files import TokenSet
from crope.errors import ConfigError
from crope.execute import execute, is_done
from crope.interrupt import Stopped, StopRequest, Unstoppable
from crope.record import read_metrics, read_record, sha256_file
from tests.conftest import TOY_OVERRIDES


def toy_run(results: Path, *more: str) -> Run:
    return load_run([*TOY_OVERRIDES, f"results_dir={results}", *more])


def weights(run: Run) -> dict[str, torch.Tensor]:
    return torch.load(run.path / "weights.pt", weights_only=True)


def losses(run: Run) -> list[tuple[int, str, float]]:
    """Every loss and learning rate of metrics.jsonl; times are left out."""
    rows = read_metrics(run.path / "metrics.jsonl")
    return [(row["step"], key, row[key]) for row in rows for key in row if key.endswith(("_nats", "/lr"))]


def test_record_of_a_run(toy_data: TokenSet, tmp_path: Path) -> None:
    run = toy_run(tmp_path, "model=crope")
    assert execute(run, stop=StopRequest()).status == "complete"
    record = read_record(run.path)
    assert sorted(file.name for file in run.path.iterdir()) == [
        ".lock",
        "config.yaml",
        "metrics.jsonl",
        "provenance.json",
        "summary.json",
        "weights.pt",
    ]
    assert record.config == run.container
    summary = record.summary
    assert (summary["status"], summary["model"], summary["dataset"], summary["seed"]) == (
        "complete",
        "crope",
        "tiny",
        0,
    )
    assert summary["train_tokens"] == 12 * 2 * 16
    assert summary["train_passes"] == pytest.approx(384 / 900)
    assert summary["weights_sha256"] == sha256_file(run.path / "weights.pt")
    assert summary["metrics_sha256"] == sha256_file(run.path / "metrics.jsonl")
    assert summary["parameters"]["embeddings"] == 300 * 16
    facts = record.provenance
    assert facts["packages"]["torch"] and facts["device_kind"] == "cpu" and facts["data"] == toy_data.meta
    assert facts["started_utc"] <= facts["finished_utc"]
    if (Path(__file__).parents[1] / ".git").exists():
        assert len(facts["commit"]) == 40 and facts["dirty"] in (True, False)


def test_lines_stand_where_they_are_due(toy_data: TokenSet, tmp_path: Path) -> None:
    run = toy_run(tmp_path)
    execute(run, stop=StopRequest())
    rows = read_metrics(run.path / "metrics.jsonl")
    due = {
        key: [row["step"] for row in rows if key in row]
        for key in ("val/loss_nats", "val_full/loss_nats", "train/loss_nats")
    }
    assert due["val/loss_nats"] == [0, 4, 8, 12]
    assert due["val_full/loss_nats"] == [6, 12]
    assert due["train/loss_nats"] == [0, 3, 6, 9]
    rates = [row["train/lr"] for row in rows if "train/lr" in row]
    assert rates == pytest.approx([0.001 * 0.8 ** (step // 4) for step in (0, 3, 6, 9)])


def test_a_complete_run_is_skipped(toy_data: TokenSet, tmp_path: Path, monkeypatch) -> None:
    run = toy_run(tmp_path)
    execute(run, stop=StopRequest())
    before = {file.name: file.read_bytes() for file in run.path.iterdir()}
    monkeypatch.setattr(execute_module, "train", lambda *_, **__: pytest.fail("trained again"))
    assert execute(run, stop=StopRequest()).status == "skipped"
    assert {file.name: file.read_bytes() for file in run.path.iterdir()} == before


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("leave_at", [5, 7])
def test_a_stopped_run_goes_on_to_the_same_bits(
    dropout: float, leave_at: int, toy_data: TokenSet, tmp_path: Path, monkeypatch
) -> None:
    """Stopped at a checkpoint's step and between two."""
    whole = toy_run(tmp_path / "whole", f"model.dropout={dropout}")
    execute(whole, stop=StopRequest())

    broken = toy_run(tmp_path / "broken", f"model.dropout={dropout}")
    real = trainer.train_step

    def stop_there(*args: object, step: int, **kwargs: object) -> torch.Tensor:
        if step == leave_at:
            stop.signal_number = 15
        return real(*args, step=step, **kwargs)

    stop = StopRequest()
    monkeypatch.setattr(trainer, "train_step", stop_there)
    with pytest.raises(Stopped) as stopped:
        execute(broken, stop=stop)
    assert str(stopped.value) == f"stopped: saved at step {leave_at + 1}"
    assert not is_done(broken.path)

    stop.signal_number = None
    monkeypatch.setattr(trainer, "train_step", real)
    assert execute(broken, stop=StopRequest()).status == "complete"
    assert losses(broken) == losses(whole)
    found, expected = weights(broken), weights(whole)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("killed_at", [5, 7, 11])
def test_a_killed_run_goes_on_from_its_checkpoint_to_the_same_bits(
    killed_at: int, toy_data: TokenSet, tmp_path: Path, monkeypatch
) -> None:
    """Nothing is saved on the way out, so lines past the last checkpoint (steps 5 and 10) are there to be cut."""
    whole, broken = toy_run(tmp_path / "whole"), toy_run(tmp_path / "broken")
    execute(whole, stop=StopRequest())
    real = trainer.train_step

    def die_there(*args: object, step: int, **kwargs: object) -> torch.Tensor:
        if step == killed_at:
            raise KeyboardInterrupt
        return real(*args, step=step, **kwargs)

    monkeypatch.setattr(trainer, "train_step", die_there)
    with pytest.raises(KeyboardInterrupt):
        execute(broken, stop=StopRequest())
    assert max(row["step"] for row in read_metrics(broken.path / "metrics.jsonl")) >= 4

    monkeypatch.setattr(trainer, "train_step", real)
    assert execute(broken, stop=StopRequest()).status == "complete"
    assert losses(broken) == losses(whole)
    found, expected = weights(broken), weights(whole)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    facts = read_record(broken.path).provenance
    assert [attempt["commit"] for attempt in facts["resumed_from"]] == [facts["commit"]]


def test_models_see_the_same_batches(toy_data: TokenSet, tmp_path: Path, monkeypatch) -> None:
    seen: dict[str, list[torch.Tensor]] = {}
    real = trainer.sample_batch
    for model in ("xpos", "rope", "crope"):
        batches = seen.setdefault(model, [])

        def note(
            *args: object, into: list[torch.Tensor] = batches, **kwargs: object
        ) -> tuple[torch.Tensor, torch.Tensor]:
            into.append(real(*args, **kwargs)[0])
            return real(*args, **kwargs)

        monkeypatch.setattr(trainer, "sample_batch", note)
        execute(toy_run(tmp_path, f"model={model}"), stop=StopRequest())
    assert len(seen["rope"]) == 12
    assert torch.equal(torch.stack(seen["xpos"]), torch.stack(seen["rope"]))
    assert torch.equal(torch.stack(seen["crope"]), torch.stack(seen["rope"]))
    assert len({batch.numpy().tobytes() for batch in seen["rope"]}) == 12


@pytest.mark.parametrize("bad_step", [4, 11])
def test_a_loss_that_is_not_finite_stops_that_run_at_its_step(
    bad_step: int, toy_data: TokenSet, tmp_path: Path, monkeypatch
) -> None:
    real = trainer.train_step

    def poisoned(*args: object, step: int, **kwargs: object) -> torch.Tensor:
        loss = real(*args, step=step, **kwargs)
        return loss * math.nan if step == bad_step else loss

    monkeypatch.setattr(trainer, "train_step", poisoned)
    run = toy_run(tmp_path)
    outcome = execute(run, stop=StopRequest())
    assert outcome.status == "failed"
    assert f"training loss is not finite at step {bad_step}" in outcome.text
    summary = json.loads((run.path / "summary.json").read_text())
    assert (summary["status"], summary["error"]["step"]) == ("failed", bad_step)
    assert "NonFiniteLoss" in summary["error"]["traceback"]
    assert all(math.isfinite(value) for _, _, value in losses(run))

    monkeypatch.setattr(trainer, "train_step", real)
    assert execute(run, stop=StopRequest()).status == "complete", "a failed run is tried again"


def test_the_loss_that_diverges_is_caught_without_help(toy_data: TokenSet, tmp_path: Path) -> None:
    outcome = execute(toy_run(tmp_path, "train.lr=1e30"), stop=StopRequest())
    assert outcome.status == "failed"
    assert "not finite at step" in outcome.text


def test_a_sequence_longer_than_the_split_is_refused(toy_data: TokenSet, tmp_path: Path) -> None:
    run = toy_run(tmp_path, "train.seq_len=300")
    with pytest.raises(ConfigError, match=r"train.seq_len=300: the validation split has only 300 tokens"):
        execute(run, stop=StopRequest())


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_training_gives_the_same_losses(toy_data: TokenSet, tmp_path: Path) -> None:
    """float32, so the two may differ by the order of sums only."""
    eager, compiled = (
        toy_run(tmp_path / "a", "model=crope"),
        toy_run(tmp_path / "b", "model=crope", "runtime.compile=true"),
    )
    execute(eager, stop=StopRequest())
    assert execute(compiled, stop=StopRequest()).status == "complete"
    assert eager.run_id == compiled.run_id
    for one, other in zip(losses(eager), losses(compiled), strict=True):
        assert one[:2] == other[:2]
        assert one[2] == pytest.approx(other[2], rel=1e-5)


def test_a_batch_in_parts_gives_the_same_losses(toy_data: TokenSet, tmp_path: Path) -> None:
    """The same run id; float32, so the two may differ by the order of sums only."""
    whole, parts = toy_run(tmp_path / "a"), toy_run(tmp_path / "b", "runtime.accumulate=2")
    assert whole.run_id == parts.run_id
    for run in (whole, parts):
        assert execute(run, stop=Unstoppable()).status == "complete"
    for one, other in zip(losses(whole), losses(parts), strict=True):
        assert one[:2] == other[:2]
        assert one[2] == pytest.approx(other[2], rel=1e-6)
    with pytest.raises(ConfigError, match=r"runtime.accumulate=3 .*: must divide train.batch_size=2"):
        toy_run(tmp_path, "runtime.accumulate=3")
