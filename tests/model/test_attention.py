"""Softmax attention in both branches and linear attention, against loops in float64; causality;
heads.
"""

import math

import numpy as np
import pytest
import torch

from crope.config import CHUNK
from crope.model import attention as module
from crope.model.attention import (
    ATTENTIONS,
    CausalAttention,
    LinearAttention,
    causal_product,
    features,
)
from crope.model.positions import Positions, build_positions
from tests.model.oracles import assert_allclose, assert_close, model_config, normal, randomise

SCHEMES = ["rope", "crope", "relative_bias", "alibi", "xpos"]


def build_layer(model: str, length: int, **changes: object) -> tuple[CausalAttention, Positions]:
    config = model_config(model, **changes)
    layer = randomise(ATTENTIONS[config.attention](config))
    return layer, randomise(build_positions(config, max_len=length))


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: Positions
) -> torch.Tensor:
    """Masked softmax of each row by itself; the scheme's rotation and bias are checked in
    test_positions.py.
    """
    q, k, bias = positions.rotate(q), positions.rotate(k), positions.bias(q.shape[2])
    rows = []
    for m in range(q.shape[2]):
        scores = (k[:, :, : m + 1] * q[:, :, m, None]).sum(-1) / math.sqrt(q.shape[-1])
        scores = scores if bias is None else scores + bias[:, :, m, : m + 1]
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        rows.append((weights[..., None] * v[:, :, : m + 1]).sum(2))
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize("model", SCHEMES)
def test_values_and_gradients_over_many_tokens(model: str, branch: str) -> None:
    """With respect to queries, keys, values and a trained bias table."""
    layer, positions = build_layer(model, 80)
    outputs, gradients = [], []
    for mix in (layer.mix, reference):
        leaves = [normal(2, 4, 80, 6, seed=seed).requires_grad_() for seed in range(3)]
        y_BHTK = mix(*leaves, positions)
        outputs.append(y_BHTK.detach())
        gradients.append(
            torch.autograd.grad(
                (y_BHTK * normal(2, 4, 80, 6)).sum(), [*leaves, *positions.parameters()]
            )
        )
    assert_close(outputs[0], outputs[1], atol=1e-11)
    for found, expected in zip(*gradients, strict=True):
        assert_close(found, expected, atol=1e-10)


def test_scaled_scores_and_weights_of_bf16_inputs_are_in_float32(branch: str) -> None:
    """The products q.k are rounded to bf16 where attention is written out, so here they are
    integers, exact in bf16; divided by sqrt(6) they are not: scores near 50 would be off by 0.1,
    weights by 10 %. Values are 0 or 1: outputs are sums of weights, rounded twice.
    """
    layer, positions = build_layer("nope", 30)
    q, k = (normal(2, 4, 30, 6, seed=seed).mul(3).round() for seed in range(2))
    v = torch.eye(6, dtype=torch.float64)[torch.arange(30) % 6].expand(2, 4, 30, 6)
    assert torch.equal((q @ k.mT).bfloat16().double(), q @ k.mT)
    with torch.autocast("cpu", torch.bfloat16):
        y_BHTK = layer.mix(q.bfloat16(), k.bfloat16(), v.bfloat16(), positions).double()
    torch.testing.assert_close(y_BHTK, reference(q, k, v, positions), rtol=2.0**-7, atol=0)


def test_branch_is_chosen_by_length(monkeypatch) -> None:
    """On a CPU up to SHORT tokens are written out; one more goes to torch's kernel."""
    lengths = []

    def spy(q_BHTK, k_BHTK, v_BHTK, **_):
        lengths.append(q_BHTK.shape[2])
        return v_BHTK

    monkeypatch.setattr(module.F, "scaled_dot_product_attention", spy)
    layer = randomise(CausalAttention(model_config("nope")))
    for length in (module.SHORT, module.SHORT + 1):
        layer(normal(1, length, 24), Positions())
    assert lengths == [module.SHORT + 1]


def test_attention_dropout_acts_in_training_only(branch: str) -> None:
    layer, positions = build_layer("rope", 9, dropout=0.5)
    plain, x_BTD = build_layer("rope", 9)[0], normal(2, 9, 24)
    assert_close(layer.eval()(x_BTD, positions), plain(x_BTD, positions), atol=1e-12)
    assert (layer.train()(x_BTD, positions) - plain(x_BTD, positions)).abs().max() > 1e-3


# Linear attention


@pytest.mark.parametrize("length", [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_causal_product_is_the_sum_over_the_past(length: int) -> None:
    q, k, v = (normal(2, 3, length, 6, seed=seed) for seed in range(3))
    found, expected = causal_product(q, k, v).numpy(), np.zeros(v.shape)
    for m in range(length):
        weights = (q[:, :, m, None] * k[:, :, : m + 1]).sum(-1, keepdim=True)
        expected[:, :, m] = (weights * v[:, :, : m + 1]).sum(2).numpy()
    assert_allclose(found, expected, atol=1e-10)


def test_features_are_elu_plus_one_and_stay_positive() -> None:
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    expected = [value + 1 if value > 0 else math.exp(value) for value in x.tolist()]
    assert features(x).tolist() == pytest.approx(expected, rel=1e-15)
    assert (features(torch.tensor([-20.0, -80.0])) > 0).all()  # float32's elu + 1 is 0 there


def test_linear_attention_runs_in_float32_under_autocast() -> None:
    """Sums over hundreds of positive terms would stall in bf16 at 256 times the last term."""
    layer, positions = (
        LinearAttention(model_config("rope_linear")),
        build_layer("rope_linear", 400)[1].float(),
    )
    q, k, v = (normal(2, 3, 400, 6, seed=seed).bfloat16() for seed in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        found = layer.mix(q, k, v, positions)
    assert found.dtype == torch.bfloat16
    exact = layer.mix(q.double(), k.double(), v.double(), positions.double())
    assert np.all(
        np.abs((found.double() - exact).numpy()) <= 2.0**-8 * np.abs(exact.numpy()) + 1e-5
    )
