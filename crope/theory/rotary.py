"""Rotary positions: the rotation in its matrix, element-wise and complex forms, its kernel, and
RoFormer's decay bound.

Eqs. 21, 23 and 28 of the CRoPE paper end in sum_i cos(distance theta_i) and call it a delta
function for large D. It is not one: the frequencies crowd at low values, so the limit decays
logarithmically (0.974 of its peak at distance 1).

Shapes: K head width, C = K/2 pairs (interleaved).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import toeplitz
from scipy.special import sici

from crope.model.positions import BASE
from crope.theory.complex_maps import Array, Complex, as_complex, as_real, dense


def frequencies(width: int, base: float = BASE) -> Array:
    """Computes theta_i = base^(-2i/width), i = 0 .. width/2 - 1 (RoFormer Eq. 15)."""
    return base ** (-np.arange(0, width, 2) / width)


def phases(position: float, width: int) -> Complex:
    """Computes the diagonal of R~_m, e^{i m theta} (Eq. 10): (C,)."""
    return np.exp(1j * position * frequencies(width))


def rotary_matrix(position: float, width: int) -> Array:
    """Builds R_{Theta,m} of RoFormer's Eq. 15 (CRoPE paper's Eq. 6), block-diagonal, (K, K)."""
    return dense(np.diag(phases(position, width)))


def rotate_elementwise(x: Array, position: float) -> Array:
    """Rotates by RoFormer's Eq. 34: two element-wise products instead of the matrix. (..., K) ->
    (..., K).
    """
    angle_K = np.repeat(position * frequencies(x.shape[-1]), 2)  # both channels of a pair
    return x * np.cos(angle_K) + as_real(1j * as_complex(x)) * np.sin(angle_K)


def inner_product(q_C: Complex, k_C: Complex) -> float:
    """Computes q . k of the real vectors: Re[conj(q)^T k].

    Eq. 11 prints a plain transpose, which is another number.
    """
    return float(np.real(np.conj(q_C) @ k_C))


def rotary_score(q_C: Complex, k_C: Complex, m: int, n: int) -> float:
    """Computes f(x_m, x_n, m - n) = Re[conj(q)^T conj(R~_{m-n}) k], equal to Eq. 7 (Eq. 12 with the
    conjugate).
    """
    # conj(R~_{m-n}) = R~_{n-m}: the key is turned on by n and the query back by m.
    return inner_product(q_C, np.conj(phases(m - n, 2 * len(q_C))) * k_C)


def kernel(distance: ArrayLike, theta: Array) -> Array:
    """Computes the mean over i of cos(distance theta_i), the sum of Eq. 23 over its peak; shape of
    `distance`.
    """
    return np.cos(np.multiply.outer(np.asarray(distance, dtype=float), theta)).mean(-1)


def kernel_limit(distance: ArrayLike) -> Array:
    """Computes the limit of the kernel for D to infinity at distances > 0: the mean of cos(distance
    BASE^-u) over u in 0 .. 1.
    """
    distance = np.asarray(distance, dtype=float)
    # The integral of cos(x) / x is Ci(x), with x = distance BASE^-u.
    return (sici(distance)[1] - sici(distance / BASE)[1]) / np.log(BASE)


def missed_weight(
    theta: Array, *, length: int, gain: float, offsets: Sequence[int] = (0,)
) -> float:
    """Computes the mean over positions of 1 - (softmax weight at position + offset), from scores
    gain * sum_i cos(... theta_i) / sqrt(width).

    This closed form of the constructions serves widths at which weight matrices would be too large.
    Positions whose target is outside 0 .. length - 1 are left out.
    """
    width = 2 * len(theta)
    peak = gain * len(theta) / np.sqrt(width)  # attention divides by sqrt(K); Eq. 2 does not
    fall = peak * (1 - kernel(np.arange(length), theta))  # by distance from the target
    # By position of the target; the softmax, from scores minus their peak, cannot overflow.
    missed = 1 - 1 / np.exp(-toeplitz(fall)).sum(axis=1)
    inside = [missed[max(0, offset) : length + min(0, offset)] for offset in offsets]
    return float(np.concatenate(inside).mean())


def partial_sums(distance: float, theta: Array) -> Complex:
    """Computes S_j = sum over i < j of e^{i distance theta_i}, j = 1 .. C (RoFormer Eq. 36)."""
    return np.cumsum(np.exp(1j * distance * theta))


def relative_bound(distance: float, theta: Array) -> float:
    """Computes the mean of |S_j| over j from 1 to C: the curve of RoFormer's Fig. 2.

    Times C and max_i |h_{i+1} - h_i| it is the bound of Eq. 37.
    """
    return float(np.abs(partial_sums(distance, theta)).mean())
