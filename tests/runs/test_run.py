"""Runs as users start them, on a toy corpus: records, skipping, stopping, resuming, failing."""

import errno
import json
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from crope import files
from crope.data.tokens import TokenSet
from crope.errors import (
    ConfigError,
    DataError,
    DataUnavailable,
    InvalidRecord,
    StorageError,
    UserError,
)
from crope.files import read_metrics, sha256_file
from crope.runs import provenance
from crope.runs import run as run_module
from crope.runs.compose import Run
from crope.runs.load import build_model, load_run_tokens, load_trained
from crope.runs.record import PUBLISHED, is_complete, read_record
from crope.runs.run import execute, record_failure, run_lock, stop_on_signal
from crope.train import loop as trainer
from tests.conftest import contents, die, during_step, losses, same_bits, stop, toy_run

pytestmark = pytest.mark.usefixtures("toy_data")


@pytest.fixture(autouse=True)
def handlers_are_restored():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.fixture
def complete(toy_data: TokenSet, tmp_path: Path) -> Run:
    run = toy_run(tmp_path)
    assert execute(run).status == "complete"
    return run


def summary(run: Run) -> dict:
    return json.loads((run.path / "summary.json").read_text())


@pytest.mark.usefixtures("step_clock")
def test_record_of_a_run(toy_data: TokenSet, tmp_path: Path) -> None:
    run = toy_run(tmp_path, "model=crope")
    assert execute(run).status == "complete"
    found = read_record(run.path)
    files = ["config.yaml", "metrics.jsonl", "provenance.json", "summary.json"]
    files += ["weights.safetensors"]
    assert sorted(file.name for file in run.path.iterdir()) == files
    assert found.config == run.container
    identity = {
        "status": "complete",
        "model": "crope",
        "dataset": "tiny",
        "row": "base",
        "scale": "quick",
        "seed": 0,
    }
    assert identity.items() <= found.summary.items()
    assert found.summary["train_tokens"] == 12 * 2 * 16
    assert found.summary["train_passes"] == pytest.approx(384 / 900)
    assert found.summary["weights_sha256"] == sha256_file(run.path / "weights.safetensors")
    assert found.summary["parameters"]["embeddings"] == 300 * 16
    assert found.summary["time"]["total_s"] == 12
    facts = found.provenance
    assert (
        facts["packages"]["torch"]
        and facts["device_kind"] == "cpu"
        and facts["data"] == toy_data.meta
        and facts["scale"] == "quick"
    )
    assert facts["started_utc"] <= facts["finished_utc"]


def test_losses_by_window_belong_to_their_run(complete: Run) -> None:
    """Other bytes are refused, and so are windows of another mean with their own SHA-256."""
    file = complete.path / "val_windows.npy"
    window_nats = np.load(file)
    assert len(window_nats) == 4 and len(set(window_nats)) == 4  # 64 tokens in windows of 16
    files.write_array(file, window_nats + np.float32([0.1, 0, 0, 0]))
    with pytest.raises(InvalidRecord, match="SHA-256"):
        read_record(complete.path)
    digest = {"val_windows_sha256": sha256_file(file)}
    files.write_json(complete.path / "summary.json", summary(complete) | digest)
    with pytest.raises(InvalidRecord, match="mean"):
        read_record(complete.path)


