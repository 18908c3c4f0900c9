"""Parameters in closed form: the paper's savings."""

import pytest

from crope.model.gpt import count_parameters
from tests.model.oracles import VOCAB, build, model_config


def counted(model, *, vocab=VOCAB, max_len=8, **changes):
    return count_parameters(build(model_config(model, **changes), vocab=vocab, max_len=max_len))


def test_savings_that_the_paper_states():
    """Sec. 6.1: half of the 3 D^2 of Q/K/V per layer, so 1.5 of 4 with the output projection and 1.5
    of 12 with an FFN of ratio 4; nothing else. With GPT-2's vocabulary the whole of RoPE's model has
    4 (12 D^2 + 10 D) + 2 D in blocks and norms, 50,257 D in the embedding.
    """
    size = {"vocab": 50257, "d_model": 128, "n_layers": 4}
    rope, crope = counted("rope", **size), counted("crope", **size)
    assert (rope["qkv"], crope["qkv"]) == (196_608, 98_304)
    assert rope | {"qkv": crope["qkv"], "total": crope["total"]} == crope
    assert rope["total"] == 7_224_704


def test_savings_of_the_literal_reading():
    """Sec. 5.1's sentence halves the output projection's input as well: 3 (1.5 + 0.5) D^2 in all."""
    rope, halved = (counted(name, d_model=64, n_layers=3) for name in ("rope", "halved"))
    assert rope["qkv"] - halved["qkv"] == 18_432
    assert rope["output_projection"] - halved["output_projection"] == 6_144


def test_the_wide_model_is_as_large_as_rope():
    """At D = 64, E is 104, next to 1.6 * 64: 2.5 * 64 * 104 = 16,640 weights of 4 * 64^2 = 16,384."""
    rope, wide = (counted(name, d_model=64, n_layers=3) for name in ("rope", "complex_wide"))
    assert wide["total"] - rope["total"] == 3 * 256


@pytest.mark.parametrize(
    ("model", "changes", "parts"),
    [
        # 3 (D^2 + D) with biases; embedding and head of 70 words each, which 58 rows pad.
        ("rope", {"tied_head": False, "qkv_bias": True}, {"qkv": 3 * 272, "embeddings": 2240}),
        ("learned", {}, {"embeddings": 70 * 16 + 8 * 16}),
        ("relative_bias", {}, {"embeddings": 70 * 16 + 32 * 4}),
        ("mqa", {}, {"qkv": 256 + 2 * 16 * 4}),
    ],
)
def test_parts_of_one_layer_of_width_16(model, changes, parts):
    found = counted(model, vocab=70, d_model=16, n_layers=1, n_heads=4, **changes)
    assert found | parts == found
