"""Causal attention against a softmax written out with loops, and what belongs to which head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crope.model.attention import CausalAttention
from crope.model.complex_linear import ComplexLinear
from crope.model.positions import build_positions
from tests.model.conftest import ORACLES

MODELS = ["xpos", "rope", "crope"]


def random_input(length: int = 9, width: int = 24) -> torch.Tensor:
    return torch.randn(2, length, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def positions_of(config):
    return build_positions(config, max_len=16).double()


@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_against_written_out_softmax(model: str, qkv_bias: bool, model_config, randomise, slow_attention) -> None:
    config = model_config(model, qkv_bias=qkv_bias)
    attention, x_BTD, positions = randomise(CausalAttention(config)), random_input(), positions_of(config)
    found = attention(x_BTD, positions).detach().numpy()
    for x_TD, y_TD in zip(x_BTD.numpy(), found, strict=True):
        expected = slow_attention(attention, x_TD, n_heads=4, oracle=ORACLES[config.position], positions=positions)
        # The rotary tables are float32.
        np.testing.assert_allclose(y_TD, expected, rtol=0, atol=1e-12 if model == "xpos" else 1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_projections_and_their_biases(model: str, model_config) -> None:
    """Q, K and V are the model's choice, without a bias by default; the output projection is full in all models."""
    projection = ComplexLinear if model == "crope" else torch.nn.Linear
    for qkv_bias in (False, True):
        attention = CausalAttention(model_config(model, qkv_bias=qkv_bias))
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
            assert type(layer) is projection
            assert (layer.bias is not None) == qkv_bias
        assert type(attention.out_proj) is torch.nn.Linear
        assert tuple(attention.out_proj.weight.shape) == (24, 24)
        assert attention.out_proj.bias is not None
    assert CausalAttention(model_config(model)).q_proj.bias is None


@pytest.mark.parametrize("name", ["q_proj", "k_proj"])
def test_complex_pairs_do_not_straddle_heads(name: str, model_config, randomise) -> None:
    """A complex row of Q or K moves the scores of the one head that holds both its channels, and of no other."""
    config, x_BTD = model_config("crope"), random_input()
    attention, positions = randomise(CausalAttention(config)), positions_of(config)
    with torch.no_grad():
        attention.out_proj.weight.copy_(torch.eye(24))  # output channels are the heads' channels
        before = attention(x_BTD, positions)
        layer = getattr(attention, name)
        for row in range(12):
            kept = layer.a[row].clone(), layer.b[row].clone()
            layer.a[row] += 1.0
            layer.b[row] -= 1.0
            moved = (attention(x_BTD, positions) - before).abs().amax(dim=(0, 1)) > 1e-9
            layer.a[row], layer.b[row] = kept
            head = row // 3  # three pairs a head
            assert moved.nonzero().flatten().tolist() == list(range(6 * head, 6 * head + 6))


def test_values_of_a_head_stay_in_its_channels(model_config, randomise) -> None:
    config, x_BTD = model_config("crope"), random_input()
    attention, positions = randomise(CausalAttention(config)), positions_of(config)
    with torch.no_grad():
        attention.out_proj.weight.copy_(torch.eye(24))
        before = attention(x_BTD, positions)
        attention.v_proj.a[4] += 1.0
        moved = (attention(x_BTD, positions) - before).abs().amax(dim=(0, 1)) > 1e-9
    assert moved.nonzero().flatten().tolist() == [8, 9]


def test_attention_dropout_acts_in_training_only(model_config, randomise) -> None:
    config, x_BTD = model_config("rope", dropout=0.5), random_input()
    attention, positions = randomise(CausalAttention(config)), positions_of(config)
    plain = CausalAttention(model_config("rope")).double()
    plain.load_state_dict(attention.state_dict())
    torch.testing.assert_close(attention.eval()(x_BTD, positions), plain(x_BTD, positions), rtol=0, atol=1e-12)
    assert (attention.train()(x_BTD, positions) - plain(x_BTD, positions)).abs().max() > 1e-3
