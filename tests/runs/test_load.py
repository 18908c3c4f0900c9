"""Finished runs opened again: weights in both formats, weights and tokens that are not the run's."""

from dataclasses import replace

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


def test_the_trained_model_is_read_back(trained, weights):
    saved = load_file(weights)
    state = load_trained(trained).state_dict()
    assert state.keys() == saved.keys()
    assert all(torch.equal(state[name], saved[name]) for name in saved)


def test_weights_name_their_run(trained, weights):
    with safe_open(weights, "pt") as file:
        assert file.metadata() == {"run_id": trained.path.name}


def test_weights_of_an_earlier_version_are_read(trained, weights):
    """weights.pt, a state dict by torch.save."""
    saved, old = load_file(weights), trained.path / "weights.pt"
    torch.save(saved, old)
    weights.unlink()
    before = replace(trained, summary=trained.summary | {"weights_sha256": sha256_file(old)})
    state = load_trained(before).state_dict()
    assert all(torch.equal(state[name], saved[name]) for name in saved)
    old.write_bytes(b"garbage")
    with pytest.raises(UserError, match=r"weights\.pt: corrupt"):
        load_trained(before)


def test_a_run_starts_from_the_values_of_its_seed(tmp_path):
    first, other = (
        build_model(toy_run(tmp_path, f"seed={seed}").config).embedding.weight for seed in (0, 1)
    )
    assert not torch.equal(first, other)


def test_a_stale_run_is_refused(trained):
    stale = replace(trained, summary=trained.summary | {"numerics_version": 0})
    with pytest.raises(UserError, match="changed since"):
        load_trained(stale)


def test_a_model_that_this_code_lacks_is_refused(trained):
    model = trained.config["model"] | {"position": "removed"}
    with pytest.raises(UserError, match=r"no such model.*position"):
        load_trained(replace(trained, config=trained.config | {"model": model}))


def test_weights_of_another_model_are_refused(trained):
    model = trained.config["model"] | {"n_layers": 2}
    with pytest.raises(UserError, match="fit"):
        load_trained(replace(trained, config=trained.config | {"model": model}))


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
