"""Runs as users start them, on a toy corpus: records, skipping, stopping, resuming, failing."""

import errno
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from crope.config import DataConfig, HubConfig
from crope.errors import ConfigError, DataError, InvalidRecord, StorageError, UserError
from crope.files import read_json, sha256_file
from crope.plan.identity import cell_key
from crope.records.derive import derive
from crope.records.locks import run_lock
from crope.records.store import is_complete, read_record
from crope.runs.load import build_model
from crope.runs.provenance import collect
from crope.runs.run import execute, record_failure
from crope.train.checkpoint import checkpoints
from crope.train.update import Updates
from tests.conftest import contents, during_step, raises_one_line, same_bits, stop, toy_run
from tests.records.conftest import edit

pytestmark = pytest.mark.usefixtures("toy_data")


@pytest.fixture
def run(tmp_path):
    return toy_run(tmp_path)


@pytest.fixture
def complete(run):
    assert execute(run).status == "complete"
    return run


def summary(run):
    return read_json(run.path / "summary.json")


FILES = "config.yaml metrics.jsonl provenance.json run.json summary.json weights.safetensors"


def test_the_record_of_a_run(step_clock, toy_data, run):
    """12 steps of 2 sequences of 16 tokens, on 900."""
    execute(run)
    assert sorted(contents(run.path)) == FILES.split()
    found = read_record(run.path)
    assert found.config == run.container
    assert found.run.items() > run.names.items()
    assert found.run["cell_key"] == cell_key(run.container)
    assert found.summary["status"] == "complete"
    assert found.summary["train_passes"] == pytest.approx(384 / 900)
    assert found.summary["time"]["total_s"] == 12
    assert found.summary["weights_sha256"] == sha256_file(run.path / "weights.safetensors")
    assert found.provenance["data"] == toy_data.meta
    assert found.provenance["started_utc"] <= found.provenance["finished_utc"]


def test_a_finished_run_says_where_it_is_and_what_was_special(tmp_path):
    run = toy_run(tmp_path, "train.lr=0.003")
    text = execute(run).text
    loss = summary(run)["val_full"]["final_nats"]
    assert text.startswith(f"{run.path} (quick, B=2, L=16, ")
    assert "train.lr=0.003" in text
    assert f"{loss:.4f} nats per token" in text


def test_provenance_has_the_threads_that_train(tmp_path):
    """Not those that the process has when the run starts."""
    run = toy_run(tmp_path, "runtime.threads=2")
    assert collect(run.config.runtime, torch.device("cpu"), {})["threads"] == 2


def test_files_are_written_in_the_order_in_which_they_count(run, monkeypatch):
    """First what the run is, last its summary, and only then its checkpoints go."""
    real, written = os.replace, []

    def replace(source, target):
        written.append(Path(target).name)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr("crope.runs.run.remove_checkpoints", lambda _: written.append("removed"))
    execute(run)
    names = "run.json config.yaml provenance.json weights.safetensors provenance.json summary.json"
    kept = [name for name in written if not name.startswith("checkpoint")]
    assert kept == [*names.split(), "removed"]


def test_a_complete_run_is_not_trained_again(complete):
    before = contents(complete.path)
    assert execute(complete).status == "skipped"
    assert contents(complete.path) == before


def test_a_run_that_another_command_completes_before_the_lock_is_had_is_skipped(run):
    def lock(path):
        with mock.patch("crope.runs.run.run_lock", run_lock):
            assert execute(run).status == "complete"
        return run_lock(path)

    with mock.patch("crope.runs.run.run_lock", lock):
        assert execute(run).status == "skipped"


def by_other_code(run):
    """Makes the record that of another positions.py."""
    edit(run.path / "run.json", "code", {"crope/model/positions.py": "000000"})
    return run


def test_a_run_of_other_code_is_skipped_with_the_file_and_trained_anew_on_demand(complete):
    """Once: the same command again skips it. The old folder is kept."""
    before = contents(by_other_code(complete).path)
    told = execute(complete)
    assert told.status == "skipped"
    assert "crope/model/positions.py changed since" in told.text
    again = toy_run(complete.config.results_dir, "runtime.again=true")
    assert (execute(again).status, execute(again).status) == ("complete", "skipped")
    assert contents(complete.path.parents[1] / "replaced" / f"{complete.run_id}.0") == before
    assert "changed since" not in execute(complete).text


