"""Finished runs opened again: weights in both formats, weights and tokens that are not the run's."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from crope.errors import UserError
from crope.files import sha256_file
from crope.runs import load
from crope.runs.load import build_model, load_run_tokens, load_trained
from tests.conftest import toy_run
from tests.toy_runs import toy_corpus, train_toy


@pytest.fixture
def trained(tmp_path):
    with toy_corpus(tmp_path / "tokens"):
        yield train_toy(tmp_path, "train.max_steps=4")


@pytest.fixture
def weights(trained):
    return trained.path / "weights.safetensors"


def assert_loads(record, saved):
    state = load_trained(record).state_dict()
    assert state.keys() == saved.keys()
    assert all(torch.equal(state[name], saved[name]) for name in saved)


def test_the_trained_model_is_read_back(trained, weights):
    assert_loads(trained, load_file(weights))


def test_weights_name_their_run(trained, weights):
    with safe_open(weights, "pt") as file:
        assert file.metadata() == {"run_id": trained.run_id}


def test_weights_of_an_earlier_version_are_read(trained, weights):
    """weights.pt, a state dict by torch.save."""
    saved, old = load_file(weights), trained.path / "weights.pt"
    torch.save(saved, old)
    weights.unlink()
    before = replace(
        trained,
        summary=trained.summary | {"weights_sha256": sha256_file(old)},
    )
    assert_loads(before, saved)
    old.write_bytes(b"garbage")
    with pytest.raises(UserError, match=r"weights\.pt: corrupt"):
        load_trained(before)


def test_a_run_starts_from_the_values_of_its_seed(tmp_path):
    zero, one = (
        build_model(toy_run(tmp_path, f"seed={seed}").config).embedding.weight for seed in (0, 1)
    )
    assert not torch.equal(zero, one)


def test_a_stale_run_is_refused(trained):
    stale = replace(trained, summary=trained.summary | {"numerics_version": 0})
    with pytest.raises(UserError, match="changed since"):
        load_trained(stale)


@pytest.mark.parametrize(("key", "value"), [("position", "removed"), ("n_layers", 2)])
def test_a_model_that_this_code_does_not_build_is_refused(key, value, trained):
    config = trained.config | {"model": trained.config["model"] | {key: value}}
    with pytest.raises(UserError, match="does not fit"):
        load_trained(replace(trained, config=config))


def test_other_bytes_are_refused(trained, weights):
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(UserError, match=r"weights\.safetensors: corrupt"):
        load_trained(trained)


def test_missing_weights_are_named(trained, weights):
    weights.unlink()
    with pytest.raises(UserError, match=r"no weights\.safetensors; remove"):
        load_trained(trained)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_tokens_of_another_text_are_refused(split, trained, monkeypatch):
    tokens = load.load_tokens()
    assert load_run_tokens(trained) is tokens
    monkeypatch.setitem(tokens.meta["splits"][split], "sha256", "other")
    with pytest.raises(UserError, match="not those of the run"):
        load_run_tokens(trained)


def test_the_corpus_is_searched_where_it_is_now(trained, monkeypatch):
    """The folder of the run's configuration may be another machine's."""
    tokens, searched = load.load_tokens(), []

    def find(corpus, tokenizer, *, data_dir):
        searched.append(data_dir)
        return tokens

    monkeypatch.setattr(load, "load_tokens", find)
    monkeypatch.setenv("CROPE_DATA_DIR", "/now")
    load_run_tokens(trained)
    assert searched == [Path("/now")]
