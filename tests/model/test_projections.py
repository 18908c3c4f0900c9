"""The Q, K and V projections: what they store, what they compute, and the variance of their outputs
at the start.
"""

import cmath

import pytest
import torch

from crope.config import INIT_STD
from crope.model.complex_linear import ComplexLinear
from crope.model.positions import RotaryEmbedding
from crope.model.projections import (
    BlockDiagonalLinear,
    ConjugateLinear,
    LowRankLinear,
)
from tests.model.oracles import assert_close, build, model_config, normal, randomise

HALF = ["lowrank", "blockdiag", "halved", "complex", "complex_misaligned", "conjugate"]


def attention_of(projection, *, width, seed=0):
    config = model_config("rope", projection=projection, d_model=width, n_layers=1)
    return build(config, vocab=64, max_len=8, seed=seed).blocks[0].attn


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("real", "rrr"),
        ("complex", "ccc"),
        ("complex_qk", "ccr"),
        ("complex_v", "rrc"),
        ("complex_wide", "ccc"),
        ("conjugate", "jcc"),
        ("multi_query", "rrr"),
    ],
)
def test_which_of_q_k_v_are_complex(name, kinds):
    classes = {
        "c": ComplexLinear,
        "r": torch.nn.Linear,
        "j": ConjugateLinear,
    }
    for layer, kind in zip(attention_of(name, width=48).qkv, kinds, strict=True):
        assert type(layer) is classes[kind]


def rotary_scores(attention, x_BTD):
    rotary = RotaryEmbedding(12, 8).double()
    q, k = (attention.heads(layer(x_BTD)) for layer in attention.qkv[:2])
    return rotary.rotate(q) @ rotary.rotate(k).mT


@pytest.mark.parametrize(
    ("projection", "invariant"),
    [
        ("complex", True),
        ("complex_qk", True),
        ("conjugate", False),
    ],
)
def test_a_common_phase_of_all_tokens_changes_the_score_of_conjugate_alone(projection, invariant):
    """Every complex channel of the input times e^{0.7i}: Eq. 12's scores of CRoPE stay the same."""
    attention = randomise(attention_of(projection, width=48))
    x_BTD = normal(2, 7, 48)
    turned = torch.view_as_complex(x_BTD.unflatten(-1, (-1, 2))) * cmath.exp(0.7j)
    turned_BTD = torch.view_as_real(turned).flatten(-2)
    change = rotary_scores(attention, turned_BTD) - rotary_scores(attention, x_BTD)
    assert (change.abs().max() < 1e-9) == invariant


@pytest.mark.parametrize(
    ("layer", "rank"),
    [
        (LowRankLinear, 2),
        (BlockDiagonalLinear, 8),
        (ConjugateLinear, 8),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_the_dense_weight_is_what_the_layer_multiplies_by(layer, rank, bias):
    """Its rank is full, or 8 * 12 // 40."""
    made = randomise(layer(8, 12, bias=bias))
    x_BD = normal(5, 8)
    expected = x_BD @ made.weight.T
    if bias:
        expected += made.bias
    assert_close(made(x_BD), expected, atol=1e-12)
    assert torch.linalg.matrix_rank(made.weight) == rank


@pytest.mark.parametrize("name", ["real", *HALF])
def test_outputs_start_with_the_variance_of_the_real_projection(name):
    """Of a white input x_D: 0.02^2 D. Over 128 to 1,024 outputs and 400 inputs in each of 3
    projections: within 7 %.

    (Outputs share the weights: at rank 64 the variance estimate has a relative spread of about 2
    %.)
    """
    x_BD = normal(400, 256).float()
    with torch.no_grad():
        outputs = torch.cat([layer(x_BD) for layer in attention_of(name, width=256).qkv])
    assert outputs.var().item() == pytest.approx(INIT_STD**2 * 256, rel=0.07)