def test_a_run_to_which_code_was_only_added_is_not_trained_anew(complete):
    code = read_json(complete.path / "run.json")["code"]
    earlier = {file: digests[:6] for file, digests in code.items()}
    edit(complete.path / "run.json", "code", earlier)
    again = toy_run(complete.config.results_dir, "runtime.again=true")
    assert execute(again).status == "skipped"


def test_a_run_is_not_moved_away_before_its_data_are_there(complete):
    again = toy_run(by_other_code(complete).config.results_dir, "runtime.again=true")
    with (
        mock.patch("crope.runs.run.load_tokens", side_effect=DataError("none")),
        pytest.raises(DataError),
    ):
        execute(again)
    assert is_complete(complete.path)


def test_a_continued_run_is_one_of_the_code_that_began_it(step_clock, run):
    with during_step(7, stop):
        execute(run)
    assert "positions.py changed since" in execute(by_other_code(run)).text


def test_a_continued_run_is_one_of_the_code_that_ended_it_too(step_clock, run):
    with during_step(7, stop):
        execute(run)
    code = read_json(run.path / "run.json")["code"]
    other = code | {"crope/model/positions.py": "000000"}
    with mock.patch("crope.records.run_json.code_digests", lambda: other):
        execute(run)
    assert "positions.py changed since" in execute(run).text


def test_a_complete_run_on_text_of_another_source_is_refused(complete):
    data = DataConfig("tiny", HubConfig("owner/tiny", "v1", train="a.txt", validation="b.txt"))
    with pytest.raises(DataError, match="source"):
        execute(replace(complete, config=replace(complete.config, data=data)))


def test_a_corrupt_summary_is_neither_used_nor_overwritten(complete):
    file = complete.path / "summary.json"
    file.write_text('{"status": "comp')
    with pytest.raises(InvalidRecord, match="move the folder"):
        execute(complete)
    assert file.read_text() == '{"status": "comp'


def test_a_complete_run_is_skipped_in_a_folder_that_may_only_be_read(complete):
    (complete.path.parents[1] / "locks").rename(complete.path / "no locks")
    with mock.patch("pathlib.Path.mkdir", side_effect=OSError(errno.EROFS, "read-only")):
        assert execute(complete).status == "skipped"


def test_a_run_of_another_user_costs_no_other_run(run):
    """Its lock is there, and may not be written to."""
    with run_lock(run.path):
        pass
    with (
        mock.patch("crope.records.locks.FileLock", side_effect=PermissionError),
        raises_one_line(UserError, "owner") as caught,
    ):
        execute(run)
    assert not isinstance(caught.value, StorageError)


def test_a_run_that_was_stopped_at_another_precision_is_named(run, capsys):
    other = toy_run(run.config.results_dir, "train.precision=bf16")
    with during_step(7, stop):
        execute(other)
    execute(run)
    assert f"{other.run_id} was stopped" in capsys.readouterr().err
    execute(other)
    assert "was stopped" not in capsys.readouterr().err


def test_a_run_that_another_process_trains_is_busy(run):
    with run_lock(run.path):
        assert execute(run).status == "busy"


def test_a_stopped_run_says_at_which_step_and_is_not_complete(run):
    """That it continues to the same bits is tested with its checkpoints."""
    with during_step(6, stop):
        outcome = execute(run)
    assert outcome.status == "stopped"
    assert outcome.signal == signal.SIGTERM
    assert "step 7" in outcome.text
    assert not is_complete(run.path)


def test_a_signal_after_the_last_step_still_asks_for_a_stop(run, monkeypatch):
    """Otherwise a sweep would go on with its next run."""

    def stop_and_derive(*args):
        stop()
        return derive(*args)

    monkeypatch.setattr("crope.runs.run.derive", stop_and_derive)
    outcome = execute(run)
    assert (outcome.status, outcome.signal) == ("complete", signal.SIGTERM)


def test_every_earlier_attempt_is_in_the_record(run, monkeypatch):
    """Two earlier ones, of other commits than the one that completes the run."""
    for commit, stop_at in (("a", 3), ("b", 7), ("c", None)):
        made = {"commit": commit}
        monkeypatch.setattr(
            "crope.runs.provenance.collect", lambda *args, made=made: collect(*args) | made
        )
        with during_step(stop_at, stop):
            execute(run)
    last = read_record(run.path).provenance
    assert last["commit"] == "c"
    assert [attempt["commit"] for attempt in last["resumed_from"]] == ["a", "b"]
    assert "data" not in last["resumed_from"][1]


