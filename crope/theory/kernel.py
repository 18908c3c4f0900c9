"""The kernel of rotary positions: what a constant query sees at each distance, and RoFormer's bound on its decay.

Eqs. 21, 23 and 28 all end in sum_i cos(distance theta_i) and call it a delta function for large D. It is none: its
frequencies crowd at low values, so the limit is a slow logarithmic fall, 0.974 of the peak at distance 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import sici

from crope.model.positions import BASE

Array = NDArray[np.float64]


def frequencies(width: int, base: float = BASE) -> Array:
    """theta_i = base^(-2i/width), i = 0 .. width/2 - 1 (RoFormer Eq. 15)."""
    return base ** (-np.arange(0, width, 2) / width)


def kernel(distance: ArrayLike, theta: Array) -> Array:
    """Mean over i of cos(distance theta_i), the sum of Eq. 23 over its peak; shape of `distance`."""
    return np.cos(np.multiply.outer(np.asarray(distance, dtype=float), theta)).mean(-1)


def kernel_limit(distance: ArrayLike, base: float = BASE) -> Array:
    """The kernel's limit for D to infinity at distances > 0: the mean of cos(distance base^-u) over u in 0 .. 1."""
    distance = np.asarray(distance, dtype=float)
    return (sici(distance)[1] - sici(distance / base)[1]) / np.log(base)


def uniform_frequencies(width: int) -> Array:
    """Evenly spaced in (0, pi): with these the kernel *is* zero at every distance 1 .. width - 1, as Eq. 21 wants."""
    pairs = width // 2
    return np.pi * (np.arange(pairs) + 0.5) / pairs


def missed_weight(
    theta: Array, *, length: int, gain: float, offsets: Sequence[int] = (0,), scaled: bool = False
) -> float:
    """Mean over positions of 1 - (softmax weight at position + offset), from scores gain * sum_i cos(... theta_i).

    `scaled` divides scores by sqrt(width) as attention does; Eq. 2 does not. Closed form of the constructions, for
    widths at which their weight matrices would be too large. Positions whose target lies outside 0 .. length - 1 are
    left out.
    """
    peak = gain * len(theta) / (np.sqrt(2 * len(theta)) if scaled else 1.0)
    missed = []
    for offset in offsets:
        for m in range(max(0, -offset), min(length, length - offset)):
            fall = peak * (1 - kernel(np.arange(length) - m - offset, theta))
            missed.append(1 - 1 / np.exp(-fall).sum())
    return float(np.mean(missed))


def partial_sums(distance: float, theta: Array) -> NDArray[np.complex128]:
    """S_j = sum over i < j of e^{i distance theta_i}, j = 1 .. D/2 (RoFormer Eq. 36)."""
    return np.cumsum(np.exp(1j * distance * theta))


def relative_bound(distance: float, theta: Array) -> float:
    """Mean of |S_j|, j = 1 .. D/2: RoFormer's Fig. 2. Times D/2 and max_i |h_{i+1} - h_i|, the bound of Eq. 37."""
    return float(np.abs(partial_sums(distance, theta)).mean())


def decay_curves(*, width: int, longest: int) -> dict[str, Any]:
    """Data of the figure: the bound and the kernel itself at distances 0 .. longest - 1, in units of its D/2 pairs."""
    distance, theta = np.arange(longest), frequencies(width)
    return {
        "width": width,
        "distance": distance.tolist(),
        "bound": [relative_bound(float(d), theta) for d in distance],
        "kernel": kernel(distance, theta).tolist(),
        "limit": [1.0, *kernel_limit(distance[1:]).tolist()],
    }
