"""`check` against the rotations of transformers."""

import pytest

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


@pytest.mark.parametrize(
    ("family", "wrong"), [("llama", "interleaved"), ("gptj", "half"), ("cohere", "half")]
)
def test_with_other_pairs_it_does_not(family, wrong, monkeypatch):
    monkeypatch.setattr(adapt, "PAIRINGS", {})  # so that they are accepted
    model = build(family)
    complexify(model, pairing=wrong, init="fresh")
    assert not any(attention.commutes for attention in check(model, {"input_ids": IDS[:, :8]}))


def test_a_norm_with_unequal_gains_in_a_pair_does_not_commute():
    model = build("qwen3")
    complexify(model, init="fresh")
    model.model.layers[1].self_attn.q_norm.weight.data[0] = 2.0
    first, second = check(model, IDS)
    assert first.name == "model.layers.0.self_attn" and first.commutes
    assert second.error > 0.01 and not second.commutes


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
