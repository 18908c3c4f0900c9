"""`check` against rotations of known pairs, of families of transformers."""

import pytest
import torch

from crope.adapt import check, complexify, layout
from crope.interop import layers
from tests.interop.toys import GROUPED, IDS, SIZES, build

ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
FAMILIES = [
    ("Qwen3ForCausalLM", "half", GROUPED),  # a norm of each head before the rotation
    ("SmolLM3ForCausalLM", "half", GROUPED | {"num_hidden_layers": 4}),  # one layer is not rotated
    ("GPTJForCausalLM", "interleaved", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
    ("CohereForCausalLM", "interleaved", GROUPED),
    ("GlmForCausalLM", "interleaved", GROUPED),  # a part of each head is rotated
    # beside a vision tower, whose rotation in the same module is half-split
    ("Glm4vTextModel", "interleaved", GROUPED | {"rope_parameters": ROPE}),
]


def forget_families(patch):
    """So that wrong pairs are accepted."""
    patch.setattr(layers, "PAIRINGS", {})
    patch.setattr(layers, "_rotated_share", lambda config: 1.0)


@pytest.mark.parametrize(("family", "pairing", "sizes"), FAMILIES)
def test_the_pairing_of_a_family_commutes_with_its_rotation_and_the_other_does_not(
    family, pairing, sizes, monkeypatch
):
    model, other = build(family, **sizes), build(family, **sizes)
    complexify(model)
    assert layout(model).popitem()[1]["pairing"] == pairing
    assert all(attention.commutes for attention in check(model, {"input_ids": IDS}))
    forget_families(monkeypatch)
    complexify(other, pairing="interleaved" if pairing == "half" else "half")
    rotated = [not attention.commutes for attention in check(other, {"input_ids": IDS})]
    assert sum(rotated) == (3 if family == "SmolLM3ForCausalLM" else 2)


def test_a_norm_with_unequal_gains_in_a_pair_does_not_commute():
    model = build("Qwen3ForCausalLM")
    complexify(model)
    model.model.layers[1].self_attn.q_norm.weight.data[0] = 2.0
    first, second = check(model, IDS)
    assert first.name == "model.layers.0.self_attn" and first.commutes
    assert second.error > 0.01 and not second.commutes


def test_check_acts_without_dropout_and_leaves_nothing_behind():
    model = build("LlamaForCausalLM", **GROUPED, attention_dropout=0.5).train()
    complexify(model)
    layer = model.model.layers[0].self_attn.q_proj
    assert all(attention.commutes for attention in check(model, IDS))
    assert model.training and model.config.use_cache
    assert layer(torch.zeros(1, 32)).eq(0).all()  # no noise
    model(IDS[:, :1])  # nor the check, which refuses a single token


REFUSED = [
    ([], 6, "complexify before"),
    (["k_proj", "v_proj"], 6, "both"),
    (["q_proj", "k_proj"], 1, "two"),
]


@pytest.mark.parametrize(("names", "tokens", "word"), REFUSED)
def test_check_refuses_what_it_cannot_compare(names, tokens, word):
    model = build()
    if names:
        complexify(model, names=names)
    with pytest.raises(ValueError, match=word):
        check(model, IDS[:, :tokens])


def test_small_scores_are_told_from_values_with_two_tokens():
    """As Granite's, which are divided by the width of a head instead of its root."""
    model = build("GraniteForCausalLM", **SIZES, head_dim=128, attention_multiplier=1 / 128)
    complexify(model)
    assert all(attention.commutes for attention in check(model, IDS[:, :2]))


def test_wrong_pairs_of_a_slow_rotation_are_noticed_with_few_tokens(monkeypatch):
    rope = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4}
    model = build("LlamaForCausalLM", **SIZES, head_dim=128, rope_parameters=rope)
    forget_families(monkeypatch)
    complexify(model, pairing="interleaved")
    assert not any(attention.commutes for attention in check(model, IDS[:, :8]))
