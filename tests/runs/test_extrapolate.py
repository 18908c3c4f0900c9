"""Length extrapolation: the same targets at every length, against one window at a time in float64."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from crope.errors import UserError
from crope.files import read_json
from crope.model.gpt import GPT
from crope.plan.compose import load_run
from crope.records.store import read_record
from crope.runs import extrapolate as module
from crope.runs.extrapolate import (
    extrapolate,
    extrapolate_all,
    losses_by_length,
)
from crope.runs.load import load_trained
from crope.runs.run import execute
from tests.conftest import (
    TOY_OVERRIDES,
    TOY_VOCAB,
    make_toy_tokens,
    toy_run,
)
from tests.model.oracles import slow_losses
from tests.toy_runs import toy_corpus, train_toy

SPLIT = np.random.default_rng(2).integers(TOY_VOCAB, size=300).astype(np.uint16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    with toy_corpus(path / "tokens"):
        yield path


@pytest.fixture(scope="module")
def trained(folder):
    """A run whose last full pass read the whole split, of 299 targets."""
    return train_toy(folder, "eval.full_tokens=0")


@pytest.mark.parametrize(
    "name",
    [
        "xpos",
        "rope",
        "relative_bias",
        "alibi",
        "nope",
        "crope_linear",
    ],
)
def test_losses_at_each_length(name):
    """299 targets, not a multiple of any length: every length has all of them. The weights are
    large, so that positions matter; the dropout is off.
    """
    config = load_run(
        [*TOY_OVERRIDES, f"model={name}", "model.dropout=0.5", "eval.full_tokens=0"]
    ).config
    model = GPT(config.model, vocab_size=TOY_VOCAB, max_len=64, seed=3)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter *= 20 if "q_proj" in key or "k_proj" in key else 5
    lengths = (16, 32, 64)
    means, count = losses_by_length(model, SPLIT, lengths, config=config)
    assert count == 299
    model.eval()
    expected = [slow_losses(model, SPLIT, length).mean() for length in lengths]
    assert means == pytest.approx(expected, rel=1e-5)
    assert max(means) - min(means) > 1e-3  # context does matter to these weights


def test_the_file_holds_what_is_returned(trained):
    result = extrapolate(trained)
    assert read_json(trained.path / "extrapolation.json") == result
    assert (result["trained_seq_len"], result["factors"]) == (16, [1, 2, 4])
    lengths = [(line["seq_len"], line["tokens"]) for line in result["lengths"]]
    assert lengths == [(16, 299), (32, 299), (64, 299)]


def test_a_part_of_the_split_is_the_same_spans_at_each_length(trained, folder):
    """Of 70 tokens two spans of 32: the first one of the split and its last whole one."""
    split = make_toy_tokens(folder).validation
    model = load_trained(trained, max_len=32)
    config = load_run([*TOY_OVERRIDES, "eval.full_tokens=70"]).config
    means, count = losses_by_length(model, split, (16, 32), config=config)
    assert count == 64
    for length, mean in zip((16, 32), means, strict=True):
        first = slow_losses(model, split[:33], length)
        last = slow_losses(model, split[256:289], length)
        assert mean == pytest.approx(np.mean([first, last]), rel=1e-5)


@pytest.mark.parametrize(("tokens", "notes"), [(65, 0), (64, 1)])
def test_a_length_needs_a_target_at_each_position(tokens, notes, trained, monkeypatch):
    short = SimpleNamespace(validation=SPLIT[:tokens])
    monkeypatch.setattr(module, "load_run_tokens", lambda record: short)
    result = extrapolate(trained)
    assert [line["loss_nats"] for line in result["lengths"]].count(None) == notes
    assert str(result).count("the validation split has only 64 tokens") == notes


def test_what_is_measured_is_not_measured_again(folder):
    record = train_toy(folder, "model=rope", "seed=2")
    result = extrapolate(record)
    (record.path / "weights.safetensors").unlink()
    assert extrapolate(read_record(record.path)) == result
    with pytest.raises(UserError, match=r"no weights\.safetensors; move"):
        extrapolate(record)


def test_the_precision_is_that_of_the_run(folder):
    """Under bf16 autocast: otherwise the loss would not be the recorded one."""
    record = train_toy(folder, "model=crope", "train.precision=bf16", "eval.full_tokens=0")
    record.config["runtime"]["device"] = "cuda"  # which is not here
    line = extrapolate(record)["lengths"][0]
    assert line["tokens"] == 299
    assert line["loss_nats"] == pytest.approx(record.summary["val_full"]["final_nats"], rel=1e-6)


def test_learned_positions_are_not_defined_past_their_table(folder):
    result = extrapolate(train_toy(folder, "model=learned"))
    once, twice, four_times = result["lengths"]
    assert once["loss_nats"] > 0
    assert twice["loss_nats"] is None
    assert "not defined" in twice["note"]
    assert four_times["loss_nats"] is None


def test_a_run_that_cannot_be_measured_is_a_problem_and_stops_no_other(folder):
    """The runs have no weights, have diverged, have weights, and are not there."""
    options = ("seed=3", "train.lr=1e30", "seed=4")
    runs = [toy_run(folder, option) for option in options]
    for run in runs:
        execute(run)
    first, _, last = runs
    (first.path / "weights.safetensors").unlink()
    (problem,) = extrapolate_all([*runs, toy_run(folder, "seed=5")])
    assert problem.startswith(f"{first.run_id}: ")
    assert "weights" in problem
    assert (last.path / "extrapolation.json").exists()


def test_a_folder_that_may_only_be_read_is_a_problem(folder, monkeypatch):
    """Another user's: the report, which follows, needs no writing there."""
    run = toy_run(folder, "seed=6")
    execute(run)
    denied = mock.Mock(side_effect=PermissionError("extrapolation.json"))
    monkeypatch.setattr(module, "write_json", denied)
    assert extrapolate_all([run]) == [f"{run.run_id}: extrapolation.json"]
