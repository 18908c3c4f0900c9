"""The rotation in its three forms, RoFormer's derivation, the kernel against integrals, the decay
bound.
"""

import cmath
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from crope.model.complex_linear import ComplexLinear
from crope.model.positions import RotaryEmbedding
from crope.theory.complex_maps import as_complex
from crope.theory.constructions import set_map
from crope.theory.rotary import (
    decay_curves,
    frequencies,
    inner_product,
    kernel,
    kernel_limit,
    missed_weight,
    partial_sums,
    phases,
    relative_bound,
    rotary_matrix,
    rotary_score,
    rotate_elementwise,
)
from tests.model.oracles import assert_allclose, gaussian, turn_by_complex_multiplication

Array = np.ndarray

WIDTHS = pytest.mark.parametrize("width", [2, 6, 64])
M, N = 7, 3  # positions of the query and of the key


def rotated_by_the_model(x_K: Array, position: int) -> Array:
    width = len(x_K)
    x_BHTK = torch.from_numpy(x_K).expand(1, 1, position + 1, width)
    rotary = RotaryEmbedding(width, max_len=position + 1)
    return rotary.rotate(x_BHTK)[0, 0, -1].numpy()


def model_score(q: Array, k: Array) -> float:
    """(R_M q) . (R_N k) by the model's own rotation (Eq. 7)."""
    return float(rotated_by_the_model(q, M) @ rotated_by_the_model(k, N))


@WIDTHS
@pytest.mark.parametrize("position", [0, 1, 17, 1023])
def test_matrix_elementwise_and_complex_forms_are_the_models_rotation(position, width):
    """Eqs. 6 and 10, and RoFormer's Eqs. 15 and 34."""
    x_K = gaussian(width)
    expected = turn_by_complex_multiplication(x_K, position)
    assert_allclose(rotary_matrix(position, width) @ x_K, expected, atol=1e-12)
    assert_allclose(rotate_elementwise(x_K, position), expected, atol=1e-12)
    in_complex_form = phases(position, width) * as_complex(x_K)
    assert_allclose(in_complex_form, as_complex(expected), atol=1e-12)
    assert_allclose(rotated_by_the_model(x_K, position), expected, atol=1e-6)


# Eqs. 11 to 13


def test_inner_product_needs_the_conjugate():
    """Eq. 11: (1, 2) . (3, 4) = 11; the plain product (1 + 2i)(3 + 4i) = -5 + 10i."""
    q = np.array([1 + 2j])
    k = np.array([3 + 4j])
    assert inner_product(q, k) == 11
    assert (q @ k).real == -5


def test_rotary_score_is_the_models_and_depends_on_the_distance():
    """Eqs. 7 and 12."""
    q, k = gaussian(2, 8)
    q_C, k_C = as_complex(q), as_complex(k)
    score = rotary_score(q_C, k_C, M, N)
    later = rotary_score(q_C, k_C, M + 5, N + 5)
    assert score == pytest.approx(model_score(q, k), abs=1e-6)
    assert later == pytest.approx(score, abs=1e-12)


def test_eqs_12_and_28_lack_a_conjugate_and_the_real_part():
    q, k = gaussian(2, 8)
    turned_key = np.conj(phases(M - N, 8)) * as_complex(k)
    printed = as_complex(q) @ turned_key
    assert abs(printed.real - model_score(q, k)) > 0.1
    assert abs(printed.imag) > 0.1


def projected(w: Array, x: Array) -> Array:
    """x through a ComplexLinear layer with the map w."""
    layer = ComplexLinear(8, 8).double()
    set_map(layer, w)
    return layer(torch.from_numpy(x)).detach().numpy()


def test_complex_maps_give_cropes_score():
    """Eq. 13 with both conjugates is what two ComplexLinear layers and rotary compute; as printed
    it is not.
    """
    x_m, x_n = gaussian(2, 8, seed=3)
    z_m, z_n = as_complex(x_m), as_complex(x_n)
    real, imaginary = gaussian(2, 2, 4, 4, seed=1)
    w_q, w_k = real - 1j * imaginary
    score = rotary_score(w_q @ z_m, w_k @ z_n, M, N)
    of_the_model = model_score(projected(w_q, x_m), projected(w_k, x_n))
    assert score == pytest.approx(of_the_model, abs=1e-5)
    key = w_q.conj().T @ np.diag(phases(N - M, 8)) @ w_k @ z_n
    right = z_m.conj() @ key
    printed = z_m @ key
    assert right.real == pytest.approx(score, abs=1e-10)
    assert abs(printed.real - score) > 0.1


# RoFormer's derivation


def test_relative_score_needs_the_transpose_of_w_q():
    """RoFormer's Eq. 16: x_m^T W_q^T R_{n-m} W_k x_n; the printed W_q is another number."""
    w_q, w_k = gaussian(2, 6, 6)
    x_4, x_9 = gaussian(2, 6, seed=1)
    query = rotary_matrix(4, 6) @ w_q @ x_4
    key = rotary_matrix(9, 6) @ w_k @ x_9
    turned = rotary_matrix(5, 6) @ w_k @ x_9
    score = query @ key
    right = x_4 @ w_q.T @ turned
    printed = x_4 @ w_q @ turned
    assert right == pytest.approx(score, abs=1e-10)
    assert abs(printed - score) > 0.1


THETA, GAMMA = 0.3, 0.7


