"""The companion documents' worked numbers: the article and the slides."""

import math

import numpy as np
import pytest
import torch

from crope.model.positions import SinusoidalPositions
from crope.theory.complex_maps import as_complex, as_real
from crope.theory.rotary import frequencies


def test_the_articles_own_numbers_come_from_base_100():
    """It writes 10000^(-i/d), which is RoFormer's formula with base sqrt(10000) = 100. What it
    prints for its vector at position 3 has cosines and sines rounded to two digits on the way.
    """
    x = np.array([0.5, -1.0, 1.5, 2.0])
    omega = frequencies(4, base=100.0)
    rotated = as_real(as_complex(x) * np.exp(3j * omega))
    assert omega.tolist() == pytest.approx([1.0, 0.1])
    assert rotated.tolist() == pytest.approx([-0.355, 1.06, 0.84, 2.37], abs=0.02)


def test_the_slides_sinusoids_lack_the_exponent():
    """At d = 8, position 3 and channel 2 (t = 1) sin(k / 10000^(2t/d)) is sin(0.3); printed is
    sin(k / 10000 * 2t / d), nearly 0.
    """
    table_BTD = SinusoidalPositions(8, max_len=4).embed(torch.zeros(1, 4, 8))
    assert table_BTD[0, 3, 2].item() == pytest.approx(math.sin(0.3), abs=1e-6)
    assert math.sin(3 / 10000 * 2 / 8) < 0.001
