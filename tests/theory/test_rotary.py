"""The rotation in its three forms, RoFormer's derivation, the kernel against integrals, the decay
bound.
"""

import cmath
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from crope.model.complex_linear import ComplexLinear
from crope.model.positions import RotaryEmbedding
from crope.theory.complex_maps import as_complex, dense
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
from tests.model.oracles import assert_allclose, gaussian

WIDTHS = pytest.mark.parametrize("width", [2, 6, 64])
M, N = 7, 3


def model_score(q: np.ndarray, k: np.ndarray) -> float:
    """(R_M q) . (R_N k) by the model's own rotation (Eq. 7)."""
    rotary = RotaryEmbedding(len(q), max_len=16)
    q_TK, k_TK = (rotary.rotate(torch.from_numpy(x).expand(1, 1, 16, len(x)))[0, 0] for x in (q, k))
    return float(q_TK[M] @ k_TK[N])


@WIDTHS
def test_matrix_elementwise_and_complex_forms_are_the_models_rotation(width: int) -> None:
    """Eq. 6, 10 and RoFormer's Eqs. 15 and 34; theta_i = 10000^(-2i/width), written out here."""
    x_TK = gaussian(1024, width)
    model = (
        RotaryEmbedding(width, max_len=1024)
        .rotate(torch.from_numpy(x_TK)[None, None])[0, 0]
        .numpy()
    )
    for m in (0, 1, 17, 1023):
        expected = np.empty(width)
        for i in range(width // 2):
            angle, (even, odd) = m * 10000 ** (-2 * i / width), x_TK[m, 2 * i : 2 * i + 2]
            expected[2 * i] = even * math.cos(angle) - odd * math.sin(angle)
            expected[2 * i + 1] = even * math.sin(angle) + odd * math.cos(angle)
        assert_allclose(rotary_matrix(m, width) @ x_TK[m], expected, atol=1e-12)
        assert_allclose(rotate_elementwise(x_TK[m], m), expected, atol=1e-12)
        assert_allclose(phases(m, width) * as_complex(x_TK[m]), as_complex(expected), atol=1e-12)
        assert_allclose(model[m], expected, atol=1e-6)


@WIDTHS
def test_rotations_compose_and_are_orthogonal(width: int) -> None:
    """R_m^T R_n = R_{n-m}: what makes the score relative (RoFormer's Eqs. 11, 14, 16; CRoPE's Eqs.
    6 and 7).
    """
    r_m, r_n = rotary_matrix(7, width), rotary_matrix(19, width)
    assert_allclose(r_m.T @ r_n, rotary_matrix(12, width), atol=1e-12)
    assert_allclose(r_m.T @ r_m, np.eye(width), atol=1e-12)


def test_inner_product_needs_the_conjugate() -> None:
    """Eq. 11: by hand (1 + 2i) and (3 + 4i): 1*3 + 2*4 = 11; the plain product's real part is 3 - 8
    = -5.
    """
    q, k = gaussian(2, 8)
    assert inner_product(np.array([1 + 2j]), np.array([3 + 4j])) == 11
    assert inner_product(as_complex(q), as_complex(k)) == pytest.approx(q @ k, abs=1e-12)
    assert abs((as_complex(q) @ as_complex(k)).real - q @ k) > 0.1


def test_rotary_score_is_the_models_and_depends_on_the_distance() -> None:
    """Eqs. 7 and 12; without the conjugate Eq. 12 is another number."""
    q, k = gaussian(2, 8)
    q_C, k_C = as_complex(q), as_complex(k)
    assert rotary_score(q_C, k_C, M, N) == pytest.approx(model_score(q, k), abs=1e-6)
    assert rotary_score(q_C, k_C, M + 5, N + 5) == pytest.approx(
        rotary_score(q_C, k_C, M, N), abs=1e-12
    )
    printed = float(np.real(q_C @ (np.conj(phases(M - N, 8)) * k_C)))
    assert abs(printed - model_score(q, k)) > 0.1


def test_complex_maps_give_cropes_score() -> None:
    """Eq. 13 with both conjugates is what two ComplexLinear layers and rotary compute; as printed
    it is not.
    """

    def project(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        layer = ComplexLinear(8, 8).double()
        set_map(layer, w)
        return layer(torch.from_numpy(x)).detach().numpy()

    x_m, x_n = gaussian(2, 8, seed=3)
    z_m, z_n = as_complex(x_m), as_complex(x_n)
    w_q, w_k = (a - 1j * b for a, b in gaussian(2, 2, 4, 4, seed=1))
    score = rotary_score(w_q @ z_m, w_k @ z_n, M, N)
    assert score == pytest.approx(model_score(project(w_q, x_m), project(w_k, x_n)), abs=1e-5)
    middle = w_q.conj().T @ np.diag(phases(N - M, 8)) @ w_k
    assert (z_m.conj() @ middle @ z_n).real == pytest.approx(score, abs=1e-10)
    assert abs((z_m @ middle @ z_n).real - score) > 0.1


def test_relative_score_needs_the_transpose_of_w_q() -> None:
    """RoFormer's Eq. 16: x_m^T W_q^T R_{n-m} W_k x_n; the printed W_q without transpose is another
    number.
    """
    w_q, w_k = gaussian(2, 6, 6)
    x_m, x_n = gaussian(2, 6, seed=1)
    score = (rotary_matrix(4, 6) @ w_q @ x_m) @ (rotary_matrix(9, 6) @ w_k @ x_n)
    assert x_m @ w_q.T @ rotary_matrix(5, 6) @ w_k @ x_n == pytest.approx(score, abs=1e-10)
    assert abs(x_m @ w_q @ rotary_matrix(5, 6) @ w_k @ x_n - score) > 0.1


def test_the_derivation_in_the_plane() -> None:
    """RoFormer's Eqs. 20 to 33, for f(x, m) = W x e^{i(m theta + gamma)}: the radius ignores m, the
    angle is m theta.

    gamma cancels in every score, so Eq. 33 may set it to zero.
    """
    theta, gamma, q, k = 0.3, 0.7, 1.5 - 0.4j, -0.2 + 0.9j

    def f(x: complex, m: int, shift: float = gamma) -> complex:
        return x * cmath.exp(1j * (m * theta + shift))

    for m, n in ((0, 0), (4, 9), (30, 2)):
        g = f(q, m).conjugate() * f(k, n)  # inner product is its real part
        assert abs(f(q, m)) == pytest.approx(abs(q))  # 27
        assert g == pytest.approx(q.conjugate() * k * cmath.exp(1j * (n - m) * theta))  # 24, 26, 28
        assert g == pytest.approx(f(q, m, 0.0).conjugate() * f(k, n, 0.0))  # 31, 33
        turned = [
            dense(np.array([[cmath.exp(1j * position * theta)]])) @ [z.real, z.imag]
            for z, position in ((q, m), (k, n))
        ]
        assert turned[0] @ turned[1] == pytest.approx(g.real)  # 21, 33 as matrices
    steps = [cmath.phase(f(q, m + 1) / f(q, m)) for m in range(5)]
    assert steps == pytest.approx([theta] * 5)  # 29, 30


@pytest.mark.parametrize("distance", [0.5, 1.0, 7.0, 300.0])
def test_limit_of_the_kernel_is_an_integral(distance: float) -> None:
    """Against quadrature over frequencies: u = log theta, so cos(distance theta) d theta / theta."""
    value, _ = quad(lambda theta: math.cos(distance * theta) / theta, 1e-4, 1, limit=2000)
    assert kernel_limit(distance) == pytest.approx(value / math.log(1e4), abs=1e-7)
    assert kernel(distance, frequencies(200_000)) == pytest.approx(
        float(kernel_limit(distance)), abs=1e-4
    )


def test_the_kernel_is_no_delta_at_any_width() -> None:
    """Eqs. 21, 23 and 28: at distance 1 the score stays at 0.97 of its peak, and at 100 it is still
    0.44.

    Evenly spaced frequencies in (0, pi) would give the delta that the paper wants.
    """
    for width in (64, 512, 4096, 65_536):
        one, hundred = kernel([1, 100], frequencies(width))
        assert 0.966 < one < 0.975 and 0.42 < hundred < 0.57
    np.testing.assert_allclose(kernel_limit([1, 100]), [0.97396, 0.43677], atol=1e-5)
    even = np.pi * (np.arange(32) + 0.5) / 32
    np.testing.assert_allclose(kernel(np.arange(64), even), [1] + [0] * 63, atol=1e-12)


@pytest.mark.parametrize("scaled", [False, True])
def test_softmax_makes_a_delta_of_the_kernel(scaled: bool) -> None:
    """What holds of Eqs. 21, 23 and 28: the missed weight goes to zero with the width and with the
    gain.
    """

    def missed(width: int, gain: float) -> float:
        return missed_weight(frequencies(width), length=64, gain=gain, scaled=scaled)

    by_width = [missed(width, 10) for width in (16, 64, 256, 1024)]
    by_gain = [missed(64, gain) for gain in (1, 10, 100, 1000)]
    for values in (by_width, by_gain):
        assert all(a > b for a, b in itertools.pairwise(values) if b > 1e-12)
        assert values[-1] < 0.03


def test_abel_transformation_and_the_bound() -> None:
    """RoFormer's Eqs. 35 to 37 on random q and k: the sum, its rearrangement with h_{d/2} = 0, and
    the bound.
    """
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
    """d = 128: about 20 at small distances, 6 to 8 towards 250; 32.5 = mean of 1 .. 64 at distance
    0.
    """
    bound = np.array(decay_curves(width=128, longest=256)["bound"])
    assert bound[0] == pytest.approx(32.5, abs=1e-12) and bound[5] == pytest.approx(20.85, abs=0.01)
    assert 6 < bound[200:].mean() < 8 and bound[200:].max() < 10
    assert bound[:20].mean() > bound[60:120].mean() > bound[200:].mean()


def test_the_bound_decays_but_not_at_every_step_nor_does_the_score() -> None:
    """Long-term decay is a trend of an upper bound: it rises on the way, and a query can peak at
    any distance.
    """
    theta = frequencies(128)
    bound = np.array([relative_bound(d, theta) for d in range(256)])
    assert (np.diff(bound) > 0).sum() > 50
    q = np.exp(1j * 200 * theta)  # k = 1: the score is highest 200 tokens away
    scores = [np.sum(q.conj() * np.exp(1j * d * theta)).real for d in range(256)]
    assert int(np.argmax(scores)) == 200