def in_the_plane(x: complex, position: int, gamma: float = GAMMA) -> complex:
    """f(x, m) = W x e^{i(m theta + gamma)} with W x = x (Eq. 31)."""
    return x * cmath.exp(1j * (position * THETA + gamma))


@pytest.mark.parametrize(("m", "n"), [(0, 0), (4, 9), (30, 2)])
def test_the_derivation_in_the_plane(m, n):
    """RoFormer's Eqs. 20 to 33: the radius ignores m, the angle is m theta, and gamma cancels in
    every score, so that Eq. 33 may set it to zero.
    """
    q, k = 1.5 - 0.4j, -0.2 + 0.9j
    f_q, f_k = in_the_plane(q, m), in_the_plane(k, n)
    g = f_q.conjugate() * f_k  # the inner product is its real part
    turn = cmath.exp(1j * (n - m) * THETA)
    g_q, g_k = in_the_plane(q, m, gamma=0), in_the_plane(k, n, gamma=0)
    assert abs(f_q) == pytest.approx(abs(q))  # 27
    assert g == pytest.approx(q.conjugate() * k * turn)  # 24, 26, 28
    assert g == pytest.approx(g_q.conjugate() * g_k)  # 31, 33
    step = in_the_plane(q, m + 1) / f_q
    assert cmath.phase(step) == pytest.approx(THETA)  # 29, 30


# Eqs. 21, 23 and 28: the kernel


@pytest.mark.parametrize("distance", [0.5, 1.0, 7.0, 300.0])
def test_limit_of_the_kernel_is_an_integral(distance):
    """Against quadrature over frequencies: u = log theta, so cos(distance theta) d theta / theta."""

    def integrand(theta: float) -> float:
        return math.cos(distance * theta) / theta

    integral, _ = quad(integrand, 1e-4, 1, limit=2000)
    expected = integral / math.log(1e4)
    at_a_large_width = kernel(distance, frequencies(200_000))
    assert kernel_limit(distance) == pytest.approx(expected, abs=1e-7)
    assert at_a_large_width == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("width", [64, 512, 4096, 65_536])
def test_the_kernel_is_no_delta_at_any_width(width):
    """Eqs. 21, 23 and 28: at distance 1 the score stays at 0.97 of its peak, and at 100 it is still
    at 0.44 in the limit.
    """
    at_1, at_100 = kernel([1, 100], frequencies(width))
    assert 0.966 < at_1 < 0.975
    assert 0.42 < at_100 < 0.57
    assert_allclose(kernel_limit([1, 100]), [0.97396, 0.43677], atol=1e-5)


def test_evenly_spaced_frequencies_would_give_the_delta():
    theta = np.pi * (np.arange(32) + 0.5) / 32
    assert_allclose(kernel([0, 1, 2, 63], theta), [1, 0, 0, 0], atol=1e-12)


def test_softmax_makes_a_delta_of_the_kernel():
    """What holds of Eqs. 21, 23 and 28: the missed weight goes to zero with the width."""
    missed = []
    for width in (16, 64, 256, 1024):
        missed.append(missed_weight(frequencies(width), length=64, gain=10))
    assert missed == sorted(missed, reverse=True)
    assert missed[0] > 0.4
    assert missed[-1] < 0.03


# RoFormer's long-term decay


@pytest.mark.parametrize("distance", [0, 1, 10, 200])
def test_abel_transformation_and_the_bound(distance):
    """RoFormer's Eqs. 35 to 37 on random q and k: the sum, its rearrangement with h_{d/2} = 0, and
    the bound.
    """
    theta = frequencies(32)
    q, k = gaussian(2, 16, 2) @ np.array([1, 1j])
    h = q * k.conj()
    total = np.sum(h * np.exp(1j * distance * theta))
    steps = np.diff(h, append=0)
    rearranged = -np.sum(partial_sums(distance, theta) * steps)
    assert rearranged == pytest.approx(total, abs=1e-10)
    largest = np.abs(steps).max()
    assert abs(total) <= largest * 16 * relative_bound(distance, theta) + 1e-12


def test_decay_is_that_of_roformers_figure_2():
    """d = 128: 32.5, the mean of 1 .. 64, at distance 0; about 20 at small distances; 6 to 8
    towards 250.
    """
    bound = np.array(decay_curves(width=128, longest=256)["bound"])
    assert bound[0] == pytest.approx(32.5, abs=1e-12)
    assert bound[5] == pytest.approx(20.85, abs=0.01)
    assert 6 < bound[200:].mean() < 8
    assert bound[200:].max() < 10


def test_the_kernel_of_the_decay_figure_is_that_of_its_width():
    """At width 2 there is one frequency, 1; the limit is that of no width."""
    data = decay_curves(width=2, longest=3)
    assert data["kernel"] == pytest.approx([1, math.cos(1), math.cos(2)])
    assert data["limit"][:2] == pytest.approx([1, 0.97396], abs=1e-5)


def test_the_bound_decays_but_not_at_every_step_nor_does_the_score():
    """Long-term decay is a trend of an upper bound: it rises on the way, and a query can peak at
    any distance.
    """
    theta = frequencies(128)
    bound = [relative_bound(distance, theta) for distance in range(256)]
    assert (np.diff(bound) > 0).sum() > 50
    query_C = np.exp(1j * 200 * theta)
    key_C = np.ones(64)
    scores = [rotary_score(query_C, key_C, 0, position) for position in range(256)]
    assert np.argmax(scores) == 200
