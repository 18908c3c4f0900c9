"""`check` against the rotations of transformers."""

import pytest
import torch

from crope.adapt import PAIRINGS, check, complexify
from crope.interop import adapt
from tests.interop.families import IDS, build


@pytest.mark.parametrize("family", PAIRINGS)
def test_the_rotation_of_each_family_commutes_with_its_pairs(family):
    model = build(family)
    complexify(model, init="fresh")
    checked = check(model, IDS)
    assert len(checked) == 2
    assert all(attention.commutes for attention in checked)


SLOW = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("family", "wrong", "options"),
    [
        ("llama", "interleaved", {}),
        ("llama", "interleaved", {"head_dim": 128, "rope_parameters": SLOW}),
        ("gptj", "half", {}),
        ("cohere", "half", {}),
    ],
)
def test_with_other_pairs_it_does_not(family, wrong, options, monkeypatch):
    monkeypatch.setattr(adapt, "PAIRINGS", {})  # so that they are accepted
    model = build(family, **options)
    complexify(model, pairing=wrong, init="fresh")
    assert not any(attention.commutes for attention in check(model, {"input_ids": IDS[:, :8]}))


def test_a_norm_with_unequal_gains_in_a_pair_does_not_commute():
    model = build("qwen3")
    complexify(model, init="fresh")
    model.model.layers[1].self_attn.q_norm.weight.data[0] = 2.0
    first, second = check(model, IDS)
    assert first.name == "model.layers.0.self_attn" and first.commutes
    assert second.error > 0.01 and not second.commutes


def test_dropout_does_not_act_and_nothing_is_left_behind():
    model = build(attention_dropout=0.5).train()
    complexify(model, init="fresh")
    assert all(attention.commutes for attention in check(model, IDS))
    layer = model.model.layers[0].self_attn.q_proj
    assert model.training and layer.training
    assert layer(torch.zeros(1, 32)).eq(0).all()  # no noise
    model(IDS[:, :1])  # nor the check, which refuses a single token


@pytest.mark.parametrize(
    ("names", "tokens", "word"),
    [
        ([], 6, "complexify before"),
        (["q_proj"], 6, "both"),
        (["q_proj", "k_proj"], 1, "two"),
    ],
)
def test_what_cannot_be_compared_is_refused(names, tokens, word):
    model = build()
    complexify(model, names=names, init="fresh")
    with pytest.raises(ValueError, match=word):
        check(model, IDS[:, :tokens])
