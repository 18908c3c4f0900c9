"""Which channels of a trained residual stream are best read as complex numbers.

A complex structure is an orthogonal J with J^2 = -1 (crope/theory/complex_structure.py). It is held here as complex
coordinates, a C x D matrix `basis` with z = basis x and |z| = |x|, in which J is multiplication by i; Eq. 8 has the
coordinates `interleaved`, channels (2j, 2j+1). numpy and scipy alone, float64.

Shapes: D width of the stream, C = D/2, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag

from crope.theory.complex_structure import best_structure, joint_share, standard_structure

SWEEPS = 50  # of the alternation in `fit_stream`; what a further one adds is below 1e-4

QKV = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class StreamStructure:
    """Coordinates of the stream, of the values of each layer's heads, and the share of Q, K, V that they keep."""

    basis: np.ndarray
    heads: list[list[np.ndarray]]
    kept: float


def best_complex_structure(weights: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> np.ndarray:
    """The coordinates of R^D in which `weights` (E, D) come nearest to complex-linear; `outputs` are their J (E, E)."""
    _, vectors = np.linalg.eigh(-1j * best_structure(weights, outputs))  # ascending, half of them -1: J is -i there
    return np.sqrt(2) * vectors[:, vectors.shape[1] // 2 :].conj().T


def interleaved(width: int) -> np.ndarray:
    return np.eye(width)[0::2] + 1j * np.eye(width)[1::2]


def structure_of(basis: np.ndarray) -> np.ndarray:
    """J as a real matrix."""
    return (basis.conj().T @ (1j * basis)).real


def rotation_of(basis: np.ndarray) -> np.ndarray:
    """The orthogonal matrix that takes x to its coordinates, real and imaginary parts interleaved."""
    return np.stack((basis.real, basis.imag), axis=1).reshape(-1, basis.shape[1])


def keeping_mean(basis: np.ndarray) -> np.ndarray:
    """The same J in coordinates whose rotation keeps (1, ..., 1): complex rotations reach any unit vector from any."""
    mean = np.full(basis.shape[1], basis.shape[1] ** -0.5)
    return _unitary(interleaved(len(mean)) @ mean) @ _unitary(basis @ mean).conj().T @ basis


def _unitary(first: np.ndarray) -> np.ndarray:
    """A unitary matrix with this first column, of norm 1."""
    matrix, _ = np.linalg.qr(np.column_stack((first, np.eye(len(first)))))
    matrix[:, 0] = first  # QR gives it up to a phase
    return matrix


def kept_share(weights: Sequence[np.ndarray], outputs: Sequence[np.ndarray], basis: np.ndarray) -> float:
    """Share of the squared norm of `weights` that is complex-linear in these coordinates; about 0.5 by chance."""
    return joint_share(weights, structure_of(basis), outputs)


def random_stream(layers: Sequence[QKV], n_heads: int, generator: np.random.Generator) -> StreamStructure:
    """A structure drawn at random, heads as they stand: what `fit_stream` is measured against."""
    normal = generator.standard_normal((layers[0][0].shape[1],) * 2)
    return _stream(layers, n_heads, best_complex_structure([np.eye(len(normal))], [normal - normal.T]))


def fit_stream(layers: Sequence[QKV], n_heads: int) -> StreamStructure:
    """The structure that keeps most of Q, K and V of all layers (gains folded in).

    The outputs of Q and K are paired by the rotation of positions. The values of a head may be paired in any way, since
    the output projection can take it back: their structures and the stream's are maximised in turn, so `kept` only
    grows (to a local maximum).
    """
    found = _stream(layers, n_heads, interleaved(layers[0][0].shape[1]))
    for _ in range(SWEEPS):
        found = _stream(layers, n_heads, best_complex_structure(*_maps(layers, found.heads)), found.heads)
        structure = structure_of(found.basis)
        heads = [[best_complex_structure([head.T], [structure]) for head in np.split(v, n_heads)] for _, _, v in layers]
        found = _stream(layers, n_heads, found.basis, heads)
    return found


def _stream(
    layers: Sequence[QKV], n_heads: int, basis: np.ndarray, heads: list[list[np.ndarray]] | None = None
) -> StreamStructure:
    heads = heads or [[interleaved(len(v) // n_heads)] * n_heads for _, _, v in layers]
    return StreamStructure(basis, heads, kept_share(*_maps(layers, heads), basis))


def _maps(layers: Sequence[QKV], heads: Sequence[Sequence[np.ndarray]]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Every Q, K and V with the structure of its outputs."""
    rotary = standard_structure(len(layers[0][0]))
    outputs = [[rotary, rotary, block_diag(*map(structure_of, bases))] for bases in heads]
    return [weight for layer in layers for weight in layer], [output for layer in outputs for output in layer]