@pytest.mark.parametrize(("bad_step", "seconds", "saved"), [(11, 5, 10), (5, 6, 0)])
def test_a_loss_that_is_not_finite_fails_the_run_at_its_step(
    bad_step, seconds, saved, step_clock, tmp_path
):
    """Update 5 has no line of metrics; the checkpoint after it must not be saved."""
    run = toy_run(tmp_path, f"runtime.checkpoint_seconds={seconds}")
    real = Updates.train_step

    def step(updates, *, step):
        loss, norm = real(updates, step=step)
        return loss * (math.nan if step == bad_step else 1.0), norm

    with mock.patch.object(Updates, "train_step", step):
        execute(run)
    assert summary(run)["error"]["type"] == "NonFiniteLoss"
    assert summary(run)["error"]["step"] == bad_step
    assert checkpoints(run.path)[0].name.split("-")[1] == str(saved)
    assert execute(run).status == "complete"  # a failed run is tried again


def fail():
    raise RuntimeError("a fault\nof two lines")


def test_a_failure_is_one_line_and_a_traceback_in_the_record(run):
    with during_step(7, fail):
        outcome = execute(run)
    assert outcome.status == "failed"
    assert outcome.text.endswith("a fault of two lines")
    assert "in fail" in summary(run)["error"]["traceback"]
    assert read_record(run.path).summary["status"] == "failed"


def test_the_record_of_a_failure_stays_until_the_next_attempt_ends(run):
    with during_step(7, fail):
        execute(run)
    before = contents(run.path, "summary.json")
    with during_step(9, stop):
        execute(run)
    assert contents(run.path, "summary.json") == before
    assert execute(run).status == "complete"


def test_a_run_that_cannot_be_saved_fails_before_its_first_step(run, monkeypatch):
    """Two parameters in one memory, which are two to the optimiser."""
    steps = mock.Mock()
    monkeypatch.setattr(Updates, "train_step", steps)

    def shared(config):
        model = build_model(config)
        attention = model.blocks[0].attn
        attention.k_proj.a = torch.nn.Parameter(attention.q_proj.a.detach())
        return model

    monkeypatch.setattr("crope.runs.run.build_model", shared)
    assert "share memory" in execute(run).text
    assert not steps.called


def test_a_short_split_leaves_no_folder(tmp_path):
    run = toy_run(tmp_path, "train.seq_len=300")
    with pytest.raises(ConfigError, match=r"train\.seq_len"):
        execute(run)
    assert not run.path.exists()


def test_a_part_that_no_registry_has_leaves_no_folder(tmp_path, own_conf):
    """Misspelt in the model's own file, which the command line is checked against."""
    (own_conf / "model/misspelt.yaml").write_text("position: rotary\nprojection: rael\n")
    run = toy_run(tmp_path, "model=misspelt")
    with raises_one_line(ConfigError, r"model\.projection=rael.*real"):
        execute(run)
    assert not run.path.exists()


def test_a_signal_while_text_is_waited_for_ends_at_once(run, monkeypatch):
    """There is nothing to save yet."""

    def interrupt(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("crope.runs.run.load_tokens", interrupt)
    with pytest.raises(KeyboardInterrupt):
        execute(run)
    assert not run.path.exists()


@pytest.mark.parametrize(
    ("start", "number"),
    [
        ("checkpoint", errno.ENOSPC),
        ("weights", errno.EIO),
        ("summary", errno.ESTALE),
    ],
)
def test_a_file_that_cannot_be_written_is_a_storage_error_and_loses_nothing(
    start, number, step_clock, run, tmp_path
):
    """Trained runs are not called failed: a sweep would go on, and so would the fault."""
    real = os.replace

    def replace(source, target):
        if Path(target).name.startswith(start):
            raise OSError(number, os.strerror(number))
        real(source, target)

    words = f"{os.strerror(number)}.*{start}.*another results_dir"
    with mock.patch("os.replace", replace), raises_one_line(StorageError, words):
        execute(run)
    assert not (run.path / "summary.json").exists()
    assert execute(run).status == "complete"
    whole = toy_run(tmp_path / "whole")
    execute(whole)
    assert same_bits(run, whole)


def test_the_failure_of_a_killed_process_is_recorded(complete):
    """But a complete run is not called failed."""
    record_failure(complete, "killed by signal 9")
    assert is_complete(complete.path)
    (complete.path / "summary.json").unlink()
    record_failure(complete, "killed by signal 9")
    assert summary(complete)["error"]["message"] == "killed by signal 9"
