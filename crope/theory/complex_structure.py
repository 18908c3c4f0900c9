"""Sec. 3.2: how much of a real matrix is complex-linear, in a given pairing and in the best one.

A complex structure is an orthogonal J with J^2 = -1: it says what "times i" means, so which directions form a pair. A
real W from a space with J_in to one with J_out is complex-linear where W J_in = J_out W. With `standard_structure`
on both sides, pairs are interleaved and that is Eq. 30.

Shapes: E out-features, D in-features, both even.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The real bases of Fig. 2(a). sigma_2 is the turn by +90 degrees, multiplication by i; Pauli's, with its imaginary
# entries, is i times that. Eq. 30's block [[a, b], [-b, a]] is a sigma_0 - b sigma_2.
SIGMA: Array = np.array(
    [
        [[1, 0], [0, 1]],  # identity
        [[0, 1], [1, 0]],  # reflection about the line at 45 degrees
        [[0, -1], [1, 0]],  # turn by 90 degrees
        [[1, 0], [0, -1]],  # reflection about the x-axis
    ],
    dtype=float,
)


def sigma_components(w_ED: Array) -> Array:
    """Coefficients of each 2x2 block in SIGMA, shape (4, E/2, D/2): the block is their sum over the four bases."""
    blocks = w_ED.reshape(w_ED.shape[0] // 2, 2, w_ED.shape[1] // 2, 2)
    return np.einsum("ejdk,sjk->sed", blocks, SIGMA) / 2  # <sigma_s, sigma_t> = 2 delta_st


def standard_structure(width: int) -> Array:
    """J0 of interleaved pairs: (2j, 2j+1) is one complex number (Eq. 8), (D, D)."""
    return np.kron(np.eye(width // 2), SIGMA[2])


def complex_part(w_ED: Array, j_in_DD: Array | None = None, j_out_EE: Array | None = None) -> Array:
    """The nearest complex-linear matrix, (W - J_out W J_in) / 2: an orthogonal projection. Default: interleaved pairs.

    In interleaved pairs it keeps the components of sigma_0 and sigma_2 and drops those of sigma_1 and sigma_3.
    """
    j_in_DD = standard_structure(w_ED.shape[1]) if j_in_DD is None else j_in_DD
    j_out_EE = standard_structure(w_ED.shape[0]) if j_out_EE is None else j_out_EE
    return (w_ED - j_out_EE @ w_ED @ j_in_DD) / 2


def complex_share(w_ED: Array, j_in_DD: Array | None = None, j_out_EE: Array | None = None) -> float:
    """Share of ||W||^2 that is complex-linear: 1 under CRoPE, 1/2 on average over any random pairing of the input."""
    return float(np.sum(complex_part(w_ED, j_in_DD, j_out_EE) ** 2) / np.sum(w_ED**2))


def best_structure(weights: Sequence[Array], structures_out: Sequence[Array] | None = None) -> Array:
    """The one J of the input space, (D, D), that makes the joint complex share of `weights` as large as it can be.

    The share is 1/2 - tr(A J) / (2 ||W||^2) with A = sum of W^T J_out W, antisymmetric. So the maximum over all
    orthogonal J is the polar factor of A, which is itself antisymmetric; its negative gives the minimum. Which
    channels of a residual stream form a pair is arbitrary: only the best pairing says anything about a matrix, and
    only against random matrices that were granted the same choice.
    Raises    ValueError if A is singular: the best J is not unique then.
    """
    if structures_out is None:
        structures_out = [standard_structure(w_ED.shape[0]) for w_ED in weights]
    return _polar_factor(np.sum([w.T @ j @ w for w, j in zip(weights, structures_out, strict=True)], axis=0))


def best_output_structure(w_ED: Array, j_in_DD: Array) -> Array:
    """The J of the output space, (E, E), that makes the complex share of W largest, the input's being given."""
    return _polar_factor(w_ED @ j_in_DD @ w_ED.T)


def joint_share(weights: Sequence[Array], j_in_DD: Array, structures_out: Sequence[Array] | None = None) -> float:
    """Complex share of several maps that read the same space: their complex energy over their energy."""
    if structures_out is None:
        structures_out = [standard_structure(w_ED.shape[0]) for w_ED in weights]
    kept = sum(np.sum(complex_part(w, j_in_DD, j) ** 2) for w, j in zip(weights, structures_out, strict=True))
    return float(kept / sum(np.sum(w_ED**2) for w_ED in weights))


def _polar_factor(a_DD: Array) -> Array:
    """The J nearest to antisymmetric A: i A is Hermitian, and i J has its eigenvectors and the signs of its values."""
    values, vectors = np.linalg.eigh(1j * a_DD)
    if not np.abs(values).min() > 1e-12 * np.abs(values).max():
        raise ValueError(f"no unique complex structure: the {len(a_DD)}-wide sum of W^T J W is singular")
    return np.imag((vectors * np.sign(values)) @ vectors.conj().T)
