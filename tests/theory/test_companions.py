"""The companion documents' worked numbers: the article, the reference page, the slides."""

import math

import numpy as np
import pytest
import torch

from crope.model.positions import RotaryEmbedding, SinusoidalPositions
from crope.theory.complex_maps import as_complex, as_real
from crope.theory.rotary import frequencies, rotary_matrix

X = np.array([0.5, -1.0, 1.5, 2.0])  # the article's vector, at position 3


def rotate_with(omega: np.ndarray) -> np.ndarray:
    return as_real(as_complex(X) * np.exp(3j * omega))


def test_the_articles_vector_with_roformers_frequencies() -> None:
    """omega = 10000^(-2i/4) = 1 and 0.01: pairs turn by 3 and by 0.03."""
    assert frequencies(4).tolist() == pytest.approx([1.0, 0.01])
    expected = [
        0.5 * math.cos(3) + math.sin(3),
        0.5 * math.sin(3) - math.cos(3),
        1.5 * math.cos(0.03) - 2.0 * math.sin(0.03),
        1.5 * math.sin(0.03) + 2.0 * math.cos(0.03),
    ]
    assert expected == pytest.approx([-0.3538762, 1.0605525, 1.4393340, 2.0440933], abs=1e-7)
    found = RotaryEmbedding(4, max_len=4).rotate(torch.from_numpy(X).expand(1, 1, 4, 4))[0, 0, 3]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert rotate_with(frequencies(4)).tolist() == pytest.approx(expected, abs=1e-12)


def test_the_articles_own_numbers_come_from_base_100() -> None:
    """It writes 10000^(-i/d), which is RoFormer's formula with base sqrt(10000) = 100: 1.0 and 0.1."""
    omega = frequencies(4, base=100.0)
    assert omega.tolist() == pytest.approx([10000 ** (-i / 4) for i in (0, 1)])
    assert (3 * omega).tolist() == pytest.approx([3.0, 0.3])
    printed = [-0.355, 1.06, 0.84, 2.37]  # cosines and sines rounded to two digits on the way
    assert rotate_with(omega).tolist() == pytest.approx(printed, abs=0.02)
    assert rotate_with(omega).tolist() == pytest.approx(
        [-0.3538762, 1.0605525, 0.8419643, 2.3539533], abs=1e-7
    )
    model = RotaryEmbedding(4, max_len=4).rotate(torch.from_numpy(X).expand(1, 1, 4, 4))[0, 0, 3]
    assert np.abs(model.numpy() - printed)[2:].min() > 0.3  # so the model must not agree with them


def test_the_slides_block_matrix() -> None:
    """d = 4, m = 6: blocks turn by 6 and by 0.06, zeros between them."""
    cos6, sin6, cos06, sin06 = math.cos(6), math.sin(6), math.cos(0.06), math.sin(0.06)
    expected = [
        [cos6, -sin6, 0, 0],
        [sin6, cos6, 0, 0],
        [0, 0, cos06, -sin06],
        [0, 0, sin06, cos06],
    ]
    np.testing.assert_allclose(rotary_matrix(6, 4), expected, rtol=0, atol=1e-15)
    assert [cos6, sin6] == pytest.approx([0.9601703, -0.2794155], abs=1e-7)


def test_the_slides_sinusoids_lack_the_exponent() -> None:
    """sin(k / 10000 * 2t / d) as printed is 0 for t = 0 at every position; Vaswani's is sin(k /
    10000^(2t/d)).
    """
    table = SinusoidalPositions(8, max_len=20).embed(torch.zeros(1, 20, 8))[0].numpy()
    for t in range(4):
        right = [math.sin(k / 10000 ** (2 * t / 8)) for k in range(20)]
        printed = [math.sin(k / 10000 * 2 * t / 8) for k in range(20)]
        np.testing.assert_allclose(table[:, 2 * t], right, rtol=0, atol=1e-6)
        assert np.abs(table[:, 2 * t] - printed).max() > 0.01
