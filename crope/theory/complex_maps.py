"""Complex-linear maps (Sec. 3): channel pairs as complex numbers, and how much of a real matrix is
complex-linear.

A complex structure is an orthogonal J with J^2 = -1: it defines "times i" and so which directions
form a pair. A real W is complex-linear if W J_in = J_out W. With interleaved pairs on both sides
that is Eq. 30. numpy, float64.

Shapes: D in-features, E out-features (both even), C = D/2 complex coordinates, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.stats import ortho_group

from crope.model.gpt import GPT, blocks_of

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]
QKV = tuple[Array, Array, Array]  # Q, K and V of one layer, (D, D) each

# The real bases of Fig. 2(a). sigma_2 is the rotation by +90 degrees, multiplication by i; Pauli's
# sigma_2, with its imaginary entries, is i times that. Eq. 30's block [[a, b], [-b, a]] is a
# sigma_0 - b sigma_2. Identity, reflection about the line at 45 degrees, rotation by 90 degrees,
# reflection about the x-axis.
SIGMA: Array = np.array(
    [
        [[1.0, 0.0], [0.0, 1.0]],
        [[0.0, 1.0], [1.0, 0.0]],
        [[0.0, -1.0], [1.0, 0.0]],
        [[1.0, 0.0], [0.0, -1.0]],
    ]
)

SWEEPS = 50  # alternating maximisations in `fit_stream`; a further one adds less than 1e-4


def as_complex(x: Array) -> Complex:
    """Channels (2j, 2j+1) as one complex number (Eqs. 8 and 9): (..., D) -> (..., C)."""
    return x[..., 0::2] + 1j * x[..., 1::2]


def as_real(z: Complex) -> Array:
    """Inverse of `as_complex`: (..., C) -> (..., D)."""
    return np.stack((z.real, z.imag), axis=-1).reshape(*z.shape[:-1], -1)


def dense(w: Complex) -> Array:
    """The real matrix of a complex one, interleaved pairs: w = u + iv becomes blocks [[u, -v], [v,
    u]] (Eq. 30).
    """
    return np.kron(w.real, SIGMA[0]) + np.kron(w.imag, SIGMA[2])


def standard_structure(width: int) -> Array:
    """The J of interleaved pairs, (D, D): channels (2j, 2j+1) are one complex number (Eq. 8)."""
    return np.kron(np.eye(width // 2), SIGMA[2])


def complex_part(w_ED: Array, j_in_DD: Array | None = None, j_out_EE: Array | None = None) -> Array:
    """The nearest complex-linear matrix, (W - J_out W J_in) / 2: an orthogonal projection. Default:
    interleaved pairs.

    In these it keeps the components of sigma_0 and sigma_2.
    """
    if j_in_DD is None:
        j_in_DD = standard_structure(w_ED.shape[1])
    if j_out_EE is None:
        j_out_EE = standard_structure(w_ED.shape[0])
    return (w_ED - j_out_EE @ w_ED @ j_in_DD) / 2


def complex_fraction(
    weights: Sequence[Array],
    j_in_DD: Array | None = None,
    structures_out: Sequence[Array] | None = None,
) -> float:
    """Complex-linear fraction of the energy ||W||^2 of maps that read one space; 1/2 on average
    over random J_in.
    """
    structures: Sequence[Array | None] = structures_out or [None] * len(weights)
    pairs = zip(weights, structures, strict=True)
    parts = [complex_part(w_ED, j_in_DD, j_EE) for w_ED, j_EE in pairs]
    return _energy(parts) / _energy(weights)


def best_structure(
    weights: Sequence[Array], structures_out: Sequence[Array] | None = None
) -> Array:
    """The J of the input space, (D, D), that maximises the joint complex-linear fraction of
    `weights`.

    The fraction is 1/2 - tr(A J) / (2 ||W||^2) with A = sum of W^T J_out W, antisymmetric. So the
    maximum over all orthogonal J is the polar factor of A, which is itself antisymmetric; its
    negative gives the minimum. Because the pairing of residual channels is arbitrary, only the best
    pairing is informative, and only in comparison with random matrices for which the best pairing
    is chosen too. Raises ValueError if A is singular: no unique best J.
    """
    if structures_out is None:
        structures_out = [standard_structure(len(w_ED)) for w_ED in weights]
    terms = [w.T @ j @ w for w, j in zip(weights, structures_out, strict=True)]
    return _polar_factor(np.sum(terms, axis=0))


def _polar_factor(a_DD: Array) -> Array:
    """The J nearest to antisymmetric A: i A is Hermitian, and i J has its eigenvectors and the
    signs of its values.
    """
    values, vectors = np.linalg.eigh(1j * a_DD)
    if not np.abs(values).min() > 1e-12 * np.abs(values).max():
        raise ValueError(f"no unique complex structure: A, {len(a_DD)} wide, is singular")
    return np.imag((vectors * np.sign(values)) @ vectors.conj().T)


def _energy(weights: Sequence[Array]) -> float:
    return float(sum(np.sum(w**2) for w in weights))


def coordinates(j_DD: Array) -> Complex:
    """A basis, (C, D), of complex coordinates z = basis x in which J is i; |z| = |x|, unique up to
    a unitary matrix.
    """
    _, vectors = np.linalg.eigh(-1j * j_DD)  # ascending, the first half -1: there J is -i
    return np.sqrt(2) * vectors[:, vectors.shape[1] // 2 :].conj().T


def interleaved(width: int) -> Complex:
    """The coordinates of Eq. 8, in which `standard_structure` is multiplication by i."""
    return as_complex(np.eye(width)).T


def structure_of(basis_CD: Complex) -> Array:
    """The J of these coordinates, (D, D): inverse of `coordinates`."""
    return (basis_CD.conj().T @ (1j * basis_CD)).real


def rotation_of(basis_CD: Complex) -> Array:
    """The orthogonal matrix that takes x to its coordinates, real and imaginary parts interleaved."""
    return as_real(basis_CD.T).T


def keeping_mean(basis_CD: Complex) -> Complex:
    """The same J in coordinates whose rotation keeps (1, ..., 1); unitary maps reach any unit
    vector.
    """
    width = basis_CD.shape[1]
    mean = np.full(width, width**-0.5)
    wanted = _unitary(as_complex(mean))
    return wanted @ _unitary(basis_CD @ mean).conj().T @ basis_CD


def _unitary(first: Complex) -> Complex:
    """A unitary matrix with this first column, of norm 1."""
    matrix, _ = np.linalg.qr(np.column_stack((first, np.eye(len(first)))))
    matrix[:, 0] = first  # QR gives it up to a phase
    return matrix


@dataclass(frozen=True)
class StreamStructure:
    """Complex coordinates of the residual stream and of the values of each layer's heads.

    `kept` is the complex-linear fraction of Q, K and V of all layers in them.
    """

    basis: Complex
    heads: list[list[Complex]]
    kept: float


def fit_stream(layers: Sequence[QKV], n_heads: int) -> StreamStructure:
    """The structure with the largest complex-linear fraction of Q, K and V of all layers.

    The outputs of Q and K are paired by the rotation of positions. The values of a head may be
    paired in any way, because the output projection can undo it: their structures and the stream's
    are maximised in turn, so `kept` never decreases (a local maximum).
    """
    heads = _interleaved_heads(layers, n_heads)
    for _ in range(SWEEPS):
        j_DD = best_structure(list(chain(*layers)), _outputs(layers, heads))
        # Of the outputs: W^T is complex-linear where W is.
        heads = [
            [coordinates(best_structure([head.T], [j_DD])) for head in np.split(v, n_heads)]
            for _, _, v in layers
        ]
    return _stream(layers, coordinates(j_DD), heads)


def random_stream(
    layers: Sequence[QKV], n_heads: int, generator: np.random.Generator
) -> StreamStructure:
    """A random structure of the stream with interleaved heads: the baseline of `fit_stream`."""
    width = layers[0][0].shape[1]
    normal = generator.standard_normal((width, width))
    basis = coordinates(_polar_factor(normal - normal.T))
    return _stream(layers, basis, _interleaved_heads(layers, n_heads))


def _interleaved_heads(layers: Sequence[QKV], n_heads: int) -> list[list[Complex]]:
    return [[interleaved(len(v) // n_heads)] * n_heads for _, _, v in layers]


def _stream(layers: Sequence[QKV], basis: Complex, heads: list[list[Complex]]) -> StreamStructure:
    weights, outputs = list(chain(*layers)), _outputs(layers, heads)
    return StreamStructure(basis, heads, complex_fraction(weights, structure_of(basis), outputs))


def _outputs(layers: Sequence[QKV], heads: list[list[Complex]]) -> list[Array]:
    """The structures of the outputs of every Q, K and V."""
    structures: list[Array] = []
    for (q, _, _), bases in zip(layers, heads, strict=True):
        rotary = standard_structure(len(q))
        structures += [rotary, rotary, block_diag(*map(structure_of, bases))]
    return structures


def folded_qkv(model: GPT) -> list[QKV]:
    """Q, K and V of each layer as they act on the normalised residual, the LayerNorm's gains folded
    in; float64.

    After training the gains of a pair differ, so CRoPE's maps are complex-linear from the scaled
    residual and not exactly from the normalised one. The mean subtraction, which removes one
    direction, is not accounted for.
    """

    layers = []
    for block in blocks_of(model):
        gain_D = block.attn_norm.weight.double()
        q, k, v = (
            (layer.weight.double() * gain_D).detach().cpu().numpy() for layer in block.attn.qkv
        )
        layers.append((q, k, v))
    return layers


def rotate_heads(
    layers: Sequence[QKV], *, n_heads: int, generator: np.random.Generator
) -> list[QKV]:
    """The same maps with the output channels of each head rotated at random, Q, K and V
    independently.

    This keeps the subspace that each head reads and its singular values. Training lowers the rank
    of the maps, which raises the best fraction of *any* pairing: the chance level of a trained map
    is that of its own rotations.
    """

    def rotate(w_ED: Array) -> Array:
        heads = np.split(w_ED, n_heads)
        rotations = [ortho_group.rvs(len(head), random_state=generator) for head in heads]
        return np.concatenate([r @ head for r, head in zip(rotations, heads, strict=True)])

    return [(rotate(q), rotate(k), rotate(v)) for q, k, v in layers]