def test_provenance_has_the_threads_that_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that the process has when the run starts."""
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    run = toy_run(tmp_path, "runtime.threads=2")
    execute(run)
    assert read_record(run.path).provenance["threads"] == 2


def test_a_run_starts_from_the_values_of_its_seed(tmp_path: Path) -> None:
    first, other = (
        build_model(toy_run(tmp_path, f"seed={seed}").config).embedding.weight for seed in (0, 1)
    )
    assert not torch.equal(first, other)


def test_the_trained_model_is_read_back(complete: Run, tmp_path: Path) -> None:
    trained, file = read_record(complete.path), complete.path / "weights.safetensors"
    model = load_trained(trained)
    saved = torch.load(file, weights_only=True)
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    stale = replace(trained, summary=trained.summary | {"numerics_version": 0})
    with pytest.raises(UserError, match="changed since"):
        load_trained(stale)
    removed = {**trained.config, "model": trained.config["model"] | {"position": "removed"}}
    with pytest.raises(UserError, match=r"no such model.*position"):
        load_trained(replace(trained, config=removed))
    learned = toy_run(tmp_path, "model=learned")
    execute(learned)
    for data in (b"garbage", (learned.path / "weights.safetensors").read_bytes()):
        file.write_bytes(data)
        with pytest.raises(UserError, match=r"weights\.pt: corrupt"):
            load_trained(trained)
    file.unlink()
    with pytest.raises(UserError, match=r"no weights\.pt; remove"):
        load_trained(trained)
    with pytest.raises(UserError, match=r"published records hold none"):
        load_trained(read_record(next(PUBLISHED.glob("cpu-fp32/rope-ptb-*"))))


def test_tokens_of_another_text_are_refused(toy_data: TokenSet, complete: Run) -> None:
    trained = read_record(complete.path)
    assert load_run_tokens(trained) is toy_data
    toy_data.meta["splits"]["validation"]["sha256"] = "other"
    with pytest.raises(UserError, match="not those of the run"):
        load_run_tokens(trained)


def test_a_complete_run_is_skipped(complete: Run, monkeypatch) -> None:
    before = contents(complete.path)
    monkeypatch.setattr(run_module, "train", lambda *_, **__: pytest.fail("trained again"))
    assert execute(complete).status == "skipped"
    assert contents(complete.path) == before


def test_a_complete_run_on_text_of_another_source_is_refused(
    complete: Run, tmp_path: Path, monkeypatch
) -> None:
    hub = "{path: owner/tiny, revision: v1, train: a.txt, validation: b.txt}"
    (tmp_path / "tiny.yaml").write_text(f"corpus: tiny\nhub: {hub}\n")
    monkeypatch.setattr("crope.data.corpora.CONF_DIR", tmp_path)
    with pytest.raises(DataError, match="source"):
        execute(complete)


def test_a_run_that_another_process_trains_is_busy(tmp_path: Path) -> None:
    run = toy_run(tmp_path)
    with run_lock(run):
        assert execute(run).status == "busy"
    assert execute(run).status == "complete"


@pytest.mark.usefixtures("step_clock")
@pytest.mark.parametrize("at", [5, 7])
def test_a_stopped_run_continues_to_the_same_bits(at: int, tmp_path: Path) -> None:
    """Stopped by SIGTERM at a checkpoint's step and between two."""
    whole, broken = (toy_run(tmp_path / name, "model.dropout=0.2") for name in ("whole", "broken"))
    execute(whole)
    with during_step(at, stop):
        outcome = execute(broken)
    assert (outcome.status, outcome.signal) == ("stopped", signal.SIGTERM)
    assert f"step {at + 1}" in outcome.text
    assert not is_complete(broken.path)
    assert execute(broken).status == "complete"
    assert same_bits(broken, whole)


@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_after_the_last_step_still_asks_for_a_stop(
    fails: bool, tmp_path: Path, monkeypatch
) -> None:
    """Otherwise a sweep would go on with its next run."""

    def late(*args: object, **kwargs: object) -> dict[str, object]:
        signal.raise_signal(signal.SIGTERM)
        if fails:
            raise UserError("no more space")
        return real(*args, **kwargs)

    real = run_module._results
    monkeypatch.setattr(run_module, "_results", late)
    outcome = execute(toy_run(tmp_path))
    assert outcome.signal == signal.SIGTERM
    assert (outcome.status, "no more space" in outcome.text) == (
        ("stopped", True) if fails else ("complete", False)
    )


@pytest.mark.parametrize(
    ("handler", "number"), [(signal.SIG_DFL, signal.SIGHUP), (signal.SIG_IGN, 0)]
)
def test_a_closing_terminal_stops_a_run_once_and_not_under_nohup(handler, number: int) -> None:
    before = signal.signal(signal.SIGHUP, handler)
    with stop_on_signal() as stop:
        for _ in range(2):  # from the kernel and from the shell
            signal.raise_signal(signal.SIGHUP)
        assert stop.signal == number
    assert signal.signal(signal.SIGHUP, before) == handler


def test_a_second_signal_exits_unless_it_is_of_the_same_request(monkeypatch) -> None:
    clock, exits = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(os, "_exit", exits.append)
    with stop_on_signal() as stop:
        for seconds, expected in ((0.0, []), (0.5, []), (2.0, [128 + signal.SIGTERM])):
            clock.now = 100 + seconds
            signal.raise_signal(signal.SIGTERM)
            assert stop.requested() and exits == expected


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("{"), Path.unlink])
def test_a_run_continues_without_its_provenance_and_says_so(spoil, tmp_path: Path, capsys) -> None:
    run = toy_run(tmp_path)
    with during_step(7, stop):
        execute(run)
    spoil(run.path / "provenance.json")
    assert execute(run).status == "complete"
    assert [one["commit"] for one in read_record(run.path).provenance["resumed_from"]] == [None]
    assert "provenance.json" in capsys.readouterr().err


