"""The companion documents' worked numbers: the article, the reference page, the slides."""

import math

import numpy as np
import pytest
import torch

from crope.model.positions import RotaryEmbedding, SinusoidalPositions
from crope.theory.complex_maps import as_complex, as_real
from crope.theory.rotary import frequencies

X = np.array([0.5, -1.0, 1.5, 2.0])  # the article's vector, at position 3


def test_the_articles_own_numbers_come_from_base_100() -> None:
    """It writes 10000^(-i/d), which is RoFormer's formula with base sqrt(10000) = 100: 1.0 and 0.1."""
    omega = frequencies(4, base=100.0)
    assert omega.tolist() == pytest.approx([10000 ** (-i / 4) for i in (0, 1)])
    rotated = as_real(as_complex(X) * np.exp(3j * omega))
    printed = [-0.355, 1.06, 0.84, 2.37]  # cosines and sines rounded to two digits on the way
    assert rotated.tolist() == pytest.approx(printed, abs=0.02)
    model = RotaryEmbedding(4, max_len=4).rotate(torch.from_numpy(X).expand(1, 1, 4, 4))[0, 0, 3]
    assert np.abs(model.numpy() - printed)[2:].min() > 0.3  # so the model must not agree with them


def test_the_slides_sinusoids_lack_the_exponent() -> None:
    """sin(k / 10000 * 2t / d) as printed is 0 for t = 0 at every position; Vaswani's is sin(k /
    10000^(2t/d)).
    """
    table = SinusoidalPositions(8, max_len=20).embed(torch.zeros(1, 20, 8))[0].numpy()
    for t in range(4):
        printed = [math.sin(k / 10000 * 2 * t / 8) for k in range(20)]
        assert np.abs(table[:, 2 * t] - printed).max() > 0.01
