"""Position schemes against slow references and their papers' closed forms."""

import math

import numpy as np
import pytest
import torch

from crope.model.positions import POSITIONS, Alibi, RelativeBias, RotaryEmbedding
from tests.model.oracles import (
    CHOICES,
    WIDTH,
    alibi_bias,
    model_config,
    normal,
    randomise,
    t5_bias,
    turn_by_complex_multiplication,
)


def test_bf16_keeps_its_dtype_and_is_rotated_in_float32():
    """Rounded once, at the end: within half a unit in the last place.

    In bf16, cancellation exceeds that by far.
    """
    x_BHTK = normal(2, 3, 200, 8).bfloat16()
    found = RotaryEmbedding(8, max_len=200).rotate(x_BHTK)
    assert found.dtype == torch.bfloat16
    expected = turn_by_complex_multiplication(x_BHTK.double().numpy(), np.arange(200))
    np.testing.assert_allclose(found.double(), expected, rtol=2.0**-8, atol=1e-6)


def test_the_base_of_the_rotation_is_the_configured_one():
    """Heads of 6 channels turn by 1, 500^(-1/3) and 500^(-2/3) per token."""
    x_BHTK = normal(2, 4, 200, 6)
    scheme = POSITIONS["rotary"](model_config("rope", rope_base=500.0), 200)
    expected = turn_by_complex_multiplication(x_BHTK.numpy(), np.arange(200), base=500.0)
    np.testing.assert_allclose(scheme.rotate(x_BHTK), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("embed_scale", "rms"),
    [
        ("one", 0.02),
        ("sqrt_d", 0.16),
    ],
)
def test_balanced_sinusoids_have_the_rms_of_the_scaled_embedding(embed_scale, rms):
    """At D = 64 the embedding starts at rms 0.02, or 8 times that."""
    config = model_config("xpos_balanced", d_model=64, embed_scale=embed_scale)
    added = POSITIONS[config.position](config, 12).embed(torch.zeros(1, 12, 64))
    assert added.square().mean().sqrt().item() == pytest.approx(rms, rel=1e-6)


def test_only_the_learned_table_ends():
    for name in CHOICES:
        config = model_config(name, d_model=WIDTH)
        extends = POSITIONS[config.position](config, 8).extends
        assert extends == (name != "learned")


# Biases by distance


def test_buckets_are_t5s():
    """The first distance of each bucket: 16 exact ones, then bucket b from the first n with 16 + 16
    log_8(n/16) >= b.

    8^(1/16) = 2^(3/16): bucket 17 starts past 16 * 1.139 = 18.2, 18 past 20.7, ..., 31 past 112.4.
    """
    starts = {RelativeBias.bucket(n): n for n in reversed(range(2000))}
    logarithmic = [19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert [starts[bucket] for bucket in range(32)] == [*range(17), *logarithmic]


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),  # the paper's example: 1/2, 1/4, ..., 1/256
        (6, [2, 4, 6, 8, 1, 3]),  # those of 4 heads, then every other one of 8 heads
    ],
)
def test_slopes_are_alibis(heads, exponents):
    assert Alibi.slopes(heads) == pytest.approx([2**-e for e in exponents], rel=1e-12)


@pytest.mark.parametrize("length", [1, 200])
@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (RelativeBias, t5_bias),
        (Alibi, alibi_bias),
    ],
)
def test_bias_matrix_by_loops(scheme, expected, length):
    """Entry (m, n): the head's number at distance m - n, and -inf where n > m."""
    positions = randomise(scheme(4))
    found = positions.bias(length).detach()
    assert found.shape == (1, 4, length, length)
    for head in range(4):
        for m in range(0, length, 11):
            row = [expected(positions, head, m - n) for n in range(m + 1)]
            row += [-math.inf] * (length - m - 1)
            assert found[0, head, m].tolist() == pytest.approx(row, rel=1e-12)