@pytest.mark.usefixtures("step_clock")
@pytest.mark.parametrize("at", [5, 7, 11])
def test_a_killed_run_continues_from_its_checkpoint_to_the_same_bits(
    at: int, tmp_path: Path
) -> None:
    """Nothing is saved on the way out, so the lines after the last checkpoint (steps 5 and 10) must
    be replaced.
    """
    whole, broken = toy_run(tmp_path / "whole"), toy_run(tmp_path / "broken")
    execute(whole)
    with during_step(at, die), pytest.raises(KeyboardInterrupt):
        execute(broken)
    assert max(row["step"] for row in read_metrics(broken.path / "metrics.jsonl")) >= 4
    assert execute(broken).status == "complete"
    assert same_bits(broken, whole)


def test_every_earlier_attempt_is_in_the_record(tmp_path: Path, monkeypatch) -> None:
    """The first from uncommitted code, the second and third from two other commits."""
    run, real = toy_run(tmp_path), provenance.collect

    def attempt(commit: str, *, dirty: bool, stop_at: int) -> dict[str, object]:
        facts = {"commit": commit, "dirty": dirty, "command": f"train.py {commit}"}
        facts |= {"device": f"CPU {commit}", "started_utc": f"day {commit}"}
        with monkeypatch.context() as patch, during_step(stop_at, stop):
            patch.setattr(provenance, "collect", lambda *arguments: real(*arguments) | facts)
            execute(run)
        return facts

    earlier = [attempt("a", dirty=True, stop_at=3), attempt("b", dirty=False, stop_at=7)]
    attempt("c", dirty=False, stop_at=99)
    last = read_record(run.path).provenance
    assert (last["commit"], last["dirty"], last["resumed_from"]) == ("c", False, earlier)


@pytest.mark.usefixtures("step_clock")
@pytest.mark.parametrize(("bad_step", "seconds"), [(4, 5), (11, 5), (5, 6)])
def test_a_loss_that_is_not_finite_fails_the_run_at_its_step(
    bad_step: int, seconds: int, tmp_path: Path, monkeypatch
) -> None:
    """Update 5 has no line of metrics; the checkpoint after it must not be saved."""
    real = trainer.train_step
    run = toy_run(tmp_path, f"runtime.checkpoint_seconds={seconds}")
    with monkeypatch.context() as patch:
        patch.setattr(
            trainer,
            "train_step",
            lambda *a, step, **k: (
                real(*a, step=step, **k) * (math.nan if step == bad_step else 1.0)
            ),
        )
        outcome = execute(run)
    assert outcome.status == "failed" and f"step {bad_step}" in outcome.text
    assert (summary(run)["status"], summary(run)["error"]["step"]) == ("failed", bad_step)
    assert "NonFiniteLoss" in summary(run)["error"]["traceback"]
    assert all(math.isfinite(value) for _, _, value in losses(run))
    assert execute(run).status == "complete", "a failed run is tried again"
    continued = bad_step > seconds  # the first checkpoint's step
    assert ("resumed_from" in read_record(run.path).provenance) == continued


def test_a_failure_is_one_line_and_a_traceback_in_the_record(tmp_path: Path, monkeypatch) -> None:
    def fault() -> None:
        raise RuntimeError("a fault\nof two lines")

    def refuse(*_: object, **__: object) -> None:
        raise UserError("another device")

    run = toy_run(tmp_path)
    with during_step(7, fault):
        outcome = execute(run)
    assert outcome.status == "failed" and outcome.text.endswith("a fault of two lines")
    assert "in fault" in summary(run)["error"]["traceback"] and summary(run)["finished_utc"]
    before = contents(run.path, "*.json")
    with monkeypatch.context() as patch:
        patch.setattr("crope.runs.run.train", refuse)
        with pytest.raises(UserError, match="another device"):
            execute(run)
    assert contents(run.path, "*.json") == before
    with during_step(9, stop):
        assert execute(run).status == "stopped"
    assert not (run.path / "summary.json").exists(), "the failure was that of an earlier attempt"


