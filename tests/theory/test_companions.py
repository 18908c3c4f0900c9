"""The companion documents' worked numbers: the article and the slides."""

import math

import numpy as np
import pytest
import torch

from crope.model.positions import RotaryEmbedding, SinusoidalPositions
from crope.theory.complex_maps import as_complex, as_real
from crope.theory.rotary import frequencies

# The article's vector, and what it prints for position 3, with cosines and sines rounded to two
# digits on the way.
X = np.array([0.5, -1.0, 1.5, 2.0])
PRINTED = [-0.355, 1.06, 0.84, 2.37]


def test_the_articles_own_numbers_come_from_base_100():
    """It writes 10000^(-i/d), which is RoFormer's formula with base sqrt(10000) = 100."""
    omega = frequencies(4, base=100.0)
    assert omega.tolist() == pytest.approx([1.0, 0.1])
    rotated = as_real(as_complex(X) * np.exp(3j * omega))
    assert rotated.tolist() == pytest.approx(PRINTED, abs=0.02)


def test_the_model_does_not_rotate_as_the_article_prints():
    x_BHTK = torch.from_numpy(X).expand(1, 1, 4, 4)
    rotary = RotaryEmbedding(4, max_len=4)
    rotated = rotary.rotate(x_BHTK)[0, 0, 3].numpy()
    assert rotated[:2] == pytest.approx(PRINTED[:2], abs=0.02)  # theta_0 is 1 in both
    assert abs(rotated[2] - PRINTED[2]) > 0.3


def test_the_slides_sinusoids_lack_the_exponent():
    """At d = 8, position 3 and channel 2 (t = 1) sin(k / 10000^(2t/d)) is sin(0.3); printed is
    sin(k / 10000 * 2t / d), nearly 0.
    """
    positions = SinusoidalPositions(8, max_len=4)
    table_TD = positions.embed(torch.zeros(1, 4, 8))[0]
    assert table_TD[3, 2].item() == pytest.approx(math.sin(0.3), abs=1e-6)
    assert math.sin(3 / 10000 * 2 / 8) < 0.001
