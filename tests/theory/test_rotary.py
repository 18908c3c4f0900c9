"""The rotation in its three forms, RoFormer's derivation, the kernel against integrals, the decay
bound.
"""

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from crope.model.complex_linear import ComplexLinear
from crope.model.positions import RotaryEmbedding
from crope.theory.complex_maps import as_complex
from crope.theory.constructions import set_map
from crope.theory.rotary import (
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

M, N = 7, 3  # positions of the query and of the key


def rotated_by_the_model(x_K, position):
    x_BHTK = torch.from_numpy(x_K).expand(1, 1, position + 1, -1)
    rotary = RotaryEmbedding(len(x_K), max_len=position + 1)
    return rotary.rotate(x_BHTK)[0, 0, -1].numpy()


def model_score(q, k):
    """(R_M q) . (R_N k) by the model's own rotation (Eq. 7)."""
    return rotated_by_the_model(q, M) @ rotated_by_the_model(k, N)


def test_matrix_elementwise_and_complex_forms_are_the_models_rotation():
    """Eqs. 6 and 10, and RoFormer's Eqs. 15 and 34."""
    position, width = 1023, 6
    x_K = gaussian(width)
    expected = turn_by_complex_multiplication(x_K, position)
    assert_allclose(rotary_matrix(position, width) @ x_K, expected, atol=1e-12)
    assert_allclose(rotate_elementwise(x_K, position), expected, atol=1e-12)
    turned = phases(position, width) * as_complex(x_K)
    assert_allclose(turned, as_complex(expected), atol=1e-12)
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
    for m, n in ((M, N), (M + 5, N + 5)):
        score = rotary_score(as_complex(q), as_complex(k), m, n)
        assert score == pytest.approx(model_score(q, k), abs=1e-6)


def test_eqs_12_and_28_lack_a_conjugate_and_the_real_part():
    q, k = gaussian(2, 8)
    turned_key = np.conj(phases(M - N, 8)) * as_complex(k)
    printed = as_complex(q) @ turned_key
    assert abs(printed.real - model_score(q, k)) > 0.1
    assert abs(printed.imag) > 0.1


def test_complex_maps_give_cropes_score():
    """Eq. 13 with both conjugates is what two ComplexLinear layers and rotary compute; as printed
    it is not.
    """
    x_m, x_n = gaussian(2, 8, seed=3)
    z_m, z_n = as_complex(x_m), as_complex(x_n)
    real, imaginary = gaussian(2, 2, 4, 4, seed=1)
    w_q, w_k = real - 1j * imaginary
    score = rotary_score(w_q @ z_m, w_k @ z_n, M, N)
    projected = []
    for w, x in ((w_q, x_m), (w_k, x_n)):
        layer = ComplexLinear(8, 8).double()
        set_map(layer, w)
        projected.append(layer(torch.from_numpy(x)).detach().numpy())
    assert score == pytest.approx(model_score(*projected), abs=1e-5)
    key = w_q.conj().T @ np.diag(phases(N - M, 8)) @ w_k @ z_n
    assert (z_m.conj() @ key).real == pytest.approx(score, abs=1e-10)
    assert abs((z_m @ key).real - score) > 0.1


# RoFormer's relative score


def test_relative_score_needs_the_transpose_of_w_q():
    """RoFormer's Eq. 16: x_m^T W_q^T R_{n-m} W_k x_n; the printed W_q is another number."""
    w_q, w_k = gaussian(2, 6, 6)
    x_4, x_9 = gaussian(2, 6, seed=1)
    query = rotary_matrix(4, 6) @ w_q @ x_4
    key = rotary_matrix(9, 6) @ w_k @ x_9
    turned = rotary_matrix(5, 6) @ w_k @ x_9
    assert x_4 @ w_q.T @ turned == pytest.approx(query @ key, abs=1e-10)
    assert abs(x_4 @ w_q @ turned - query @ key) > 0.1


def in_the_plane(x, position, gamma=0.7):
    """f(x, m) = W x e^{i(m theta + gamma)} with W x = x and theta = 0.3 (Eq. 31)."""
    return x * np.exp(1j * (0.3 * position + gamma))


def test_the_derivation_in_the_plane():
    """RoFormer's Eqs. 20 to 33: the radius ignores m, the angle is m theta, and gamma cancels in
    every score, so that Eq. 33 may set it to zero.
    """
    q, k = 1.5 - 0.4j, -0.2 + 0.9j
    f_q, f_k = in_the_plane(q, M), in_the_plane(k, N)
    g = f_q.conjugate() * f_k  # the inner product is its real part
    turn = np.exp(0.3j * (N - M))
    step = in_the_plane(q, M + 1) / f_q
    g_q, g_k = in_the_plane(q, M, gamma=0), in_the_plane(k, N, gamma=0)
    assert abs(f_q) == pytest.approx(abs(q))  # 27
    assert g == pytest.approx(q.conjugate() * k * turn)  # 24, 26, 28
    assert g == pytest.approx(g_q.conjugate() * g_k)  # 31, 33
    assert np.angle(step) == pytest.approx(0.3)  # 29, 30


# Eqs. 21, 23 and 28: the kernel


@pytest.mark.parametrize("distance", [0.5, 300.0])
def test_limit_of_the_kernel_is_an_integral(distance):
    """Against quadrature over frequencies: u = log theta, so cos(distance theta) d theta / theta."""
    integral, _ = quad(lambda theta: np.cos(distance * theta) / theta, 1e-4, 1, limit=2000)
    expected = integral / np.log(1e4)
    assert kernel_limit(distance) == pytest.approx(expected, abs=1e-7)
    assert kernel(distance, frequencies(200_000)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("width", [64, 65_536])
def test_the_kernel_is_no_delta_at_any_width(width):
    """Eqs. 21, 23 and 28: at distance 1 the score stays at 0.97 of its peak, and at 100 it is still
    at 0.44 in the limit.
    """
    at_1, at_100 = kernel([1, 100], frequencies(width))
    assert 0.966 < at_1 < 0.975
    assert 0.42 < at_100 < 0.57
    assert_allclose(kernel_limit([1, 100]), [0.97396, 0.43677], atol=1e-5)


def test_softmax_makes_a_delta_of_the_kernel():
    """What holds of Eqs. 21, 23 and 28: the missed weight goes to zero with the width."""
    assert missed_weight(frequencies(16), length=64, gain=10) > 0.4
    assert missed_weight(frequencies(1024), length=64, gain=10) < 0.03


# RoFormer's long-term decay


def test_abel_transformation_and_the_bound():
    """RoFormer's Eqs. 35 to 37 on random q and k: the sum, its rearrangement with h_{d/2} = 0, and
    the bound.
    """
    distance, theta = 10, frequencies(32)
    q, k = gaussian(2, 16, 2) @ np.array([1, 1j])
    h = q * k.conj()
    total = h @ np.exp(1j * distance * theta)
    steps = np.diff(h, append=0)
    assert -steps @ partial_sums(distance, theta) == pytest.approx(total, abs=1e-10)
    largest = np.abs(steps).max()
    assert abs(total) <= largest * 16 * relative_bound(distance, theta) + 1e-12


def test_decay_is_that_of_roformers_figure_2():
    """d = 128: 32.5, the mean of 1 .. 64, at distance 0; about 20 at small distances; 6 to 8
    towards 250.
    """
    bound = np.array([relative_bound(distance, frequencies(128)) for distance in range(256)])
    assert bound[0] == pytest.approx(32.5, abs=1e-12)
    assert bound[5] == pytest.approx(20.85, abs=0.01)
    assert 6 < bound[200:].mean() < 8


def test_the_bound_decays_but_not_at_every_step_nor_does_the_score():
    """Long-term decay is a trend of an upper bound: it rises on the way, and a query can peak at
    any distance.
    """
    theta = frequencies(128)
    bound = [relative_bound(distance, theta) for distance in range(256)]
    assert (np.diff(bound) > 0).sum() > 50
    query_C = np.exp(200j * theta)
    scores = [rotary_score(query_C, np.ones(64), 0, position) for position in range(256)]
    assert np.argmax(scores) == 200
