"""The rotary kernel against integrals and evenly spaced frequencies; RoFormer's bound against what it bounds."""

from __future__ import annotations

import cmath
import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad

from crope.model.positions import angles
from crope.theory.kernel import (
    decay_curves,
    frequencies,
    kernel,
    kernel_limit,
    missed_weight,
    partial_sums,
    relative_bound,
    uniform_frequencies,
)


@pytest.mark.parametrize("width", [2, 6, 128])
def test_frequencies_are_the_models(width: int) -> None:
    np.testing.assert_allclose(frequencies(width), angles(width, 2)[1].numpy(), rtol=1e-14)


@pytest.mark.parametrize("distance", [0.5, 1.0, 7.0, 300.0])
def test_limit_of_the_kernel_is_an_integral(distance: float) -> None:
    """Against quadrature over frequencies: u = log theta, so cos(distance theta) d theta / theta."""
    value, _ = quad(lambda theta: math.cos(distance * theta) / theta, 1e-4, 1, limit=2000)
    assert kernel_limit(distance) == pytest.approx(value / math.log(1e4), abs=1e-7)
    assert kernel(distance, frequencies(200_000)) == pytest.approx(float(kernel_limit(distance)), abs=1e-4)


def test_the_kernel_is_no_delta_at_any_width() -> None:
    """Eqs. 21, 23 and 28: at distance 1 the score stays at 0.97 of its peak, and at 100 it is still 0.44."""
    assert kernel(0, frequencies(64)) == 1
    for width in (64, 512, 4096, 65_536):
        one, hundred = kernel([1, 100], frequencies(width))
        assert 0.966 < one < 0.975 and 0.42 < hundred < 0.57
    np.testing.assert_allclose(kernel_limit([1, 100]), [0.97396, 0.43677], atol=1e-5)


def test_evenly_spaced_frequencies_give_the_delta_that_the_paper_wants() -> None:
    for width in (8, 64):
        theta = uniform_frequencies(width)
        np.testing.assert_allclose(kernel(np.arange(1, width), theta), 0, atol=1e-12)
        assert kernel(0, theta) == 1


@pytest.mark.parametrize("scaled", [False, True])
def test_softmax_makes_a_delta_of_the_kernel(scaled: bool) -> None:
    """What holds of Eqs. 21, 23 and 28: the missed weight goes to zero with the width and with the gain."""
    by_width = [missed_weight(frequencies(d), length=64, gain=10, scaled=scaled) for d in (16, 64, 256, 1024)]
    by_gain = [missed_weight(frequencies(64), length=64, gain=g, scaled=scaled) for g in (1, 10, 100, 1000)]
    for missed in (by_width, by_gain):
        assert all(a > b for a, b in itertools.pairwise(missed) if b > 1e-12)
        assert missed[-1] < 0.03


def test_missed_weight_by_hand() -> None:
    """Two positions, one pair with theta 1: weights are softmax(2, 2 cos 1)."""
    weight = math.exp(2) / (math.exp(2) + math.exp(2 * math.cos(1)))
    assert missed_weight(np.ones(1), length=2, gain=2) == pytest.approx(1 - weight, abs=1e-12)
    ahead = math.exp(2) / (math.exp(2) + math.exp(2 * math.cos(1)))  # position 0 asks for 1; 1 asks for nobody
    assert missed_weight(np.ones(1), length=2, gain=2, offsets=(1,)) == pytest.approx(1 - ahead, abs=1e-12)
    scaled = 1 / (1 + math.exp(math.sqrt(2) * (math.cos(1) - 1)))
    assert missed_weight(np.ones(1), length=2, gain=2, scaled=True) == pytest.approx(1 - scaled, abs=1e-12)


def test_partial_sums_against_a_loop() -> None:
    expected, running = [], 0j
    for i in range(8):
        running += cmath.exp(1j * 5 * 10000 ** (-2 * i / 16))
        expected.append(running)
    np.testing.assert_allclose(partial_sums(5, frequencies(16)), expected, atol=1e-12)
    assert relative_bound(5, frequencies(16)) == pytest.approx(sum(map(abs, expected)) / 8, abs=1e-12)


def test_abel_transformation_and_the_bound() -> None:
    """RoFormer Eqs. 35 to 37 on random q and k: the sum, its rearrangement with h_{d/2} = 0, and the bound."""
    rng, theta = np.random.default_rng(0), frequencies(32)
    for distance in (0, 1, 10, 200):
        q, k = rng.standard_normal((2, 16, 2)) @ np.array([1, 1j])
        h = np.append(q * k.conj(), 0)
        s = partial_sums(distance, theta)
        total = np.sum(h[:-1] * np.exp(1j * distance * theta))
        assert -np.sum(s * np.diff(h)) == pytest.approx(total, abs=1e-10)
        bound = np.abs(np.diff(h)).max() * 16 * relative_bound(distance, theta)
        assert abs(total) <= np.sum(np.abs(s) * np.abs(np.diff(h))) + 1e-12 <= bound + 2e-12


def test_decay_is_that_of_roformers_figure_2() -> None:
    """d = 128: about 20 at small distances, 6 to 8 towards 250; 32.5 = mean of 1 .. 64 at distance 0."""
    curves = decay_curves(width=128, longest=256)
    bound = np.array(curves["bound"])
    assert bound[0] == pytest.approx(32.5, abs=1e-12)
    assert bound[5] == pytest.approx(20.85, abs=0.01)
    assert 6 < bound[200:].mean() < 8 and bound[200:].max() < 10
    assert bound[:20].mean() > bound[60:120].mean() > bound[200:].mean()


def test_the_bound_decays_but_not_at_every_step_nor_does_the_score() -> None:
    """Long-term decay is a trend of an upper bound: it rises on the way, and a query can peak at any distance."""
    theta = frequencies(128)
    bound = np.array([relative_bound(d, theta) for d in range(256)])
    assert (np.diff(bound) > 0).sum() > 50
    q = np.exp(1j * 200 * theta)  # k = 1: the score is highest 200 tokens away
    scores = [np.sum(q.conj() * np.exp(1j * d * theta)).real for d in range(256)]
    assert int(np.argmax(scores)) == 200