def test_a_compilers_error_is_short_and_names_the_way_out(tmp_path: Path) -> None:
    kind = type("CppCompileError", (RuntimeError,), {"__module__": "torch._inductor.exc"})

    def fault() -> None:
        raise kind("g++ " * 999)

    with during_step(3, fault):
        text = execute(toy_run(tmp_path)).text
    assert "runtime.compile=false" in text and len(text) < 500


def test_running_out_of_memory_names_the_sizes(tmp_path: Path) -> None:
    """A batch of 2^40 sequences is more than any machine holds."""
    text = execute(toy_run(tmp_path, f"train.batch_size={2**40}")).text
    assert f"train.batch_size={2**40}" in text and "model.d_model=16" in text


@pytest.mark.usefixtures("step_clock")
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
    ids=["allocator", "driver", "cublas"],
)
def test_a_run_that_is_out_of_memory_continues_from_its_checkpoint(
    error: Exception, tmp_path: Path
) -> None:
    """One line that says what to do; afterwards the same bits as a whole run."""

    def exhaust() -> None:
        raise error

    run, whole = toy_run(tmp_path), toy_run(tmp_path / "whole")
    execute(whole)
    with during_step(7, exhaust):
        outcome = execute(run)
    assert outcome.status == "failed" and "runtime.jobs" in outcome.text
    assert len(outcome.text.splitlines()) == 1
    assert execute(run).status == "complete"
    assert read_record(run.path).provenance["resumed_from"]
    assert same_bits(run, whole)


def test_a_missing_corpus_or_a_short_split_leaves_no_folder(tmp_path: Path, monkeypatch) -> None:
    run = toy_run(tmp_path, "train.seq_len=300")
    with pytest.raises(ConfigError, match=r"train\.seq_len"):
        execute(run)
    assert not run.path.exists()

    def absent(*_: object, **__: object) -> None:
        raise DataUnavailable("ptb: not here")

    monkeypatch.setattr(run_module, "load_tokens", absent)
    with pytest.raises(DataUnavailable):
        execute(run)
    # While text is fetched or waited for there is nothing to save: a signal ends it at once.
    monkeypatch.setattr(
        run_module, "load_tokens", lambda *_, **__: signal.raise_signal(signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        execute(run)
    assert not run.path.exists()


@pytest.mark.usefixtures("step_clock")
@pytest.mark.parametrize("where", ["checkpoint", "summary", "metrics"])
def test_a_full_disk_is_a_storage_error_and_loses_nothing(
    where, tmp_path: Path, monkeypatch
) -> None:
    run, whole = toy_run(tmp_path), toy_run(tmp_path / "whole")
    execute(whole)
    real_write, real_append = files.write_bytes, files.MetricsWriter.write
    full = OSError(errno.ENOSPC, "No space left on device")

    def write(path: Path, data: bytes) -> None:
        if path.name.startswith(where):
            raise full
        real_write(path, data)

    def append(self, row) -> None:
        if where == "metrics" and row["step"] == 9:
            raise full
        real_append(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", write)
        patch.setattr("crope.train.checkpoint.write_bytes", write)
        patch.setattr(files.MetricsWriter, "write", append)
        with pytest.raises(StorageError, match="No space"):
            execute(run)
    assert execute(run).status == "complete"
    assert same_bits(run, whole)


def test_a_folder_removed_during_training_is_reported(tmp_path: Path) -> None:
    run = toy_run(tmp_path)
    with (
        during_step(3, lambda: shutil.rmtree(run.path)),
        pytest.raises(UserError, match="removed"),
    ):
        execute(run)
    assert execute(run).status == "complete"


def test_a_corrupt_record_is_neither_used_nor_overwritten(complete: Run) -> None:
    metrics = complete.path / "metrics.jsonl"
    metrics.write_text('{"step": 0}\n')
    with pytest.raises(InvalidRecord, match="remove"):
        execute(complete)
    assert metrics.read_text() == '{"step": 0}\n'


def test_the_failure_of_a_killed_process_is_recorded(complete: Run) -> None:
    record_failure(complete, "killed by signal 9")
    assert is_complete(complete.path)
    (complete.path / "summary.json").unlink()
    record_failure(complete, "killed by signal 9")
    assert summary(complete)["error"]["message"] == "killed by signal 9"
    assert execute(complete).status == "complete"
