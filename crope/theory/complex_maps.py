"""Complex-linear maps (Sec. 3): channel pairs as complex numbers, the complex-linear fraction of a
real matrix, and the data of Figs. 1 and 2.

Pairs are interleaved on both sides of a map: channels (2j, 2j+1) are one complex number (Eq. 8).
numpy, float64.

Shapes: D in-features, E out-features (both even), C = D/2 complex coordinates.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

# The real bases sigma_0 .. sigma_3 of Fig. 2(a). sigma_2 is multiplication by i; Pauli's sigma_2,
# with its imaginary entries, is i times that. Eq. 30's block [[a, b], [-b, a]] is
# a sigma_0 - b sigma_2.
SIGMA: dict[str, Array] = {
    "σ0: identity": np.array([[1.0, 0.0], [0.0, 1.0]]),
    "σ1: reflection about 45°": np.array([[0.0, 1.0], [1.0, 0.0]]),
    "σ2: rotation by 90°": np.array([[0.0, -1.0], [1.0, 0.0]]),
    "σ3: reflection about x": np.array([[1.0, 0.0], [0.0, -1.0]]),
}
IDENTITY, MIRROR_45, TIMES_I, MIRROR_X = SIGMA.values()

# The letter F has no symmetry, so a rotation and a reflection of it cannot be confused. Corners,
# anticlockwise.
GLYPH: Array = np.array(
    [
        (0, 0),
        (0.25, 0),
        (0.25, 0.4),
        (0.6, 0.4),
        (0.6, 0.62),
        (0.25, 0.62),
        (0.25, 0.78),
        (0.75, 0.78),
        (0.75, 1),
        (0, 1),
    ]
)
MARKED = 8  # the corner that the first two maps of Fig. 2(b) take to the same place


def as_complex(x: Array) -> Complex:
    """Returns channels (2j, 2j+1) as one complex number (Eqs. 8 and 9): (..., D) -> (..., C)."""
    return x[..., 0::2] + 1j * x[..., 1::2]


def as_real(z: Complex) -> Array:
    """Inverts `as_complex`: (..., C) -> (..., D)."""
    return np.stack((z.real, z.imag), axis=-1).reshape(*z.shape[:-1], -1)


def dense(w: Complex) -> Array:
    """Returns the real matrix of a complex one: w = u + iv becomes blocks [[u, -v], [v, u]] (Eq.
    30).
    """
    return np.kron(w.real, IDENTITY) + np.kron(w.imag, TIMES_I)


def complex_part(w_ED: Array) -> Array:
    """Returns the nearest complex-linear matrix, (W - i W i) / 2: an orthogonal projection.

    It keeps the components of sigma_0 and sigma_2. What it removes satisfies W i = -i W.
    """
    i_EE, i_DD = (np.kron(np.eye(width // 2), TIMES_I) for width in w_ED.shape)
    return (w_ED - i_EE @ w_ED @ i_DD) / 2


def complex_fraction(w_ED: Array) -> float:
    """Computes the complex-linear fraction of the energy ||W||^2: 1/2 on average over random
    matrices.
    """
    return float(np.sum(complex_part(w_ED) ** 2) / np.sum(w_ED**2))


def tied_entries(width: int) -> dict[str, NDArray[np.str_]]:
    """Names the free number at each entry of a width x width weight in Fig. 1, by letter, row and
    column; "−" marks its negative.

    RoPE has width^2 of them, CRoPE (Eq. 30) half as many.
    """
    a, b = _entries("a", width // 2), _entries("b", width // 2)
    crope = np.empty((width, width), dtype="<U9")
    crope[0::2, 0::2], crope[0::2, 1::2] = a, b
    crope[1::2, 0::2], crope[1::2, 1::2] = np.char.add("−", b), a
    return {"rope": _entries("w", width), "crope": crope}


def _entries(letter: str, side: int) -> NDArray[np.str_]:
    """Names the entries of a square matrix."""
    numbers = range(1, side + 1)
    return np.array([[f"{letter}{row}{column}" for column in numbers] for row in numbers])


def plane_maps() -> dict[str, Array]:
    """Returns the maps of Fig. 2(b): a rotation with scaling, the reflection that moves the marked
    corner to the same place, a map with both, and the complex part of that; (2, 2) each.
    """
    w = 0.9 * np.exp(1j * np.pi / 3)
    rotation = dense(np.array([[w]]))
    corner = as_complex(GLYPH[MARKED])[0]
    # z -> c conj(z) are the reflections, of sigma_3 (real c) and sigma_1 (imaginary c).
    c = w * corner / np.conj(corner)
    mirror = c.imag * MIRROR_45 + c.real * MIRROR_X
    mixed = 0.8 * rotation + 0.35 * mirror
    return {
        "a complex map": rotation,
        "a reflection": mirror,
        "a real map": mixed,
        "its complex part": complex_part(mixed),
    }
