"""Sec. 3.1: rotary scores written with complex numbers, with the conjugates that Eqs. 11 to 13 leave out in print.

Shapes: K head width, J = K/2 pairs, D model width; pairs are interleaved.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crope.theory.kernel import Array, frequencies

Complex = NDArray[np.complex128]


def as_complex(x_K: Array) -> Complex:
    """Channels (2j, 2j+1) as one number (Eqs. 8 and 9): (..., K) -> (..., J)."""
    return x_K[..., 0::2] + 1j * x_K[..., 1::2]


def as_real(z_J: Complex) -> Array:
    """Inverse of `as_complex`: (..., J) -> (..., K)."""
    return np.stack((z_J.real, z_J.imag), axis=-1).reshape(*z_J.shape[:-1], -1)


def phases(position: float, pairs: int) -> Complex:
    """Diagonal of R~_m, e^{i m theta} (Eq. 10): (J,)."""
    return np.exp(1j * position * frequencies(2 * pairs))


def inner_product(q_J: Complex, k_J: Complex) -> float:
    """q . k of the real vectors: Re[conj(q)^T k]. Eq. 11 prints a plain transpose, which is another number."""
    return float(np.real(np.conj(q_J) @ k_J))


def rotary_score(q_J: Complex, k_J: Complex, m: int, n: int) -> float:
    """f(x_m, x_n, m - n) = Re[conj(q)^T conj(R~_{m-n}) k], equal to Eq. 7 (Eq. 12 with the conjugate)."""
    return inner_product(q_J, np.conj(phases(m - n, len(q_J))) * k_J)


def complex_map_score(x_m: Complex, x_n: Complex, w_q: Complex, w_k: Complex, m: int, n: int) -> float:
    """CRoPE's score: embeddings and maps complex as well (Eq. 13 with conj(x_m) for x_m); maps (J, D/2)."""
    return rotary_score(w_q @ x_m, w_k @ x_n, m, n)
