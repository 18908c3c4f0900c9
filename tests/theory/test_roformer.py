"""RoFormer: two forms of one rotation, the derivation in the plane, and rotary positions in linear attention."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
import torch

from crope.model.positions import RotaryEmbedding
from crope.theory.constructions import comparison
from crope.theory.roformer import linear_attention, rotary_matrix, rotate_cheaply

WIDTHS = pytest.mark.parametrize("width", [2, 6, 64])
POSITIONS = (0, 1, 17, 1023)


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@WIDTHS
def test_the_cheap_rotation_is_the_matrix(width: int) -> None:
    """Eq. 34 = Eq. 15, and both are RotaryEmbedding."""
    x_TK = gaussian(1024, width)
    model = RotaryEmbedding(width, max_len=1024).rotate(torch.from_numpy(x_TK)[None, None])[0, 0].numpy()
    for m in POSITIONS:
        expected = rotary_matrix(m, width) @ x_TK[m]
        np.testing.assert_allclose(rotate_cheaply(x_TK[m], m), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(model[m], expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(rotate_cheaply(x_TK, 17), x_TK @ rotary_matrix(17, width).T, rtol=0, atol=1e-12)


@WIDTHS
def test_rotations_compose_and_are_orthogonal(width: int) -> None:
    """R_m^T R_n = R_{n-m}: what makes the score relative (Eqs. 11, 14, 16; CRoPE's Eqs. 6 and 7)."""
    r_m, r_n = rotary_matrix(7, width), rotary_matrix(19, width)
    np.testing.assert_allclose(r_m.T @ r_n, rotary_matrix(12, width), rtol=0, atol=1e-12)
    np.testing.assert_allclose(r_m.T @ r_m, np.eye(width), rtol=0, atol=1e-12)


def test_relative_score_needs_the_transpose_of_w_q() -> None:
    """Eq. 16: x_m^T W_q^T R_{n-m} W_k x_n; the printed W_q without transpose is another number."""
    w_q, w_k = gaussian(2, 6, 6)
    x_m, x_n = gaussian(2, 6, seed=1)
    score = (rotary_matrix(4, 6) @ w_q @ x_m) @ (rotary_matrix(9, 6) @ w_k @ x_n)
    assert x_m @ w_q.T @ rotary_matrix(5, 6) @ w_k @ x_n == pytest.approx(score, abs=1e-10)
    assert abs(x_m @ w_q @ rotary_matrix(5, 6) @ w_k @ x_n - score) > 0.1


def test_the_plane() -> None:
    """Eqs. 12 and 13 (d = 2, theta = 1): (W x) e^{i m} as a matrix, and g = Re[(W_q x_m) conj(W_k x_n) e^{i(m-n)}]."""
    w_q, w_k = gaussian(2, 2, 2)
    x_m, x_n = gaussian(2, 2, seed=1)
    q, k = complex(*(w_q @ x_m)), complex(*(w_k @ x_n))
    turned = q * cmath.exp(5j)
    np.testing.assert_allclose(rotary_matrix(5, 2) @ w_q @ x_m, [turned.real, turned.imag], rtol=0, atol=1e-12)
    score = (rotary_matrix(5, 2) @ w_q @ x_m) @ (rotary_matrix(3, 2) @ w_k @ x_n)
    assert score == pytest.approx((q * k.conjugate() * cmath.exp(2j)).real, abs=1e-12)


def test_the_derivation_in_the_plane() -> None:
    """Eqs. 20 to 33, for f(x, m) = W x e^{i(m theta + gamma)}: the radius has no position, the angle m theta.

    gamma cancels in every score, so Eq. 33 may set it to zero.
    """
    theta, gamma, q, k = 0.3, 0.7, 1.5 - 0.4j, -0.2 + 0.9j

    def f(x: complex, m: int, shift: float = gamma) -> complex:
        return x * cmath.exp(1j * (m * theta + shift))

    for m, n in ((0, 0), (4, 9), (30, 2)):
        g = f(q, m).conjugate() * f(k, n)  # inner product is its real part
        assert abs(f(q, m)) == pytest.approx(abs(q)) and abs(g) == pytest.approx(abs(q) * abs(k))  # 24, 26a, 27
        angle = cmath.phase(k) - cmath.phase(q) + (n - m) * theta
        assert cmath.exp(1j * cmath.phase(g)) == pytest.approx(cmath.exp(1j * angle))  # 24, 26b, 28
        assert g == pytest.approx(f(q, m, 0.0).conjugate() * f(k, n, 0.0))  # 31, 33
        real = [np.array([z.real, z.imag]) for z in (f(q, m), f(k, n))]
        assert real[0] @ real[1] == pytest.approx(g.real)  # 21
    steps = [cmath.phase(f(q, m + 1) / f(q, m)) for m in range(5)]
    assert steps == pytest.approx([theta] * 5)  # 29, 30


def slow_linear_attention(q, k, v, *, rotary: bool, causal: bool) -> np.ndarray:
    """Eqs. 18 and 19 by loops for one head: phi(x) = x + 1 above 0, e^x below."""

    def phi(x: np.ndarray) -> np.ndarray:
        return np.array([value + 1 if value > 0 else math.exp(value) for value in x])

    length, y = len(q), np.zeros_like(v)
    for m in range(length):
        above, below = np.zeros(v.shape[1]), 0.0
        for n in range(m + 1 if causal else length):
            turn_m, turn_n = (rotary_matrix(p if rotary else 0, q.shape[1]) for p in (m, n))
            above += (turn_m @ phi(q[m])) @ (turn_n @ phi(k[n])) * v[n]
            below += phi(q[m]) @ phi(k[n])
        y[m] = above / below
    return y


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_linear_attention_against_loops(rotary: bool, causal: bool) -> None:
    q, k = gaussian(2, 2, 3, 11, 6)
    v = gaussian(2, 3, 11, 5, seed=1)
    embedding = RotaryEmbedding(6, max_len=11).double()
    options = {"rotate": embedding.rotate} if rotary else {}
    found = linear_attention(*map(torch.from_numpy, (q, k, v)), causal=causal, **options).numpy()
    for b in range(2):
        for h in range(3):
            expected = slow_linear_attention(q[b, h], k[b, h], v[b, h], rotary=rotary, causal=causal)
            np.testing.assert_allclose(found[b, h], expected, rtol=0, atol=1e-6 if rotary else 1e-12)


def test_weights_of_rotary_linear_attention_are_no_probabilities() -> None:
    """As the text below Eq. 19 says: with values 1 the plain form gives 1, the rotary form less, even below zero."""
    q = torch.full((1, 1, 40, 2), 2.0, dtype=torch.float64)
    ones = torch.ones(1, 1, 40, 1, dtype=torch.float64)
    plain = linear_attention(q, q, ones, causal=True)
    torch.testing.assert_close(plain, torch.ones_like(plain), rtol=0, atol=1e-12)
    turned = linear_attention(q, q, ones, rotate=RotaryEmbedding(2, max_len=40).double().rotate, causal=True)
    # Equal features: the weight at distance d is cos d over the number of tokens.
    expected = [sum(math.cos(d) for d in range(m + 1)) / (m + 1) for m in range(40)]
    np.testing.assert_allclose(turned[0, 0, :, 0].numpy(), expected, rtol=0, atol=1e-6)
    assert min(expected) < 0


def test_softmax_is_another_similarity_of_the_same_form() -> None:
    """Eq. 17 with sim = exp(q.k / sqrt(d)) is the model's attention."""
    made = comparison(gaussian(7, 4), position="rotary")
    sim = np.exp(made.scores() / 2)
    np.testing.assert_allclose(made.output(), (sim @ made.x_TD) / sim.sum(1, keepdims=True), rtol=0, atol=1e-12)
