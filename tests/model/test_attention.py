"""Softmax attention in both branches and linear attention, against loops in float64; causality;
heads.
"""

import math

import torch

from crope.config import CHUNK
from crope.model.attention import (
    ATTENTIONS,
    SHORT,
    causal_product,
    features,
    written_out_attention,
)
from crope.model.positions import POSITIONS
from tests.model.oracles import assert_close, model_config, normal, randomise


def build_layer(model, length, **changes):
    config = model_config(model, **changes)
    layer = randomise(ATTENTIONS[config.attention](config))
    return layer, POSITIONS[config.position](config, length)


def test_scaled_scores_and_weights_of_bf16_inputs_are_in_float32():
    """The products q.k are rounded to bf16 where attention is written out, so here they are
    integers, exact in bf16; divided by sqrt(6) they are not: scores near 50 would be off by 0.1,
    weights by 10 %. Values are 0 or 1: outputs are sums of weights, rounded twice.
    """
    q = normal(2, 4, 30, 6, seed=0).mul(3).round()
    k = normal(2, 4, 30, 6, seed=1).mul(3).round()
    v = torch.eye(6).double().repeat(5, 1).expand(2, 4, 30, 6)
    scores = q @ k.mT
    assert torch.equal(scores.bfloat16().double(), scores)
    found = written_out_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), bias=None, dropout=0)
    weights = (scores / math.sqrt(6)).exp().tril()
    expected = weights @ v / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(found.double(), expected, rtol=2.0**-7, atol=0)


def test_branch_is_chosen_by_length(monkeypatch):
    """On a CPU up to SHORT tokens are written out; one more goes to torch's kernel."""
    lengths = []

    def spy(q_BHTK, k_BHTK, v_BHTK, **_):
        lengths.append(q_BHTK.shape[2])
        return v_BHTK

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", spy)
    layer, positions = build_layer("nope", 1)
    for length in (SHORT, SHORT + 1):
        layer(normal(1, length, 24), positions)
    assert lengths == [SHORT + 1]


def test_attention_dropout_acts_in_training_only(branch):
    layer, positions = build_layer("rope", 9, dropout=0.5)
    x_BTD = normal(2, 9, 24)
    expected = layer.eval()(x_BTD, positions)
    assert torch.equal(layer(x_BTD, positions), expected)
    assert (layer.train()(x_BTD, positions) - expected).abs().max() > 1e-3


# Linear attention


def test_causal_product_is_the_sum_over_the_past():
    q, k, v = (normal(2, 3, 3 * CHUNK + 17, 6, seed=seed) for seed in range(3))
    expected = (q @ k.mT).tril() @ v
    assert_close(causal_product(q, k, v), expected, atol=1e-10)


def test_features_stay_positive():
    """Where elu(x) + 1 is 0 in float32."""
    assert (features(torch.tensor([-20.0, -80.0])) > 0).all()


def test_linear_attention_runs_in_float32_under_autocast():
    """Sums over hundreds of positive terms would stall in bf16 at 256 times the last term."""
    layer, positions = build_layer("rope_linear", 400)
    q, k, v = (normal(2, 3, 400, 6, seed=seed).bfloat16() for seed in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        found = layer.mix(q, k, v, positions)
    exact = layer.mix(q.double(), k.double(), v.double(), positions.double())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2.0**-8, atol=1e-5)
