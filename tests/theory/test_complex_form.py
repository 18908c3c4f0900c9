"""Eqs. 8 to 13: the real scores of the model, and what the printed transposes give instead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crope.model.complex_linear import ComplexLinear
from crope.model.positions import RotaryEmbedding
from crope.theory.complex_form import (
    as_complex,
    as_real,
    complex_map_score,
    inner_product,
    phases,
    rotary_score,
)

WIDTH, M, N = 8, 7, 3


def vectors(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    q, k = np.random.default_rng(seed).standard_normal((2, WIDTH))
    return q, k


def model_score(q: np.ndarray, k: np.ndarray, m: int, n: int) -> float:
    """(R_m q) . (R_n k) by the model's own rotation (Eq. 7)."""
    rotary = RotaryEmbedding(WIDTH, max_len=16)
    q_TK, k_TK = (rotary.rotate(torch.from_numpy(x).expand(1, 1, 16, WIDTH))[0, 0] for x in (q, k))
    return float(q_TK[m] @ k_TK[n])


def complex_layer(seed: int) -> tuple[ComplexLinear, np.ndarray]:
    layer, values = ComplexLinear(WIDTH, WIDTH).double(), np.random.default_rng(seed).standard_normal((2, 4, 4))
    with torch.no_grad():
        layer.a.copy_(torch.from_numpy(values[0]))
        layer.b.copy_(torch.from_numpy(values[1]))
    return layer, values[0] - 1j * values[1]


def test_pairs_are_interleaved_and_the_cast_is_lossless() -> None:
    assert as_complex(np.array([1.0, 2.0, 3.0, 4.0])).tolist() == [1 + 2j, 3 + 4j]
    x = np.random.default_rng(0).standard_normal((3, 8))
    assert as_real(as_complex(x)).tolist() == x.tolist()


def test_inner_product_needs_the_conjugate() -> None:
    """Eq. 11: by hand (1 + 2i) and (3 + 4i): 1*3 + 2*4 = 11; the plain product's real part is 3 - 8 = -5."""
    q, k = vectors()
    assert inner_product(np.array([1 + 2j]), np.array([3 + 4j])) == 11
    assert inner_product(as_complex(q), as_complex(k)) == pytest.approx(q @ k, abs=1e-12)
    assert abs((as_complex(q) @ as_complex(k)).real - q @ k) > 0.1


def test_rotary_score_is_the_models_and_depends_on_the_distance() -> None:
    """Eqs. 7, 10 and 12; without the conjugate Eq. 12 is another number even where m = n."""
    q, k = vectors()
    q_J, k_J = as_complex(q), as_complex(k)
    assert rotary_score(q_J, k_J, M, N) == pytest.approx(model_score(q, k, M, N), abs=1e-6)
    assert rotary_score(q_J, k_J, M + 5, N + 5) == pytest.approx(rotary_score(q_J, k_J, M, N), abs=1e-12)
    printed = float(np.real(q_J @ (np.conj(phases(M - N, 4)) * k_J)))
    assert abs(printed - model_score(q, k, M, N)) > 0.1


def test_rotation_is_a_diagonal_of_phases() -> None:
    q, _ = vectors()
    rotated = RotaryEmbedding(WIDTH, max_len=16).rotate(torch.from_numpy(q).expand(1, 1, 16, WIDTH))[0, 0, M]
    np.testing.assert_allclose(as_complex(rotated.numpy()), phases(M, 4) * as_complex(q), rtol=0, atol=1e-6)


def test_complex_maps_give_cropes_score() -> None:
    """Eq. 13 with both conjugates is what two ComplexLinear layers and rotary compute; as printed it is not."""
    (query, w_q), (key, w_k) = complex_layer(1), complex_layer(2)
    x_m, x_n = vectors(3)
    q, k = (layer(torch.from_numpy(x)).detach().numpy() for layer, x in ((query, x_m), (key, x_n)))
    score = complex_map_score(as_complex(x_m), as_complex(x_n), w_q, w_k, M, N)
    assert score == pytest.approx(model_score(q, k, M, N), abs=1e-5)
    middle = w_q.conj().T @ np.diag(phases(N - M, 4)) @ w_k
    assert (as_complex(x_m).conj() @ middle @ as_complex(x_n)).real == pytest.approx(score, abs=1e-10)
    assert abs((as_complex(x_m) @ middle @ as_complex(x_n)).real - score) > 0.1


def test_a_real_map_is_no_complex_map() -> None:
    """Eq. 13 is not equivalent to Eq. 12: a reflection in front of the rotation is out of every complex map's reach."""
    rng = np.random.default_rng(4)
    mirror = np.kron(np.eye(4), np.diag([1.0, -1.0]))
    x = rng.standard_normal((50, WIDTH))
    y = x @ mirror.T
    w, *_ = np.linalg.lstsq(as_complex(x), as_complex(y), rcond=None)  # the best complex map of these inputs
    missed = np.sum(np.abs(as_complex(x) @ w - as_complex(y)) ** 2) / np.sum(np.abs(y) ** 2)
    assert missed > 0.7
