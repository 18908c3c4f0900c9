"""Finished runs opened again: weights in both formats, weights and tokens that are not the run's."""

from dataclasses import replace

import pytest

from crope.errors import UserError
from crope.runs import load
from crope.runs.load import load_run_tokens, load_trained
from tests.toy_runs import toy_corpus, train_toy


@pytest.fixture
def trained(tmp_path):
    with toy_corpus(tmp_path / "tokens"):
        yield train_toy(tmp_path, "train.max_steps=4")


@pytest.fixture
def weights(trained):
    return trained.path / "weights.safetensors"


def test_a_stale_run_is_refused(trained):
    with pytest.raises(UserError, match="changed since"):
        load_trained(replace(trained, run=trained.run | {"numerics_version": 0}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position", "removed"),
        ("n_layers", 2),
    ],
)
def test_a_model_that_this_code_does_not_build_is_refused(key, value, trained):
    config = trained.config | {"model": trained.config["model"] | {key: value}}
    with pytest.raises(UserError, match="does not fit"):
        load_trained(replace(trained, config=config))


def test_other_bytes_are_refused(trained, weights):
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(UserError, match=r"weights\.safetensors: corrupt"):
        load_trained(trained)


def test_tokens_of_another_text_are_refused(split, trained, monkeypatch):
    tokens = load.load_tokens()
    assert load_run_tokens(trained) is tokens
    monkeypatch.setitem(tokens.meta["splits"][split], "sha256", "other")
    with pytest.raises(UserError, match="not those of the run"):
        load_run_tokens(trained)
