"""The Q, K and V projections: what they store, what they compute, and the variance of their outputs
at the start.
"""

import pytest
import torch
from torch.nn import Linear

from crope.config import INIT_STD
from crope.model.complex_linear import ComplexLinear
from crope.model.projections import (
    PROJECTIONS,
    BlockDiagonalLinear,
    ConjugateLinear,
    LowRankLinear,
)
from tests.model.oracles import assert_close, build, model_config, normal, randomise


def attention_of(projection, *, width=48):
    return build(model_config("rope", projection=projection, d_model=width)).blocks[0].attn


@pytest.mark.parametrize(
    ("projection", "kinds"),
    [
        ("real", [Linear, Linear, Linear]),
        ("complex", [ComplexLinear, ComplexLinear, ComplexLinear]),
        ("complex_qk", [ComplexLinear, ComplexLinear, Linear]),
        ("complex_v", [Linear, Linear, ComplexLinear]),
        ("conjugate", [ConjugateLinear, ComplexLinear, ComplexLinear]),
    ],
)
def test_which_of_q_k_v_are_complex(projection, kinds):
    assert [type(layer) for layer in attention_of(projection).qkv] == kinds


@pytest.mark.parametrize("kind", [LowRankLinear, BlockDiagonalLinear, ConjugateLinear])
def test_the_dense_weight_is_what_the_layer_multiplies_by(kind):
    layer = randomise(kind(8, 12, bias=True))
    x_BD = normal(5, 8)
    assert_close(layer(x_BD), x_BD @ layer.weight.T + layer.bias, atol=1e-12)


@pytest.mark.parametrize(("sizes", "rank"), [((48, 80), 15), ((6, 6), 1)])
def test_the_rank_is_the_largest_within_half_the_weights(sizes, rank):
    """r (D + E) <= D E / 2: 15 * 128 = 1920; 1 * 12 <= 18."""
    assert LowRankLinear(*sizes).down.shape[0] == rank


@pytest.mark.parametrize("name", PROJECTIONS)
def test_outputs_start_with_the_variance_of_the_real_projection(name):
    """Of a white input x_D: 0.02^2 D. Over 64 to 408 outputs and 400 inputs in each of 3
    projections: within 7 %.

    (Outputs share the weights: at rank 64 the variance estimate has a relative spread of about 2
    %.)
    """
    x_BD = normal(400, 256).float()
    with torch.no_grad():
        qkv = attention_of(name, width=256).qkv
        outputs = torch.cat([layer(x_BD) for layer in qkv], dim=1)
    assert outputs.var().item() == pytest.approx(INIT_STD**2 * 256, rel=0.07)
